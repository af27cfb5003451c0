"""Counting units in UTF-8 bytes, compiled: the same number as `units.count_units`, several times as fast.

Used by `units` in processes that have loaded numba for other kernels; loading it for this alone would take longer than
the counting of a few documents.

    count_bytes(np.frombuffer(text.encode(), np.uint8), class_table())
"""
# ruff: noqa: SIM109 - membership in a tuple compiles to slower code than comparisons

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from headwater.core.units import APOSTROPHE, DIGIT, HAN, HANGUL, JOINER, LATIN, LETTER, MARK, POINT, SPACE


@njit(cache=True, nogil=True)
def _decode(data: Any, at: Any) -> Any:
    """(code point, bytes) of the character at a place of valid UTF-8."""
    first = data[at]
    if first < 0x80:
        return int(first), 1
    if first < 0xE0:
        return (int(first & 0x1F) << 6) | int(data[at + 1] & 0x3F), 2
    if first < 0xF0:
        return (int(first & 0x0F) << 12) | (int(data[at + 1] & 0x3F) << 6) | int(data[at + 2] & 0x3F), 3
    return (
        (int(first & 0x07) << 18)
        | (int(data[at + 1] & 0x3F) << 12)
        | (int(data[at + 2] & 0x3F) << 6)
        | int(data[at + 3] & 0x3F)
    ), 4


@njit(cache=True, nogil=True)
def count_bytes(data: Any, table: Any) -> Any:
    """Units in UTF-8 bytes, uint8 [n]; `table` gives the class of each code point."""
    count: Any = 0
    last: Any = 0  # class of the character before
    inside = False  # the character before belongs to a word
    at = 0
    end = data.size
    runs = np.zeros(256, np.uint8)  # 1 for a letter, 2 for a space
    for byte in range(0x80):
        runs[byte] = 1 if table[byte] == LATIN else 2 if byte == 32 else 0
    while at < end:
        mark: Any = np.int64(runs[data[at]])
        if mark:  # ASCII letters and spaces at once, without a branch at the end of each word: most of English
            before: Any = np.int64(inside)
            while mark:
                count += mark & ~before & 1
                before = mark
                at += 1
                mark = np.int64(runs[data[at]]) if at < end else 0
            inside = before == 1
            last = LATIN if inside else SPACE
            continue
        point, size = _decode(data, at)
        kind = table[point]
        at += size
        if kind == HAN:
            count += 1
            inside, last = False, HAN
            continue
        word = kind == LATIN or kind == LETTER or kind == DIGIT or kind == JOINER
        if not word:
            if kind == MARK:
                word = last == LATIN or last == LETTER or last == MARK
            elif (kind == APOSTROPHE or kind == POINT) and at < end:
                after = table[_decode(data, at)[0]]
                if kind == APOSTROPHE:
                    word = (last == LATIN or last == LETTER) and (after == LATIN or after == LETTER)
                else:
                    word = last == DIGIT and after == DIGIT
        if (word and not inside and kind != MARK) or HAN <= kind <= HANGUL:
            count += 1
        inside = word
        last = kind
    return count
