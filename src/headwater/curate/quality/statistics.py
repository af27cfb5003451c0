"""What is counted in a batch of texts before any rule is asked: once, compiled, for all rules together.

In: texts. Out: `Statistics`, whose attributes are arrays with one number a text, and ratios of them. Characters are
code points; a word is a run of letters or digits that are not CJK; a unit is a word or one CJK character; a line is
one that is not blank; the first copy of a line or paragraph is no duplicate.

    measure(["今天天气很好。", "Fine weather today."]).units     # [6, 3]
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headwater.core.units import class_table
from headwater.curate.quality import kernels
from headwater.curate.quality.kernels import BULLET, CLOSING, COLUMNS, FACTOR, SENTENCE

Numbers = NDArray[np.float64]

LATIN, CJK, CODE = 0, 1, 2
MANY_LINES = 5
KINDS = ("latin", "cjk", "code")
"""Kinds of text with limits of their own: text of words (any alphabet), Chinese, Japanese and Korean, program code."""

_SENTENCE_MARKS = ".!?。！？…．｡"
_CLOSING_MARKS = _SENTENCE_MARKS + "\"'”’」』》）)；;：:»"
_BULLETS = "•‣▶◀◦■□▪▫–●·-*+・※◆◇★☆►"
_STOP_CHARACTERS = "的一是不了在有人我他这个们来到时大地为子中你说生国年着就那"
_STOP_WORDS = {
    "en": "the be to of and that have with is for in it on as was this are",
    "de": "der die und den von zu das mit ist ein dem sich des auf nicht",
    "fr": "de la le et les un une du est que dans pour qui",
    "es": "el y los del se las por con su para como no",
    "it": "il di che per non del sono",
    "pt": "e o da em um uma os na",
    "nl": "het een van en dat niet te",
    "ru": "и в не на что с по как это он к из у за от так же но бы",
}


class Statistics:
    """Numbers about a batch of texts. Each name of `kernels.COLUMNS` is an attribute, float64 [texts]."""

    def __init__(self, table: Numbers, kinds: NDArray[np.uint8], texts: Sequence[str]) -> None:
        self.table, self.kinds, self.texts = table, kinds, texts

    def __getattr__(self, name: str) -> Numbers:
        if name not in _PLACES:
            raise AttributeError(name)
        return self.table[:, _PLACES[name]]

    def __len__(self) -> int:
        return len(self.table)

    def many_lines(self, values: Numbers) -> Numbers:
        """`values` where a text has at least 5 lines: in fewer, shares of lines say nothing. NaN elsewhere."""
        return np.where(self.lines >= MANY_LINES, values, np.nan)

    @cached_property
    def visible(self) -> Numbers:
        """Characters that are not white space."""
        return self.characters - self.white_space

    @cached_property
    def cjk(self) -> Numbers:
        """CJK characters."""
        return self.han + self.kana + self.hangul

    @cached_property
    def words_worth(self) -> Numbers:
        """Length in words, 1.6 CJK characters counting as one: a measure in which Chinese and English are alike."""
        return self.words + self.cjk / 1.6

    def count(self, *phrases: str) -> Numbers:
        """How often any of the phrases stands in each text."""
        return np.array([sum(map(text.count, phrases)) for text in self.texts], np.float64)


_PLACES = {name: place for place, name in enumerate(COLUMNS)}


def ratio(part: Numbers, whole: Numbers) -> Numbers:
    """part / whole, NaN where there is nothing to be a part of: NaN breaks no limit."""
    return np.divide(part, whole, out=np.full(len(part), np.nan), where=whole > 0)


def measure(texts: Sequence[str], code: Sequence[bool] | None = None) -> Statistics:
    """Count all that rules ask for. `code` says which texts are program code; the others are `cjk` if most of their
    words' worth is CJK, else `latin`."""
    encoded = [text.encode("utf-8", "surrogatepass") for text in texts]
    offsets = np.zeros(len(texts) + 1, np.int64)
    np.cumsum([len(data) for data in encoded], out=offsets[1:])
    table = np.zeros((len(texts), len(COLUMNS)))
    joined = np.frombuffer(bytearray(b"".join(encoded)), np.uint8)
    if len(texts):
        with np.errstate(over="ignore"):  # hashes wrap; the interpreter would warn
            _scanner(joined.size)(joined, offsets, class_table(), _marks(), _stops(), table)
    found = Statistics(table, np.zeros(len(texts), np.uint8), texts)
    found.kinds[found.cjk > 1.6 * found.words] = CJK
    if code is not None:
        found.kinds[np.asarray(code, np.bool_)] = CODE
    return found


SMALL_BYTES = 48 << 10
"""Up to this much text is counted by the interpreter (2 s) rather than wait for the compiler (9 s, once a machine)."""


def _scanner(size: int) -> Any:
    ready = size > SMALL_BYTES or kernels.scan.signatures or _compiled_before()
    return kernels.scan if ready else _interpreted()


def _compiled_before() -> bool:
    """Whether numba's cache holds the kernel, so that it is there at once."""
    cache_file = getattr(kernels.scan._cache, "_cache_file", None)
    return cache_file is not None and Path(cache_file._index_path).exists()


@cache
def _interpreted() -> Any:
    """`kernels.scan` as plain Python: the same source, not compiled."""
    spec = importlib.util.spec_from_file_location(f"{kernels.__name__}_interpreted", kernels.__file__)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.scan


@cache
def _marks() -> NDArray[np.uint8]:
    table = np.zeros(0x10000, np.uint8)
    for marks, bit in ((_CLOSING_MARKS, CLOSING), (_BULLETS, BULLET), (_SENTENCE_MARKS, SENTENCE)):
        for mark in marks:
            table[ord(mark)] |= bit
    for number, character in enumerate(_STOP_CHARACTERS, start=1):
        table[ord(character)] |= number << 3
    return table


@cache
def _stops() -> NDArray[np.uint64]:
    """Hashes of frequent words as the kernel makes them, an open table."""
    table = np.zeros(1024, np.uint64)
    for word in dict.fromkeys(" ".join(_STOP_WORDS.values()).split()):
        value = 0
        for letter in word:
            value = ((value ^ ord(letter)) * int(FACTOR)) & 0xFFFFFFFFFFFFFFFF
            value ^= value >> 32
        slot = value >> 54
        while table[slot]:
            slot = (slot + 1) & 1023
        table[slot] = value
    return table
