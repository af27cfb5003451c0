"""Where words begin in a window of tokens, for Latin scripts and for Chinese: the units of whole-word masking.

In: windows of token ids and the documents they belong to. Out: for each token whether a unit begins there. A unit is
the smallest run of whole tokens made of whole words:

- letters and digits of any alphabet: a word as spaces and punctuation bound it, with the space before it ("don't" and
  "1,234.5" are one);
- Chinese: words of the likeliest segmentation (below). A token that holds two words keeps them together;
- kana, Hangul: runs of the script;
- anything else (punctuation, line breaks): each token alone.

Tokens that are bytes of a character count as that character, so words hold together whatever they are spelled with.

Chinese is segmented by the most probable path through a dictionary with counts (jieba's method without its guesses at
unknown words): characters that make no word of the dictionary are words by themselves. The dictionary comes with the
package, so that units are the same on every machine: `words_zh.txt.zst`, 148 thousand words, is every word of at most 8
Han characters counted at least 4 times in dict.txt of jieba 0.42.1 (Sun Junyi, MIT licence), one "word count" a line.
Its words are simplified; traditional characters are looked up as their simplified counterparts, by the pairs in
`simplified_zh.txt.zst` (TSCharacters of OpenCC, Apache-2.0, the first counterpart of each).

    words = WordBorders(tokenizer); words.begins(tokens, documents)       # bool [rows, seq]

Compiled by numba, outside the interpreter's lock; measured on one busy core with a vocabulary of 8,000: 2
million Chinese tokens a second, 5 million English ones.
"""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from importlib.resources import files
from itertools import pairwise
from math import log
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from headwater.core.units import (
    APOSTROPHE,
    DIGIT,
    HAN,
    HANGUL,
    JOINER,
    KANA,
    LATIN,
    LETTER,
    MARK,
    POINT,
    class_table,
)
from headwater.tokenizer import Tokenizer

DICTIONARY, SIMPLIFIED = "words_zh.txt.zst", "simplified_zh.txt.zst"
LONGEST = 8
"""Characters of the longest word in the dictionary."""

NONE, BLANK = 12, 13
"""Classes besides those of `core.units`: bytes that are no character, and the space, which belongs to the word behind
it."""

BEYOND = 0x110000
"""Stands for bytes that are no character."""

_SLOTS = 1 << 19
_MULTIPLIER = 0x9E3779B97F4A7C15

Array = NDArray[Any]


def _compiled(function: Any) -> Any:
    """Compiled at first use, kept on disk where any place for that can be written."""
    made = njit(nogil=True)(function)
    with suppress(RuntimeError):
        made.enable_caching()
    return made


@_compiled
def _mix(state: Any, point: Any) -> Any:
    value = (state ^ np.uint64(point)) * np.uint64(_MULTIPLIER)
    return value ^ (value >> np.uint64(29))


@_compiled
def _build(points: Array, ends: Array, counts: Array, keys: Array, scores: Array, log_total: float) -> None:
    """Fill an open-addressing table: hash of a word -> its log probability. points: all words, one after another."""
    mask = np.uint64(len(keys) - 1)
    start = 0
    for word in range(len(ends)):
        state = np.uint64(1)
        for index in range(start, ends[word]):
            state = _mix(state, points[index])
        slot = state & mask
        while keys[slot] != 0:
            slot = (slot + np.uint64(1)) & mask
        keys[slot] = state
        scores[slot] = np.log(counts[word]) - log_total
        start = ends[word]


@_compiled
def _segment(points: Array, size: int, keys: Array, scores: Array, unknown: float, begins: Array, best: Array) -> None:
    """Mark in begins[:size] where the words of the likeliest segmentation begin. best: working space [size + 1].
    points: simplified."""
    mask = np.uint64(len(keys) - 1)
    best[size] = 0.0
    lengths = np.ones(size, np.int64)
    for start in range(size - 1, -1, -1):
        state = np.uint64(1)
        found = -np.inf
        for length in range(1, min(LONGEST, size - start) + 1):
            state = _mix(state, points[start + length - 1])
            slot = state & mask
            while keys[slot] != 0 and keys[slot] != state:
                slot = (slot + np.uint64(1)) & mask
            if keys[slot] == state:
                score = scores[slot]
            elif length == 1:
                score = unknown
            else:
                continue
            score += best[start + length]
            if score > found:
                found = score
                lengths[start] = length
        best[start] = found
    begins[:size] = False
    start = 0
    while start < size:
        begins[start] = True
        start += lengths[start]


@_compiled
def _letterlike(kind: int) -> bool:
    return kind in (LATIN, LETTER, DIGIT, MARK, JOINER)


@_compiled
def _same_unit(before: int, left: int, right: int, after: int) -> bool:
    """Whether two neighbouring characters belong together, Chinese apart, from their classes and those around them."""
    if _letterlike(right) and (_letterlike(left) or left == BLANK):
        return True
    if left in (KANA, HANGUL) and left == right:
        return True
    if right == APOSTROPHE:
        return _letterlike(left) and _letterlike(after)
    if left == APOSTROPHE:
        return _letterlike(before) and _letterlike(right)
    if right == POINT:
        return left == DIGIT and after == DIGIT
    return left == POINT and before == DIGIT and right == DIGIT


@_compiled
def _characters(
    tokens: Array, fresh: Array, special: Array, offsets: Array, raw: Array, points: Array, breaks: Array, heads: Array
) -> int:
    """Decode one row: code points, where a text begins anew, and the character each token begins with (-1: inside one).

    Returns the number of characters. Bytes that continue a character whose beginning is not here count as one.
    """
    count, need, stray, anew = 0, 0, False, True
    for i in range(len(tokens)):
        token = tokens[i]
        heads[i] = -1
        if fresh[i]:
            need, stray, anew = 0, False, True
        if special[token]:
            continue
        for index in range(offsets[token], offsets[token + 1]):
            byte = np.uint32(raw[index])
            if byte & 0xC0 == 0x80:
                if need > 0:
                    points[count - 1] = (points[count - 1] << np.uint32(6)) | (byte & np.uint32(0x3F))
                    need -= 1
                    continue
                if stray:
                    continue
                stray = True
                point = np.uint32(BEYOND)
            else:
                stray = False
                need = 0 if byte < 0x80 else (1 if byte < 0xE0 else (2 if byte < 0xF0 else 3))
                point = byte if need == 0 else byte & np.uint32(0x3F >> need)
            points[count] = point
            breaks[count] = anew
            anew = False
            if index == offsets[token]:
                heads[i] = count
            count += 1
    return count


@_compiled
def _borders(
    points: Array, kinds: Array, breaks: Array, size: int, simple: Array, keys: Array, scores: Array, unknown: float
) -> Array:
    """For each character whether a unit begins there."""
    borders = np.ones(size, np.bool_)
    cuts = np.empty(size, np.bool_)
    best = np.empty(size + 1, np.float64)
    start = 0
    for i in range(1, size):
        if breaks[i] or (kinds[i - 1] == HAN and kinds[i] == HAN):
            continue
        before = kinds[i - 2] if i > 1 and not breaks[i - 1] else NONE
        after = kinds[i + 1] if i + 1 < size and not breaks[i + 1] else NONE
        borders[i] = not _same_unit(before, kinds[i - 1], kinds[i], after)
    while start < size:
        end = start + 1
        if kinds[start] == HAN:
            while end < size and kinds[end] == HAN and not breaks[end]:
                end += 1
            for i in range(start, end):
                points[i] = simple[points[i]]
            _segment(points[start:end], end - start, keys, scores, unknown, cuts, best)
            for i in range(start + 1, end):
                borders[i] = cuts[i - start]
        start = end
    return borders


@_compiled
def _begins(
    tokens: Array,
    documents: Array,
    offsets: Array,
    raw: Array,
    special: Array,
    table: Array,
    simple: Array,
    keys: Array,
    scores: Array,
    unknown: float,
    out: Array,
) -> None:
    """out[row, i]: whether a unit begins at token i."""
    rows, seq = tokens.shape
    heads = np.empty(seq, np.int64)
    for row in range(rows):
        most = 0
        fresh = np.ones(seq, np.bool_)
        for i in range(seq):
            most += offsets[tokens[row, i] + 1] - offsets[tokens[row, i]]
            if i > 0 and documents[row, i] == documents[row, i - 1]:
                fresh[i] = special[tokens[row, i]] or special[tokens[row, i - 1]]
        points, breaks = np.empty(most, np.uint32), np.empty(most, np.bool_)
        size = _characters(tokens[row], fresh, special, offsets, raw, points, breaks, heads)
        kinds = np.empty(size, np.uint8)
        for i in range(size):
            kinds[i] = NONE if points[i] >= BEYOND else (BLANK if points[i] == 0x20 else table[points[i]])
        borders = _borders(points, kinds, breaks, size, simple, keys, scores, unknown)
        for i in range(seq):
            out[row, i] = fresh[i] or (heads[i] >= 0 and borders[heads[i]])


def _fields(name: str) -> list[str]:
    """What stands in a file of pairs behind its first line, which says where it comes from."""
    import zstandard

    packed = files("headwater.dataset").joinpath(name).read_bytes()
    return zstandard.ZstdDecompressor().decompress(packed).decode().partition("\n")[2].split()


@cache
def _simplified() -> Array:
    """Code point -> code point of its simplified counterpart, uint32 [0x110000]."""
    fields, table = _fields(SIMPLIFIED), np.arange(BEYOND, dtype=np.uint32)
    table[[ord(point) for point in fields[0::2]]] = [ord(point) for point in fields[1::2]]
    return table


@cache
def _dictionary() -> tuple[Array, Array, float]:
    """(hashes, log probabilities, log probability of a character that is in no word)."""
    fields = _fields(DICTIONARY)
    words, counts = fields[0::2], np.array(fields[1::2], dtype=np.int64)
    points = np.frombuffer("".join(words).encode("utf-32-le"), np.uint32)
    ends = np.cumsum([len(word) for word in words])
    keys, scores = np.zeros(_SLOTS, np.uint64), np.zeros(_SLOTS, np.float64)
    log_total = log(int(counts.sum()))
    _build(points, ends, counts, keys, scores, log_total)
    return keys, scores, -log_total


def segment(text: str) -> list[str]:
    """The words of a run of Han characters."""
    keys, scores, unknown = _dictionary()
    points = _simplified()[np.frombuffer(text.encode("utf-32-le"), np.uint32)]
    begins = np.zeros(len(text), np.bool_)
    _segment(points, len(text), keys, scores, unknown, begins, np.empty(len(text) + 1))
    starts = [*np.flatnonzero(begins).tolist(), len(text)]
    return [text[a:b] for a, b in pairwise(starts)]


class WordBorders:
    """Units of one tokenizer's windows. Made once (0.3 s for 32 thousand tokens); safe to use from several threads."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        size = tokenizer.vocab_size
        self.special = np.zeros(size, np.bool_)
        self.special[sorted(tokenizer.special_ids)] = True
        """Tokens that stand for no text."""
        texts = [b"" if self.special[token] else tokenizer.token_bytes(token) for token in range(size)]
        self._offsets = np.cumsum([0, *map(len, texts)])
        self._raw = np.frombuffer(b"".join(texts), np.uint8)

    def begins(self, tokens: NDArray[np.int64], documents: NDArray[np.int32]) -> NDArray[np.bool_]:
        """Whether a unit begins at each token. tokens, documents: [rows, seq]; a new document begins a unit, and so do
        a special token and the token behind it."""
        out = np.empty(tokens.shape, np.bool_)
        tokens, documents = np.ascontiguousarray(tokens), np.ascontiguousarray(documents)
        keys, scores, unknown = _dictionary()
        vocabulary = (self._offsets, self._raw, self.special)
        _begins(tokens, documents, *vocabulary, class_table(), _simplified(), keys, scores, unknown, out)
        return out
