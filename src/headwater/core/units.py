"""Units: how much text there is, counted alike in Chinese and in English.

A *unit* is one CJK character (Han, kana or Hangul) or one word or number. "don't" is one word, "1,234.5" one number,
"foo_bar" one word. Thresholds, quotas and reports count units: a Chinese sentence has no spaces to count words by.

    count_units("Headwater 处理中文。")      # 5: one word and four characters
"""

from __future__ import annotations

import sys
import unicodedata
from functools import cache

import numpy as np
from numpy.typing import NDArray

OTHER, SPACE, DIGIT, LATIN, LETTER, MARK, HAN, KANA, HANGUL, JOINER, APOSTROPHE, POINT = range(12)
"""Classes of characters. LETTER is a letter of any script that is neither Latin nor CJK; JOINER is the underscore."""

_SLICE = 1 << 22  # characters looked at a time: 20 MB of working memory
_HAN = ((0x3005, 0x3005), (0x3007, 0x3007), (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x3FFFD))
_KANA = ((0x3041, 0x3096), (0x309D, 0x309F), (0x30A1, 0x30FA), (0x30FC, 0x30FF), (0x31F0, 0x31FF), (0xFF66, 0xFF9D))
_HANGUL = ((0x1100, 0x11FF), (0x3131, 0x318E), (0xA960, 0xA97C), (0xAC00, 0xD7A3))
_LATIN = ((0x41, 0x24F), (0x1E00, 0x1EFF), (0x2C60, 0x2C7F), (0xA720, 0xA7FF), (0xFF21, 0xFF5A))


@cache
def class_table() -> NDArray[np.uint8]:
    """The class of each code point, uint8 [0x110000]. Made on first use in about 30 ms."""
    table = np.zeros(0x110000, np.uint8)
    for point in (*range(0x20000), *range(0xE0100, 0xE01F0)):  # Han alone lies between, beyond that nothing
        category = unicodedata.category(chr(point))
        if category[0] == "L":
            table[point] = LETTER
        elif category[0] == "N":
            table[point] = DIGIT
        elif category[0] == "M":
            table[point] = MARK
        elif category[0] == "Z":
            table[point] = SPACE
    for ranges, value in ((_HAN, HAN), (_KANA, KANA), (_HANGUL, HANGUL)):
        for first, last in ranges:
            table[first : last + 1] = value
    for first, last in _LATIN:
        table[first : last + 1][table[first : last + 1] == LETTER] = LATIN
    table[[ord(space) for space in "\t\n\v\f\r\x1c\x1d\x1e\x1f\x85"]] = SPACE
    table[[ord("'"), ord("’")]] = APOSTROPHE
    table[[ord("."), ord(",")]] = POINT
    table[ord("_")] = JOINER
    return table


def classes(text: str) -> NDArray[np.uint8]:
    """The class of each character of `text`, uint8 [len(text)]. 5 bytes of working memory a character."""
    return class_table()[np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)]


def count_units(text: str | bytes) -> int:
    """CJK characters plus words and numbers in `text`, which may be UTF-8 bytes; about 150 MB/s, and 600 compiled,
    which is used in processes that have loaded numba for other things."""
    if "numba" in sys.modules:
        from headwater.core.unit_kernel import count_bytes

        encoded = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
        return int(count_bytes(np.frombuffer(encoded, np.uint8), class_table()))
    return count_plainly(text if isinstance(text, str) else text.decode("utf-8", "surrogatepass"))


def count_plainly(text: str) -> int:
    """`count_units` without compiled code."""
    total = 0
    for start in range(0, len(text), _SLICE):
        left, right = max(0, start - 2), min(len(text), start + _SLICE)
        found = units_of(classes(text[left : right + 1]))
        total += int(np.count_nonzero(found[start - left : right - left]))
    return total


def units_of(kinds: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Where units begin, bool [n], from the classes of the characters, uint8 [n]."""
    if kinds.size == 0:
        return np.zeros(0, np.bool_)
    letter = (kinds == LATIN) | (kinds == LETTER)
    word = letter | (kinds == DIGIT) | (kinds == JOINER)
    before = np.zeros(kinds.size, np.bool_)
    after = np.zeros(kinds.size, np.bool_)
    for inner, sides in ((APOSTROPHE, letter), (POINT, kinds == DIGIT)):
        before[1:], after[:-1] = sides[:-1], sides[1:]
        word = word | ((kinds == inner) & before & after)
    mark = kinds == MARK
    before[1:] = (letter | mark)[:-1]  # a mark goes with its letter; after an emoji it is no word
    word |= mark & before
    before[0], before[1:] = False, word[:-1]
    return (word & ~before & ~mark) | ((kinds >= HAN) & (kinds <= HANGUL))
