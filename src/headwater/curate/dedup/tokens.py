"""UTF-8 bytes to units: the one tokeniser of all keys and comparisons, compiled, without Python objects.

A *unit* is one CJK character or one word or number, exactly as `headwater.core.units` counts them; its hash is of the
folded characters (`folding`) without underscores, so "Don’t", "DON'T" and "_don't_" hash alike. Punctuation and symbols
are no units.
A *shingle* is the hash of `width` units in a row.

    unit_hashes("Headwater 处理中文。")[0]        # 5 hashes, with their byte ranges in [1] and [2]
"""

# ruff: noqa: SIM109 - membership in a tuple compiles to slower code than comparisons
from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from headwater.core.units import APOSTROPHE, DIGIT, HAN, HANGUL, JOINER, LATIN, LETTER, MARK, POINT, SPACE
from headwater.curate.dedup.folding import CLASS_SHIFT, POINT_MASK, fold_table
from headwater.curate.dedup.kernels import kernel

Bytes = NDArray[np.uint8]
Hashes = NDArray[np.uint64]
Offsets = NDArray[np.int64]

_WORD_FACTOR = np.uint64(0x9E3779B97F4A7C15)
SHINGLE_FACTOR = np.uint64(0xD6E8FEB86659FD93)
_MIX_1 = np.uint64(0xFF51AFD7ED558CCD)
_MIX_2 = np.uint64(0xC4CEB9FE1A85EC53)
_SHIFT = np.uint64(32)
_CLASS = np.uint32(CLASS_SHIFT)
_POINT = np.uint32(POINT_MASK)
_REPLACEMENT = 0xFFFD


@kernel
def mix(value: Any) -> Any:
    """Spread all bits of a uint64 over all bits: the finaliser of MurmurHash3."""
    value ^= value >> _SHIFT
    value *= _MIX_1
    value ^= value >> _SHIFT
    value *= _MIX_2
    value ^= value >> _SHIFT
    return value


@kernel
def decode(data: Any, at: Any, end: Any) -> Any:
    """(code point, bytes) of the character at `at`; bytes that are no UTF-8 count one by one as U+FFFD."""
    first = np.int64(data[at])
    if first < 0x80:
        return first, 1
    if 0xC2 <= first < 0xE0 and at + 1 < end:
        return ((first & 0x1F) << 6) | (np.int64(data[at + 1]) & 0x3F), 2
    if 0xE0 <= first < 0xF0 and at + 2 < end:
        return ((first & 0x0F) << 12) | ((np.int64(data[at + 1]) & 0x3F) << 6) | (np.int64(data[at + 2]) & 0x3F), 3
    if 0xF0 <= first < 0xF5 and at + 3 < end:
        point = (
            ((first & 0x07) << 18)
            | ((np.int64(data[at + 1]) & 0x3F) << 12)
            | ((np.int64(data[at + 2]) & 0x3F) << 6)
            | (np.int64(data[at + 3]) & 0x3F)
        )
        if point < 0x110000:
            return point, 4
    return _REPLACEMENT, 1


@kernel
def tokenize(data: Any, begin: Any, end: Any, table: Any, hashes: Any, starts: Any, ends: Any) -> Any:
    """Units of data[begin:end] into `hashes`, `starts`, `ends` (byte positions in `data`); returns how many.

    The arrays need (end - begin) // 2 + 1 places: no unit takes less than two bytes with what parts it from the next.
    """
    count = 0
    inside = False  # in a word
    last: Any = 0  # class of the character before
    word = np.uint64(0)
    at = begin
    while at < end:
        point, size = np.int64(data[at]), 1
        if point >= 0x80:
            point, size = decode(data, at, end)
        entry = table[point]
        kind = np.int64(entry >> _CLASS)
        folded = np.uint64(entry & _POINT)
        if kind == LATIN or kind == LETTER or kind == DIGIT or kind == JOINER:
            if not inside:
                inside = True
                starts[count] = at
                word = np.uint64(0)
            if kind != JOINER:  # _emphasis_ is the word alone
                word = (word ^ folded) * _WORD_FACTOR
                word ^= word >> _SHIFT
        elif HAN <= kind <= HANGUL:
            if inside:
                hashes[count] = mix(word)
                ends[count] = at
                count += 1
                inside = False
            starts[count] = at
            ends[count] = at + size
            hashes[count] = mix((folded + np.uint64(1)) * SHINGLE_FACTOR)
            count += 1
        elif inside:
            joined = False
            if kind == MARK:
                joined = last == LATIN or last == LETTER or last == MARK
                if joined:
                    word = (word ^ folded) * _WORD_FACTOR
                    word ^= word >> _SHIFT
            elif (kind == APOSTROPHE or kind == POINT) and at + size < end:
                after, _ = decode(data, at + size, end)
                follows = np.int64(table[after] >> _CLASS)
                if kind == APOSTROPHE:
                    joined = (last == LATIN or last == LETTER) and (follows == LATIN or follows == LETTER)
                else:
                    joined = last == DIGIT and follows == DIGIT
                if joined:
                    word = (word ^ folded) * _WORD_FACTOR
                    word ^= word >> _SHIFT
            if not joined:
                hashes[count] = mix(word)
                ends[count] = at
                count += 1
                inside = False
        last = kind
        at += size
    if inside:
        hashes[count] = mix(word)
        ends[count] = end
        count += 1
    return count


@kernel
def shingle(hashes: Any, count: Any, width: Any) -> Any:
    """Replace unit hashes by hashes of `width` units in a row, in place; returns how many: count - width + 1, or 0."""
    if count < width:
        return 0
    drop = np.uint64(1)
    for _ in range(width):
        drop *= SHINGLE_FACTOR
    rolling: Any = np.uint64(0)
    for index in range(width):
        rolling = rolling * SHINGLE_FACTOR + hashes[index]
    for index in range(count - width):
        oldest = hashes[index]
        hashes[index] = mix(rolling)
        rolling = rolling * SHINGLE_FACTOR + hashes[index + width] - oldest * drop
    hashes[count - width] = mix(rolling)
    return count - width + 1


@kernel
def fold_text(data: Any, begin: Any, end: Any, table: Any, out: Any) -> Any:
    """Folded characters of data[begin:end] into `out`, uint32 [end - begin], runs of white space as one space, none at
    the ends; returns how many. Unlike units this keeps punctuation and symbols: "C" is not "C++"."""
    count = 0
    gap = False
    at = begin
    while at < end:
        point, size = decode(data, at, end)
        at += size
        entry = table[point]
        if np.int64(entry >> _CLASS) == SPACE:
            gap = count > 0
            continue
        if gap:
            out[count] = 32
            count += 1
            gap = False
        out[count] = entry & _POINT
        count += 1
    return count


def scratch(bytes_: int) -> tuple[Hashes, Offsets, Offsets]:
    """Arrays `tokenize` can fill from a text of this many bytes."""
    places = bytes_ // 2 + 1
    return np.empty(places, np.uint64), np.empty(places, np.int64), np.empty(places, np.int64)


def utf8(text: str) -> Bytes:
    """The text's UTF-8 bytes, uint8 [n], lone surrogates as three bytes each."""
    return np.frombuffer(bytearray(text.encode("utf-8", "surrogatepass")), np.uint8)


def characters_before(data: Bytes) -> NDArray[np.int32]:
    """How many characters end before each byte of UTF-8 text, and in all, int32 [n + 1]."""
    return np.concatenate([[0], np.cumsum((data & 0xC0) != 0x80)]).astype(np.int32)


def unit_hashes(text: str, *, simplify: bool = False) -> tuple[Hashes, Offsets, Offsets]:
    """Hash, first byte and end byte of each unit of a text, [units] each."""
    data = utf8(text)
    hashes, starts, ends = scratch(data.size)
    count = tokenize(data, 0, data.size, fold_table(simplify), hashes, starts, ends)
    return hashes[:count], starts[:count], ends[:count]
