"""What a look at a text promises cleaning: which of its steps can find nothing there, and how much text there is.

In: texts. Out: `Survey`: a flag for each kind of thing that cleaning looks for with patterns (mojibake, markup, wide
characters, numbers of people ...), characters by class, units. A flag that is not set means that the step would change
nothing, so it need not be asked; where all are set, every step looks for itself. One compiled pass sets them, where it
is compiled already or there is much text; for a few short texts all are set, and the outcome is the same.

    survey("今天天气很好。").flags & MARKUP_SIGNS     # 0: no < and no &, or EVERYTHING
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from headwater.core.units import HAN, SPACE, class_table, classes, count_units
from headwater.curate.boilerplate import EDGES, LINE_BEGINNINGS, LONGER_STARTS, PHRASES
from headwater.curate.characters import HALF_MARKS, is_before_mark, is_odd, is_wide, tidy_lines
from headwater.curate.mojibake import HIGH_CHARACTERS, MARKS

KIND = 0x0F
HIGH, LATIN_1, BEFORE, SIGNAL, EDGE, HALF = 1 << 4, 1 << 5, 1 << 6, 1 << 7, 1 << 8, 1 << 15
"""Of a character: its class (`core.units`); U+0080 to U+00FF and what Windows-1252 has in their place; U+0080 to
U+00FF; may stand before Chinese punctuation; needs a closer look; does not count at the edge of a line; , . ; : ? !"""

ODD, WIDE, MARKUP_SIGNS, AT = 1 << 9, 1 << 10, 1 << 11, 1 << 12
MOJIBAKE, SPACING, FENCE, CODE_OR_LINK, HALF_MARK, BOILERPLATE, NOTICE, NUMBER, IP_ADDRESS = (
    1 << bit for bit in range(16, 25)
)
PRESENCE = ODD | WIDE | MARKUP_SIGNS | AT
EVERYTHING = (1 << 25) - 1
"""Flags of a text. Those of PRESENCE are of single characters, and set where one of them is."""

STARTS, WHOLE, BEGINNINGS = range(3)
"""Rows of `phrase_tables`."""

WORD, SECONDS, PAIRED = 1, 0x3C, 4
"""Bits of `run_table`, and how far from one another those of a pair are."""

CHARACTERS, UNITS, FLAGS, COLUMNS = 12, 13, 14, 15
"""Columns of the kernel's result; those before are characters by class."""

FACTOR = 0x9E3779B97F4A7C15
COMPILE_BYTES = 48 << 10
"""From this much text in a batch on the kernels are used, even if they have to be compiled first."""


@dataclass(frozen=True, slots=True)
class Survey:
    """What may be in a text. `counts`: its characters by class of `core.units`, int64 [12]."""

    flags: int
    counts: NDArray[np.int64]
    units: int

    def without_spaces(self, number: int) -> Survey:
        """Of what `tidied` makes of the text by taking away so many spaces. Nothing else changes: the distances that
        flags depend on are those of the tidied text already."""
        counts = self.counts.copy()
        counts[SPACE] -= number
        return Survey(self.flags, counts, self.units)


_kernels: list[ModuleType] = []


def kernels(size: int = 0) -> ModuleType | None:
    """The compiled passes, if they are loaded or this many bytes of text are worth it."""
    if not _kernels and size >= COMPILE_BYTES:
        from headwater.curate import survey_kernels

        _kernels.append(survey_kernels)
    return _kernels[0] if _kernels else None


def survey(text: str) -> Survey:
    """Look at one text."""
    if (compiled := kernels(len(text))) is None:
        return Survey(EVERYTHING, np.bincount(classes(text), minlength=CHARACTERS)[:CHARACTERS], count_units(text))
    data = np.frombuffer(text.encode("utf-8", "surrogatepass"), np.uint8)
    row = np.empty((1, COLUMNS), np.int64)
    compiled.look(data, np.array([0, data.size]), property_table(), phrase_tables(), row)
    return Survey(int(row[0, FLAGS]), row[0, :CHARACTERS], int(row[0, UNITS]))


def joined(encoded: Sequence[bytes]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """UTF-8 texts, one after the other, and where each begins and the last ends."""
    offsets = np.zeros(len(encoded) + 1, np.int64)
    np.cumsum([len(data) for data in encoded], out=offsets[1:])
    return np.frombuffer(b"".join(encoded), np.uint8), offsets


def survey_all(data: NDArray[np.uint8], offsets: NDArray[np.int64]) -> Sequence[Survey | None]:
    """Look at texts that lie one after the other; None of each if it is not worth compiling for them."""
    if (compiled := kernels(data.size)) is None:
        return [None] * (offsets.size - 1)
    rows = np.empty((offsets.size - 1, COLUMNS), np.int64)
    compiled.look(data, offsets, property_table(), phrase_tables(), rows)
    flags, units = rows[:, FLAGS].tolist(), rows[:, UNITS].tolist()
    return [Survey(*found) for found in zip(flags, rows[:, :CHARACTERS], units, strict=True)]


@cache
def property_table() -> NDArray[np.uint16]:
    """Class and properties of each code point, uint16 [0x110000]."""
    table = class_table().astype(np.uint16)

    def mark(characters: str, bit: int) -> None:
        table[[ord(character) for character in characters]] |= bit

    mark(HIGH_CHARACTERS, HIGH)
    mark("".join(map(chr, range(0x80, 0x100))), LATIN_1)
    mark(EDGES, EDGE)
    mark(HALF_MARKS, HALF)
    mark("<&", MARKUP_SIGNS)
    mark("@", AT)
    mark("\n\t 0123456789()/-.:`~pPyk\xa0©备证权经器\u2010\u2011\u2012\u2013" + HALF_MARKS + MARKS, SIGNAL)
    tests = ((is_odd, ODD), (is_wide, WIDE), (is_before_mark, BEFORE))
    for point in (*range(0x3100), *range(0xD800, 0xE000), *range(0xF900, 0x10000)):
        for test, bit in tests:
            if test(chr(point)):
                table[point] |= bit
    table[class_table() == HAN] |= BEFORE
    return table


@cache
def run_table() -> NDArray[np.uint16]:
    """Bytes that the look passes over in runs, uint16 [256]: WORD for a letter, 2 for a space, 0 for what is looked at.

    A pair that may be part of a notice's sign ("opy", "ook", "icp"), and two spaces, end a run: one bit, of SECONDS, of
    the second, and the same bit PAIRED places higher of the first.
    """
    table = np.zeros(256, np.uint16)
    letters = "abcdefghijklmnopqrstuvwxyz"
    table[[ord(letter) for letter in letters + letters.upper()]] = WORD
    table[ord(" ")] = 2
    for bit, (firsts, seconds) in enumerate((("p", "y"), ("o", "k"), ("cC", "pP"), (" ", " ")), start=2):
        table[[ord(first) for first in firsts]] |= 1 << (bit + PAIRED)
        table[[ord(second) for second in seconds]] |= 1 << bit
    return table


@cache
def phrase_tables() -> NDArray[np.uint64]:
    """Hashes of phrases of boilerplate as the kernel makes them, uint64 [3, 1024], open tables: how they begin, those
    that are a line or part of one, those that a line may go on from."""
    tables = np.zeros((3, 1024), np.uint64)
    for table, phrases in zip(tables, (LONGER_STARTS, PHRASES, LINE_BEGINNINGS), strict=True):
        for phrase in sorted(phrases):
            value = 0
            for character in phrase:
                value = ((value ^ ord(character)) * FACTOR) & 0xFFFFFFFFFFFFFFFF
            slot = value >> 54
            while table[slot]:
                slot = (slot + 1) & 1023
            table[slot] = value
    return tables


def tidied(text: str) -> str:
    """A text without odd characters as `characters.tidy_lines` makes it, compiled where it is loaded."""
    return tidied_all([text])[0]


def tidied_all(texts: Sequence[str]) -> list[str]:
    """Each of several texts as `tidied` makes it, by one call of what is compiled."""
    if (compiled := kernels(sum(map(len, texts)))) is None:
        return [tidy_lines(text) for text in texts]
    encoded = [text.encode("utf-8", "surrogatepass") for text in texts]
    data, offsets = joined(encoded)
    out, ends = np.empty(data.size, np.uint8), np.empty(len(texts) + 1, np.int64)
    compiled.tidy_all(data, offsets, property_table(), out, ends)
    made = out[: ends[-1]].tobytes()
    found = []
    for text, before, (start, end) in zip(texts, encoded, pairwise(ends.tolist()), strict=True):
        same = end - start == len(before) and b"\t" not in before  # spaces are taken away, a tab becomes one
        found.append(text if same else made[start:end].decode("utf-8", "surrogatepass"))
    return found
