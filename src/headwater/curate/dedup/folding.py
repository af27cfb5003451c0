"""One table that says of each code point what class it has and what it counts as in a key.

Keys ignore case, full or half width and, if asked, traditional or simplified form; accents count. The text itself is
never changed by this.

    table = fold_table()
    table[ord("Ａ")] >> CLASS_SHIFT, chr(table[ord("Ａ")] & POINT_MASK)      # (LATIN, "a")
"""

from __future__ import annotations

import json
import unicodedata
from functools import cache
from importlib import resources

import numpy as np
from numpy.typing import NDArray

from headwater.core.units import LATIN, LETTER, class_table

CLASS_SHIFT = 24
POINT_MASK = 0x1FFFFF
_CASED_END = 0x1E944  # no code point from here on has a lower case of its own
_COMPATIBLE = ((0xF900, 0xFAFF), (0xFF01, 0xFFEE), (0x2F800, 0x2FA1D))  # Han variants, full and half width


def _lower(point: int) -> int:
    lowered = chr(point).lower()
    return ord(lowered) if len(lowered) == 1 else point


def traditional_pairs() -> tuple[str, str]:
    """Traditional characters and, position by position, the simplified ones they fold to (OpenCC, Apache-2.0)."""
    data = json.loads(resources.files(__package__).joinpath("data/traditional.json").read_text("utf-8"))
    return data["traditional"], data["simplified"]


@cache
def fold_table(simplify: bool = False) -> NDArray[np.uint32]:
    """Class << CLASS_SHIFT | folded code point, uint32 [0x110000]; 4.4 MB, made on first use in about 0.1 s.

    Folding: lower case; compatibility forms of one character (full-width ASCII, half-width kana, Han variants);
    with `simplify`, traditional to simplified Han, character by character: where one simplified character stands for
    several traditional ones these become equal, which is meant.
    """
    kinds = class_table()
    folded = np.arange(0x110000, dtype=np.uint32)
    for first, last in _COMPATIBLE:
        for point in range(first, last + 1):
            plain = unicodedata.normalize("NFKC", chr(point))
            if len(plain) == 1:
                folded[point] = ord(plain)
    letters = np.flatnonzero((kinds[:_CASED_END] == LATIN) | (kinds[:_CASED_END] == LETTER))
    for point in letters[letters < 0x3000].tolist() + letters[letters > 0xA640].tolist():
        folded[point] = _lower(int(folded[point]))
    folded[ord("’")] = ord("'")
    if simplify:
        traditional, simplified = traditional_pairs()
        to = np.arange(0x110000, dtype=np.uint32)
        to[[ord(character) for character in traditional]] = [ord(character) for character in simplified]
        folded = to[folded]
    return (kinds.astype(np.uint32) << np.uint32(CLASS_SHIFT)) | folded
