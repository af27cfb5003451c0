"""One compiled pass over texts that counts all the quality rules ask for, and one over units for repetition.

In: the UTF-8 bytes of a batch of texts, one after the other, and where each begins. Out: a row of numbers a text, in
the columns of `COLUMNS`. No Python objects, so a rule costs no more than the arithmetic on these columns.

    scan(data, offsets, class_table(), mark_table(), stop_table(), out)     # see statistics.measure
"""

# ruff: noqa: SIM109 - membership in a tuple compiles to slower code than comparisons
from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
from numba import njit

from headwater.core.units import APOSTROPHE, DIGIT, HAN, HANGUL, JOINER, LATIN, LETTER, MARK, POINT, SPACE

COLUMNS = (
    "characters", "white_space", "newlines", "letters", "digits", "han", "kana", "hangul", "symbols",
    "units", "words", "alphabetic_words", "word_characters", "longest_word", "hash_signs", "ellipses", "replacements",
    "braces", "lines", "line_characters", "bullet_lines", "ellipsis_lines", "closed_lines", "lines_to_30",
    "lines_to_10", "duplicate_lines", "duplicate_line_characters", "paragraphs", "duplicate_paragraphs",
    "duplicate_paragraph_characters", "sentences", "stop_words", "stop_characters", "longest_line", "longest_run",
    "top_2", "top_3", "top_4", "repeated_5", "repeated_6", "repeated_7", "repeated_8", "repeated_9", "repeated_10",
)  # fmt: skip
"""What is counted; `statistics.Statistics` says what each means."""

(
    _CHARACTERS, _WHITE, _NEWLINES, _LETTERS, _DIGITS, _HAN, _KANA, _HANGUL, _SYMBOLS, _UNITS, _WORDS, _ALPHABETIC,
    _WORD_CHARACTERS, _LONGEST_WORD, _HASHES, _ELLIPSES, _REPLACEMENTS, _BRACES, _LINES, _LINE_CHARACTERS,
    _BULLET_LINES, _ELLIPSIS_LINES, _CLOSED_LINES, _TO_30, _TO_10, _DUPLICATE_LINES, _DUPLICATE_LINE_CHARACTERS,
    _PARAGRAPHS, _DUPLICATE_PARAGRAPHS, _DUPLICATE_PARAGRAPH_CHARACTERS, _SENTENCES, _STOP_WORDS, _STOP_CHARACTERS,
    _LONGEST_LINE, _LONGEST_RUN, _TOP,
) = range(36)  # fmt: skip
_REPEATED = _TOP + 3

MOST_UNITS = 1 << 17
"""Units at the beginning of a text in which repetition is looked for."""

WIDTHS = np.array([[2, 3, 4, 5, 6, 7, 8, 9, 10], [3, 5, 7, 8, 10, 11, 13, 14, 16]], np.int64)
"""Units in a repeated passage, for text of words and for CJK text, where a word has about 1.6 characters."""

CLOSING, BULLET, SENTENCE = 1, 2, 4
"""Bits of the mark table: ends a line as a sentence does; begins a list item; ends a sentence. The five bits above are
the number of a frequent character, or 0."""

FACTOR = np.uint64(0x9E3779B97F4A7C15)
_MIX = np.uint64(0xFF51AFD7ED558CCD)
_SHIFT = np.uint64(32)
_ONE = np.uint64(1)
_STAMP_SHIFT, _COUNT_SHIFT = np.uint64(36), np.uint64(18)
_ONE_MORE, _PLACE = np.uint64(1 << 18), np.uint64((1 << 18) - 1)
"""Layout of an entry's second half: a stamp, how often the key was met, and where first; `MOST_UNITS` fit into each."""


COMPILED = not __name__.endswith("_interpreted")
"""False in the copy of this module that `statistics` makes for a few short texts, when compiling would take longer."""


def kernel(function: Callable[..., Any]) -> Any:
    """Compile on first use, cached on disk where that can be written. All kernels that call one another stand in this
    file, which is what numba looks at."""
    if not COMPILED:
        return function
    compiled = njit(nogil=True)(function)
    with suppress(RuntimeError):
        compiled.enable_caching()
    return compiled


@kernel
def _mixed(value: Any) -> Any:
    value ^= value >> _SHIFT
    value *= _MIX
    value ^= value >> _SHIFT
    return value


@kernel
def _find(entries: Any, mask: Any, stamp: Any, key: Any) -> Any:
    """(slot, whether it was there) of a key in an open table, uint64 [slots, 2]. An entry is the key and, beside it in
    the same line of the cache, stamp, count and place; it counts only with the right stamp."""
    slot = np.int64(key & mask)
    while np.int64(entries[slot, 1] >> _STAMP_SHIFT) == stamp:
        if entries[slot, 0] == key:
            return slot, True
        slot = np.int64(np.uint64(slot + 1) & mask)
    entries[slot, 0] = key
    entries[slot, 1] = np.uint64(stamp) << _STAMP_SHIFT
    return slot, False


@kernel
def _decode(data: Any, at: Any, end: Any) -> Any:
    """(code point, bytes); the text is UTF-8, lone surrogates as three bytes, so only the end needs care."""
    first = np.int64(data[at])
    if first < 0xE0 and at + 1 < end:
        return ((first & 0x1F) << 6) | (np.int64(data[at + 1]) & 0x3F), 2
    if first < 0xF0 and at + 2 < end:
        return ((first & 0x0F) << 12) | ((np.int64(data[at + 1]) & 0x3F) << 6) | (np.int64(data[at + 2]) & 0x3F), 3
    if at + 3 < end:
        point = (
            ((first & 0x07) << 18)
            | ((np.int64(data[at + 1]) & 0x3F) << 12)
            | ((np.int64(data[at + 2]) & 0x3F) << 6)
            | (np.int64(data[at + 3]) & 0x3F)
        )
        return min(point, 0x10FFFF), 4
    return 0xFFFD, 1


@kernel
def _repetition(prefix: Any, before: Any, count: Any, widths: Any, work: Any, stamp: Any, row: Any) -> Any:
    """Shares of the most frequent and of the repeated passages into `row`; returns the next free stamp.

    `prefix` has the running hash before each unit, `before` the characters of units before it. A repeated passage
    begins where a narrower one that repeats begins, so each width looks only at what the last one found.
    """
    entries, slots, candidates, repeated = work
    total = before[count]
    found = count
    for place in range(9):
        width = widths[place]
        power, size = _ONE, 16
        for _ in range(width):
            power *= FACTOR
        stamp += 1
        while size < 2 * found:
            size *= 2
        mask = np.uint64(size - 1)
        for index in range(found):
            at = index if place == 0 else candidates[index]
            if at + width > count:
                found = index
                break
            slot, there = _find(entries, mask, stamp, _mixed(prefix[at + width] - prefix[at] * power))
            if there:
                entries[slot, 1] += _ONE_MORE
                repeated[index] = repeated[np.int64(entries[slot, 1] & _PLACE)] = 1
            else:
                entries[slot, 1] |= _ONE_MORE | np.uint64(index)
            slots[index] = slot
        most, covered, covered_to, left = 0, 0, 0, 0
        for index in range(found):
            if repeated[index] == 0:
                continue
            repeated[index] = 0
            entry = entries[slots[index], 1]
            at = index if place == 0 else candidates[index]
            candidates[left] = at
            left += 1
            if place < 3:
                most = max(most, np.int64((entry >> _COUNT_SHIFT) & _PLACE) * (before[at + width] - before[at]))
            elif np.int64(entry & _PLACE) != index:
                covered += before[at + width] - before[max(at, covered_to)]
                covered_to = at + width
        row[_TOP + place] = min(1.0, (most if place < 3 else covered) / total)
        found = left
        if found == 0:
            break
    return stamp


@kernel
def scan(data: Any, offsets: Any, table: Any, marks: Any, stops: Any, out: Any) -> None:
    """Fill `out`, float64 [texts, columns], zeros before. `table` has the class of each code point, `marks` its bits,
    `stops` hashes of frequent words, an open table of 1024 slots."""
    most: Any = 0
    for number in range(offsets.size - 1):
        most = max(most, offsets[number + 1] - offsets[number])
    places = min(most // 2 + 2, MOST_UNITS + 1)
    size = 16
    while size < 2 * places:
        size *= 2
    prefix, before = np.empty(places + 1, np.uint64), np.empty(places + 1, np.int64)
    entries = np.zeros((size, 2), np.uint64)
    work = (entries, np.empty(places, np.int64), np.empty(places, np.int64), np.zeros(places, np.uint8))
    seen = np.zeros(1024, np.int64)
    stamp = 0
    for number in range(offsets.size - 1):
        stamp += 1
        _scan_text(
            data, offsets[number], offsets[number + 1], table, marks, stops, seen, number + 1, prefix, before,
            entries, stamp, out[number],
        )  # fmt: skip
        row = out[number]
        looked: Any = min(np.int64(row[_UNITS]), MOST_UNITS)
        if looked > 0:
            cjk = row[_HAN] + row[_KANA] + row[_HANGUL]
            script = 1 if cjk > 1.6 * row[_WORDS] else 0
            if script:  # a long identifier weighs no more than a character
                for index in range(looked + 1):
                    before[index] = index
            stamp = _repetition(prefix, before, looked, WIDTHS[script], work, stamp, row)


@kernel
def _scan_text(
    data: Any, begin: Any, end: Any, table: Any, marks: Any, stops: Any, seen: Any, text: Any, prefix: Any,
    before: Any, entries: Any, stamp: Any, row: Any,
) -> None:  # fmt: skip
    mask = np.uint64(len(entries) - 1)
    prefix[0], before[0] = np.uint64(0), 0
    units, unit_characters = 0, 0
    inside = alphabetic = False  # in a word; one that has a letter
    word, word_length, run = np.uint64(0), 0, 0
    last_kind: Any = 0
    last_point: Any = -1
    line = paragraph = np.uint64(0)
    line_length = line_content = 0  # characters of the line, and those up to the last that is no space
    first_point = end_point = before_end = -1  # of the line: first, last and last but one that are no space
    paragraph_length = paragraph_lines = 0
    held = 0  # lines and paragraphs in the table, which holds as many as there may be units
    most = len(entries) // 2
    frequent = np.uint64(0)
    # what is counted for single characters and words stays in registers
    white = letters = digits = symbols = words = word_characters = longest_word = alphabetic_words = longest_run = 0
    characters: Any = 0
    at = begin
    while at <= end:
        point: Any = 10
        width: Any = 1  # a line end after the last character closes line, word and paragraph
        if at < end:
            point = np.int64(data[at])
            if point >= 0x80:
                point, width = _decode(data, at, end)
            elif table[point] == LATIN:  # a run of ASCII letters at once
                start = at
                if not inside:
                    inside, word, word_length = True, np.uint64(0), 0
                alphabetic = True
                if first_point < 0:
                    first_point = point
                while at < end and data[at] < 0x80 and table[data[at]] == LATIN:
                    point = np.int64(data[at])
                    word = (word ^ np.uint64(point | 32)) * FACTOR
                    word ^= word >> _SHIFT
                    line = (line ^ np.uint64(point)) * FACTOR
                    line ^= line >> _SHIFT
                    run = run + 1 if point == last_point else 1
                    longest_run = max(longest_run, run)
                    before_end, end_point, last_point = end_point, point, point
                    at += 1
                length = at - start
                characters, letters, word_length = characters + length, letters + length, word_length + length
                line_length += length
                line_content, last_kind = line_length, np.int64(LATIN)
                continue
            characters += 1
        kind = np.int64(table[point])
        # words and units
        ended = False
        if kind == LATIN or kind == LETTER or kind == DIGIT or kind == JOINER:
            if not inside:
                inside, alphabetic, word, word_length = True, False, np.uint64(0), 0
            folded = point
            if 65 <= point <= 90 or 0x410 <= point <= 0x42F:
                folded = point + 32
            word = (word ^ np.uint64(folded)) * FACTOR
            word ^= word >> _SHIFT
            word_length += 1
            if kind == DIGIT:
                digits += 1
            elif kind != JOINER:
                alphabetic = True
                letters += 1
            else:
                symbols += 1
        elif kind == SPACE:
            white += 1 if at < end else 0
            ended = inside
        elif HAN <= kind <= HANGUL:
            ended = inside
            row[_HAN + kind - HAN] += 1
        else:
            symbols += 1
            ended = inside
            if inside and kind == MARK:
                ended = not (last_kind == LATIN or last_kind == LETTER or last_kind == MARK)
            elif inside and (kind == APOSTROPHE or kind == POINT) and at + width < end:
                after = np.int64(data[at + width])
                if after >= 0x80:
                    after, _ = _decode(data, at + width, end)
                follows = np.int64(table[after])
                if kind == APOSTROPHE:
                    joined = (last_kind == LATIN or last_kind == LETTER) and (follows == LATIN or follows == LETTER)
                else:
                    joined = last_kind == DIGIT and follows == DIGIT
                ended = not joined
            if inside and not ended:
                word = (word ^ np.uint64(point)) * FACTOR
                word ^= word >> _SHIFT
                word_length += 1
            if point == 35 and first_point >= 0 and first_point != 35:  # not the marks of a heading
                row[_HASHES] += 1
            elif point == 0x7B:
                row[_BRACES] += 1
            elif point == 0xFFFD:
                row[_REPLACEMENTS] += 1
            elif (point == 0x2026 and last_point != 0x2026) or (point == 46 and last_point == 46 and run == 2):
                row[_ELLIPSES] += 1
        if ended:
            inside = False
            words += 1
            word_characters += word_length
            longest_word = max(longest_word, word_length)
            if alphabetic:
                alphabetic_words += 1
            if word_length <= 5:
                slot = np.int64(word >> np.uint64(54))
                while stops[slot] != 0 and stops[slot] != word:
                    slot = (slot + 1) & 1023
                if stops[slot] == word and seen[slot] != text:
                    seen[slot] = text
                    row[_STOP_WORDS] += 1
            unit_characters += word_length
            if units < MOST_UNITS:
                prefix[units + 1] = prefix[units] * FACTOR + _mixed(word)
                before[units + 1] = unit_characters
            units += 1
        if HAN <= kind <= HANGUL:
            unit_characters += 1
            if units < MOST_UNITS:
                prefix[units + 1] = prefix[units] * FACTOR + _mixed((np.uint64(point) + _ONE) * _MIX)
                before[units + 1] = unit_characters
            units += 1
        # runs and sentences
        run = run + 1 if point == last_point else 1
        if run > longest_run and kind != SPACE and at < end:
            longest_run = run
        bits = marks[point] if point < marks.size else 0
        if bits & SENTENCE and not (last_point >= 0 and last_point < marks.size and marks[last_point] & SENTENCE):
            closes = point > 0x7F or at + 1 >= end
            if not closes:
                after = np.int64(data[at + 1])
                closes = after == 32 or after == 10 or after == 34 or after == 39 or after == 41 or after >= 0xE2
            if closes:
                row[_SENTENCES] += 1
        frequent |= _ONE << np.uint64(bits >> 3)
        # lines
        if point != 10:
            line_length += 1
            if kind != SPACE:
                if first_point < 0:
                    first_point = point
                before_end, end_point = end_point, point
                line_content = line_length
                line = (line ^ np.uint64(point)) * FACTOR
                line ^= line >> _SHIFT
        else:
            row[_NEWLINES] += 1 if at < end else 0
            row[_LONGEST_LINE] = max(row[_LONGEST_LINE], line_length)
            if first_point >= 0:
                row[_LINES] += 1
                row[_LINE_CHARACTERS] += line_content
                row[_TO_30] += 1 if line_content <= 30 else 0
                row[_TO_10] += 1 if line_content <= 10 else 0
                ellipsis = end_point == 0x2026 or (end_point == 46 and before_end == 46)
                row[_ELLIPSIS_LINES] += 1 if ellipsis else 0
                row[_CLOSED_LINES] += 1 if end_point < marks.size and marks[end_point] & CLOSING else 0
                row[_BULLET_LINES] += 1 if first_point < marks.size and marks[first_point] & BULLET else 0
                if held < most:
                    _, there = _find(entries, mask, stamp, line)
                    held += 0 if there else 1
                    if there:
                        row[_DUPLICATE_LINES] += 1
                        row[_DUPLICATE_LINE_CHARACTERS] += line_content
                paragraph = paragraph * FACTOR + line
                paragraph_length += line_content
                paragraph_lines += 1
            if paragraph_lines and (first_point < 0 or at >= end):
                row[_PARAGRAPHS] += 1
                if held < most:
                    _, there = _find(entries, mask, stamp, _mixed(paragraph + FACTOR))
                    held += 0 if there else 1
                    if there:
                        row[_DUPLICATE_PARAGRAPHS] += 1
                        row[_DUPLICATE_PARAGRAPH_CHARACTERS] += paragraph_length
                paragraph, paragraph_length, paragraph_lines = np.uint64(0), 0, 0
            line, line_length, line_content = np.uint64(0), 0, 0
            first_point = end_point = before_end = -1
        last_kind, last_point = kind, point
        at += width
    row[_CHARACTERS], row[_WHITE], row[_LETTERS], row[_DIGITS], row[_SYMBOLS] = (
        characters,
        white,
        letters,
        digits,
        symbols,
    )
    row[_UNITS], row[_WORDS], row[_ALPHABETIC], row[_WORD_CHARACTERS] = units, words, alphabetic_words, word_characters
    row[_LONGEST_WORD], row[_LONGEST_RUN] = longest_word, longest_run
    frequent >>= _ONE
    while frequent:
        row[_STOP_CHARACTERS] += 1
        frequent &= frequent - _ONE
