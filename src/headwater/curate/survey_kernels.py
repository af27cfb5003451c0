"""Compiled passes over UTF-8 bytes that spare cleaning its patterns: one says what may be found, one tidies lines.

In: the bytes of a batch of texts, one after the other, and where each begins. Out: counts of characters and a bit for
each kind of thing a step of cleaning looks for: not set it is a promise, set a reason to look.

    look(data, offsets, property_table(), phrase_tables(), out)     # see survey.survey_all
"""

# ruff: noqa: SIM109 - membership in a tuple compiles to slower code than comparisons
from __future__ import annotations

from typing import Any

import numpy as np

from headwater.core.units import APOSTROPHE, DIGIT, HAN, HANGUL, JOINER, LATIN, LETTER, MARK, POINT, SPACE
from headwater.curate.boilerplate import MOST_CHARACTERS, MOST_IN_PHRASE
from headwater.curate.mojibake import MARKS
from headwater.curate.quality.kernels import kernel
from headwater.curate.survey import (
    BEFORE,
    BEGINNINGS,
    BOILERPLATE,
    CHARACTERS,
    CODE_OR_LINK,
    EDGE,
    FACTOR,
    FENCE,
    FLAGS,
    HALF,
    HALF_MARK,
    HIGH,
    IP_ADDRESS,
    KIND,
    LATIN_1,
    MOJIBAKE,
    NOTICE,
    NUMBER,
    PAIRED,
    PRESENCE,
    SECONDS,
    SIGNAL,
    SPACING,
    STARTS,
    UNITS,
    WHOLE,
    WORD,
    run_table,
)

_GARBLED = np.array([ord(mark) for mark in MARKS])

_FACTOR = np.uint64(FACTOR)
_THREE, _SIX = np.uint64((1 << 24) - 1), np.uint64((1 << 48) - 1)
_BYTE = np.uint64(8)


def _tail(text: str) -> Any:
    """The bytes of a text as a number, the last one lowest."""
    return np.uint64(int.from_bytes(text.encode(), "big"))


_BACKTICKS, _TILDES, _SLASHES, _BLANK = _tail("```"), _tail("~~~"), _tail("://"), _tail("\n\n\n")
_ICP, _ICP_SMALL, _C_SMALL, _C_LARGE, _OPY, _OOK = map(_tail, ("ICP", "icp", "(c)", "(C)", "opy", "ook"))
_MOST = MOST_CHARACTERS + 2  # tidying may take one more at each end
_RECORD, _PERMIT, _RIGHT, _WITHOUT, _BROWSER = map(_tail, ("安备", "可证", "版权", "未经", "览器"))
_RUNS = run_table()


@kernel
def _decode(data: Any, at: Any) -> Any:
    """(code point, bytes) of the character at a place of valid UTF-8."""
    first = np.int64(data[at])
    if first < 0x80:
        return first, 1
    if first < 0xE0:
        return ((first & 0x1F) << 6) | (np.int64(data[at + 1]) & 0x3F), 2
    if first < 0xF0:
        return ((first & 0x0F) << 12) | ((np.int64(data[at + 1]) & 0x3F) << 6) | (np.int64(data[at + 2]) & 0x3F), 3
    return (
        ((first & 0x07) << 18)
        | ((np.int64(data[at + 1]) & 0x3F) << 12)
        | ((np.int64(data[at + 2]) & 0x3F) << 6)
        | (np.int64(data[at + 3]) & 0x3F)
    ), 4


@kernel
def _is_notice(point: Any, window: Any, after: Any) -> Any:
    """Whether a sign of a site's notice ends or begins here: ICP, copyright, (c), cookie, their Chinese counterparts.
    `window` has the last eight bytes, `after` is the next one."""
    three, six = window & _THREE, window & _SIX
    if point == 0x70 or point == 0x50:
        return three == _ICP or three == _ICP_SMALL
    if point == 0x79:
        return three == _OPY and (after == 0x72 or after == 0x3B)
    if point == 0x6B:
        return three == _OOK and after == 0x69
    if point == 0x29:
        return three == _C_SMALL or three == _C_LARGE
    if point == 0xA9:
        return True
    return six == _RECORD or six == _PERMIT or six == _RIGHT or six == _WITHOUT or six == _BROWSER


@kernel
def _is_in(value: Any, table: Any) -> Any:
    """Whether a hash is in an open table of 1024 slots."""
    slot = np.int64(value >> np.uint64(54))
    while table[slot] != 0 and table[slot] != value:
        slot = (slot + 1) & 1023
    return table[slot] == value


@kernel
def _goes_on(data: Any, at: Any, end: Any) -> Any:
    """Whether a letter, digit or Chinese character follows, after one space or none: what stood before is no phrase of
    its own."""
    if at < end and data[at] == 32:
        at += 1
        if at < end and data[at] >= 0x80:
            return False
    if at == end:
        return False
    byte = data[at]
    return 48 <= byte <= 57 or 65 <= byte <= 90 or 97 <= byte <= 122 or 0xE4 <= byte <= 0xE9


@kernel
def _begins_phrase(data: Any, at: Any, end: Any, table: Any, phrases: Any) -> Any:
    """Whether the line at a place begins with a phrase of boilerplate; what does not count at its edge apart."""
    value = np.uint64(0)
    collected = 0
    likely = blank = False
    while at < end and data[at] != 10 and (likely or collected < 4):
        point, size = _decode(data, at)
        at += size
        if (collected == 0 and np.int64(table[point]) & EDGE) or (blank and (point == 32 or point == 9)):
            continue
        blank = point == 32 or point == 9
        if point == 0x130 or point == 0x212A:  # become ASCII letters when lowered
            return True
        letter = point + 32 if 65 <= point <= 90 else 32 if blank else point
        value = (value ^ np.uint64(letter)) * _FACTOR
        collected += 1
        likely = likely or _is_in(value, phrases[STARTS])
        if likely and _is_in(value, phrases[BEGINNINGS]):
            return True
        if likely and _is_in(value, phrases[WHOLE]) and not _goes_on(data, at, end):
            return True
        if collected > MOST_IN_PHRASE:
            return False
    return False


@kernel
def look(data: Any, offsets: Any, table: Any, phrases: Any, out: Any) -> None:
    """Fill `out`, int64 [texts, COLUMNS]. `table`, uint16 [0x110000], has the class and properties of each character;
    `phrases` are tables of hashes of phrases of boilerplate."""
    for number in range(offsets.size - 1):
        _look(data, offsets[number], offsets[number + 1], table, _RUNS, phrases, out[number])


@kernel
def _look(data: Any, begin: Any, end: Any, table: Any, runs: Any, phrases: Any, row: Any) -> None:
    flags = 0
    seen: Any = 0  # properties of any character
    garbled = 0  # marks of UTF-8 read as GBK that were seen
    window = np.uint64(0)  # the last bytes: three of them, or six of two characters that nothing stood between
    last: Any = 0  # properties of the character before
    last_point: Any = 10
    inside = False  # the character before belongs to a word
    indent = True  # nothing but spaces in the line so far
    phrase: Any = _begins_phrase(data, begin, end, table, phrases)  # so does the line
    notice = False  # the line has the sign of a notice
    characters: Any = 0
    squeezed: Any = 0  # of them, spaces after spaces: distances leave them out, so that they hold for the tidied text
    line_at: Any = 0  # where the line begins
    units: Any = 0
    latin: Any = 0  # characters of these classes that were passed over in runs
    han: Any = 0
    spaces: Any = 0
    point: Any = 0
    digit_at = digit_start = separator_at = before_separator_at = dot_at = colon_at = -9
    digits = dots = 0
    for column in range(CHARACTERS):
        row[column] = 0
    at = begin
    while at < end:
        # words and Chinese characters that nothing looks for: nine of ten characters
        start_at = at
        mark: Any = np.int64(runs[data[at]])
        if mark & WORD or (mark and not indent):
            before: Any = WORD if inside else 0
            if last_point < 0x80:
                before |= np.int64(runs[32 if last_point == 9 else last_point]) & ~WORD
            blanks: Any = 0
            while mark and not mark & (before >> PAIRED) & SECONDS:
                units += mark & ~before & WORD
                blanks += mark >> 1 & 1
                before = mark
                at += 1
                mark = np.int64(runs[data[at]]) if at < end else 0
            if at > start_at:
                latin += at - start_at - blanks
                spaces += blanks
                characters += at - start_at
                window = np.uint64(0)
                for index in range(max(begin, at - 3), at):
                    window = (window << _BYTE) | np.uint64(data[index])
                last_point = np.int64(data[at - 1])
                indent = False
                inside = last_point != 32
                last = LATIN
                if not inside:
                    before_separator_at, separator_at = separator_at, characters - squeezed - 1
                    last = SPACE | SIGNAL | EDGE
                continue
        elif 0xE4 <= data[at] <= 0xE9 and not (indent and (last_point == 32 or last_point == 9)):
            while at < end and 0xE4 <= data[at] <= 0xE9:
                point, _ = _decode(data, at)
                if table[point] != HAN | BEFORE:
                    break
                last_point = point
                at += 3
            if at > start_at:
                found_han = (at - start_at) // 3
                han += found_han
                units += found_han
                characters += found_han
                inside = indent = False
                last = HAN | BEFORE
                window = np.uint64(data[at - 3]) << np.uint64(16)
                window |= (np.uint64(data[at - 2]) << _BYTE) | np.uint64(data[at - 1])
                continue
        first = np.int64(data[at])
        point, size = _decode(data, at)
        if size == 1:
            window = (window << _BYTE) | np.uint64(first)
        elif size == 3:
            window = (window << _BYTE) | np.uint64(first)
            window = (window << _BYTE) | np.uint64(data[at + 1])
            window = (window << _BYTE) | np.uint64(data[at + 2])
        else:
            window = np.uint64(0)
        at += size
        found = np.int64(table[point])
        kind = found & KIND
        seen |= found
        row[kind] += 1
        if kind == LATIN or kind == LETTER or kind == DIGIT or kind == JOINER:
            if not inside:
                units += 1
            inside = True
        elif inside or kind >= MARK:
            last_kind = last & KIND
            if HAN <= kind <= HANGUL:
                units += 1
                inside = False
                if indent and (last_point == 32 or last_point == 9) and kind == HAN:
                    flags |= SPACING
            elif kind == MARK:
                inside = last_kind == LATIN or last_kind == LETTER or last_kind == MARK
            elif (kind == APOSTROPHE or kind == POINT) and at < end:
                after = np.int64(table[_decode(data, at)[0]]) & KIND
                if kind == APOSTROPHE:
                    inside = (last_kind == LATIN or last_kind == LETTER) and (after == LATIN or after == LETTER)
                else:
                    inside = last_kind == DIGIT and after == DIGIT
            else:
                inside = False
        if found & last & HIGH and (found | last) & LATIN_1:
            flags |= MOJIBAKE
        place = characters - squeezed
        if not found & SIGNAL:
            indent = False
        elif 48 <= point <= 57:
            indent = False
            gap = place - digit_at - 1
            whole = gap == 0 or (separator_at == place - 1 and (gap == 1 or before_separator_at == place - 2))
            digits = digits + 1 if gap <= 2 and whole else 1
            if digits >= 7:
                flags |= NUMBER
            if gap != 0:
                digit_start = place
                if last_point == 46 and dots >= 3:
                    flags |= IP_ADDRESS
            digit_at = place
        elif point == 32 or point == 9:
            if last_point == 32 or last_point == 9:
                squeezed += 1
                if not indent and point == 32 and last_point == 32:
                    flags |= SPACING
            else:
                before_separator_at, separator_at = separator_at, place
                if not indent and point == 9:
                    flags |= SPACING
        elif point == 10:
            if last_point == 32 or last_point == 9 or window & _THREE == _BLANK:
                flags |= SPACING
            if (phrase or notice) and place - line_at <= _MOST:
                flags |= (BOILERPLATE if phrase else 0) | (NOTICE if notice else 0)
            phrase, notice, line_at = _begins_phrase(data, at, end, table, phrases), False, place + 1
            indent = True
        else:
            indent = False
            if point == 0xA0 or 40 <= point <= 41 or 45 <= point <= 47 or 0x2010 <= point <= 0x2013:
                before_separator_at, separator_at = separator_at, place
            if last & BEFORE and found & HALF:
                flags |= HALF_MARK
            if point == 46:
                dots = dots + 1 if digit_at == place - 1 and digit_start - 1 == dot_at else 1
                dot_at = place
            elif point == 58:
                if place - colon_at <= 5:
                    flags |= IP_ADDRESS
                colon_at = place
            elif point == 47:
                if window & _THREE == _SLASHES:
                    flags |= CODE_OR_LINK
            elif point == 96 or point == 126:
                if window & _THREE == _BACKTICKS or window & _THREE == _TILDES:
                    flags |= FENCE
                if point == 96:
                    flags |= CODE_OR_LINK
            elif _is_notice(point, window, data[at] if at < end else 0):
                notice = True
            elif point >= 0x4E00:
                for number in range(_GARBLED.size):
                    if point == _GARBLED[number]:
                        garbled |= 1 << number
        last, last_point = found, point
        characters += 1
    if last_point == 32 or last_point == 9:
        flags |= SPACING
    if characters - squeezed - line_at <= _MOST:
        flags |= (BOILERPLATE if phrase else 0) | (NOTICE if notice else 0)
    if garbled & (garbled - 1):
        flags |= MOJIBAKE
    row[LATIN] += latin
    row[HAN] += han
    row[SPACE] += spaces
    row[CHARACTERS] = characters
    row[UNITS] = units
    row[FLAGS] = flags | (seen & PRESENCE)


@kernel
def tidy_all(data: Any, offsets: Any, table: Any, out: Any, ends: Any) -> None:
    """Write UTF-8 texts with their lines tidied (see `characters.tidy_lines`) to `out`, as long as `data`, and where
    each begins and the last ends to `ends`. They have no other white space than spaces, tabs and \\n."""
    ends[0] = 0
    for number in range(offsets.size - 1):
        ends[number + 1] = _tidy(data, offsets[number], offsets[number + 1], table, out, ends[number])


@kernel
def _tidy(data: Any, at: Any, end: Any, table: Any, out: Any, to: Any) -> Any:
    """One text, to place `to`; returns where it ends."""
    breaks = 0  # line ends in a row just written
    while at <= end:
        line_start = to
        indented = at
        while indented < end and (data[indented] == 32 or data[indented] == 9):
            indented += 1
        if indented > at and not (indented < end and table[_decode(data, indented)[0]] & KIND == HAN):
            indented = at
        at = indented
        blank_since = to  # everything written from here on is spaces at the end of the line
        while at < end and data[at] != 10:
            if data[at] != 32 and data[at] != 9:
                out[to] = data[at]
                to += 1
                at += 1
                blank_since = to
                continue
            stop = at + 1
            while stop < end and (data[stop] == 32 or data[stop] == 9):
                stop += 1
            if blank_since > line_start and (data[at] == 9 or (stop > at + 1 and data[at + 1] == 32)):
                out[to] = 32
                to += 1
            else:
                while at < stop:
                    out[to] = data[at]
                    to += 1
                    at += 1
            at = stop
        to = blank_since
        if to > line_start:
            breaks = 0
        if at < end:
            breaks += 1
            if breaks <= 2:
                out[to] = 10
                to += 1
        at += 1
    return to
