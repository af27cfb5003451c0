"""Lines of texts as numbers: where each lies, a hash of it that its site enters, and how many words it is worth.

lines = split_lines(data, offsets, sites); lines[lines["kind"] == LINE]["key"]
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

LINES = np.dtype(
    [
        ("text", "<u4"),  # its place in the batch
        ("start", "<u4"),  # bytes in the text, surrounding blanks left out
        ("end", "<u4"),
        ("next", "<u4"),  # where the line after it begins
        ("characters", "<u4"),  # before `start`
        ("length", "<u4"),  # in characters
        ("words", "<f4"),  # 1.6 CJK characters count as one
        ("kind", "u1"),
        ("key", "<u8"),
    ]
)
BLANK, LINE, OTHER = range(3)
"""OTHER: a heading, a line of signs, or one of a fenced block; it may stand anywhere."""

_MIX = np.uint64(0x9E3779B97F4A7C15)
_PRIME = np.uint64(0x00000100000001B3)


def split_lines(data: NDArray[np.uint8], offsets: NDArray[np.int64], sites: NDArray[np.uint64]) -> NDArray[np.void]:
    """LINES of the texts `data[offsets[i]:offsets[i + 1]]`, in order; `sites` [texts] are hashes of their sites."""
    newlines = int(np.count_nonzero(data[offsets[0] : offsets[-1]] == 10))
    lines = np.zeros(newlines + len(offsets) - 1, LINES)
    return lines[: _split(data, offsets, sites, lines)]


@njit(cache=True, nogil=True)
def _split(data, offsets, sites, lines):  # type: ignore[no-untyped-def]
    count = 0
    for text in range(len(offsets) - 1):
        begin, finish = offsets[text], offsets[text + 1]
        start = begin
        characters = 0
        fence = np.uint8(0)
        while start < finish:
            end = start
            while end < finish and data[end] != 10:
                end += 1
            first, last = start, end
            while first < last and (data[first] == 32 or data[first] == 9):
                first += 1
            while last > first and (data[last - 1] == 32 or data[last - 1] == 9):
                last -= 1
            row = lines[count]
            row["text"] = text
            row["start"], row["end"] = first - begin, last - begin
            row["next"] = min(end + 1, finish) - begin
            row["characters"] = characters + (first - start)
            length, words, key = _measure(data, first, last)
            row["length"], row["words"] = length, words
            row["key"] = (key ^ sites[text]) * _MIX
            mark = data[first] if last - first >= 3 else np.uint8(0)
            fenced = (mark == 96 or mark == 126) and data[first + 1] == mark and data[first + 2] == mark
            if first == last:
                row["kind"] = BLANK
            elif fence != 0 or fenced or data[first] == 35 or words == 0:
                row["kind"] = OTHER
            else:
                row["kind"] = LINE
            if fenced:
                if fence == 0:
                    fence = mark
                elif fence == mark:
                    fence = np.uint8(0)
            for at in range(start, end):
                if data[at] & 0xC0 != 0x80:
                    characters += 1
            characters += 1
            count += 1
            start = end + 1
    return count


@njit(cache=True, nogil=True)
def _measure(data, first, last):  # type: ignore[no-untyped-def]
    """(characters, words, hash) of some bytes."""
    length = 0
    cjk = 0
    words = 0
    inside = False
    key = np.uint64(0xCBF29CE484222325)
    for at in range(first, last):
        byte = data[at]
        key = (key ^ np.uint64(byte)) * _PRIME
        if byte & 0xC0 == 0x80:
            continue
        length += 1
        if 0xE3 <= byte <= 0xE9 and not (byte == 0xE3 and data[at + 1] == 0x80):
            cjk += 1
            inside = False
        else:
            letter = 48 <= byte <= 57 or 65 <= byte <= 90 or 97 <= byte <= 122
            letter = letter or (0xC3 <= byte <= 0xED and byte != 0xE2 and byte != 0xE3)
            if letter and not inside:
                words += 1
            inside = letter or (inside and byte == 39)
    key ^= key >> np.uint64(29)
    return length, np.float32(words + cjk / 1.6), key * _MIX
