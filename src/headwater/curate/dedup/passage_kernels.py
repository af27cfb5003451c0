"""Compiled parts of `passages`: sampled hashes, adjacent repeats, and how far two passages agree."""

from __future__ import annotations

from typing import Any

import numpy as np

from headwater.curate.dedup.kernels import kernel
from headwater.curate.dedup.tokens import SHINGLE_FACTOR, mix, shingle, tokenize


@kernel
def repeats(
    data: Any, offsets: Any, rows: Any, numbers: Any, table: Any, shortest: Any, longest_period: Any,
    line_copies: Any, line_units: Any, hashes: Any, starts: Any, ends: Any, out: Any,
) -> Any:  # fmt: skip
    """Adjacent repeats of each document into out [m, 4]: number, first unit, end unit, first unit of the copy that
    stays; ascending and apart. Returns how many."""
    found = 0
    for index in range(rows.size):
        begin = offsets[rows[index]]
        count = tokenize(data, begin, offsets[rows[index] + 1], table, hashes, starts, ends)
        taken = np.zeros(count, np.uint8)
        lines = np.empty(count + 1, np.int64)  # first unit of each line that has one
        size = 0
        for unit in range(count):
            new = unit == 0
            if unit:
                for at in range(ends[unit - 1], starts[unit]):
                    if data[at] == 10:
                        new = True
                        break
            if new:
                lines[size] = unit
                size += 1
        lines[size] = count
        first_found = found
        line = 1
        while line < size:
            length = lines[line + 1] - lines[line]
            last = line
            while last < size and lines[last + 1] - lines[last] == length and lines[last] - lines[last - 1] == length:
                same = True
                for step in range(length):
                    if hashes[lines[last] + step] != hashes[lines[last - 1] + step]:
                        same = False
                        break
                if not same:
                    break
                last += 1
            copies = last - line + 1
            if copies >= line_copies and copies * length >= line_units:
                out[found, 0], out[found, 1], out[found, 2] = numbers[index], lines[line], lines[last]
                out[found, 3] = lines[line - 1]
                taken[lines[line] : lines[last]] = 1
                found += 1
            line = max(last, line + 1)
        for period in range(1, longest_period + 1):
            run = 0
            for unit in range(period, count + 1):
                if unit < count and hashes[unit] == hashes[unit - period] and not taken[unit]:
                    run += 1
                    continue
                if run >= shortest and run >= 2 * period:
                    out[found, 0], out[found, 1], out[found, 2] = numbers[index], unit - run, unit
                    out[found, 3] = unit - run - period
                    taken[unit - run : unit] = 1
                    found += 1
                run = 0
        for place in range(first_found + 1, found):  # by insertion: there are few
            at = place
            while at > first_found and out[at, 1] < out[at - 1, 1]:
                for column in range(4):
                    value = out[at, column]
                    out[at, column] = out[at - 1, column]
                    out[at - 1, column] = value
                at -= 1
    return found


@kernel
def fingerprints(
    data: Any, offsets: Any, rows: Any, numbers: Any, table: Any, window: Any, spread: Any, own: Any,
    hashes: Any, starts: Any, ends: Any, out: Any, where: Any,
) -> Any:  # fmt: skip
    """Winnowed hashes of windows of units: of each `spread` windows in a row the least, the last of equals unless the
    one before is still there. `where` = number << 32 | first unit. Windows that touch `own` repeats are left out."""
    found = 0
    cut = 0
    for index in range(rows.size):
        count = tokenize(data, offsets[rows[index]], offsets[rows[index] + 1], table, hashes, starts, ends)
        units = count
        count = shingle(hashes, count, window)
        while cut < own.shape[0] and own[cut, 0] < numbers[index]:
            cut += 1
        blocked = np.zeros(units, np.uint8)
        at = cut
        while at < own.shape[0] and own[at, 0] == numbers[index]:
            blocked[own[at, 1] : own[at, 2]] = 1
            at += 1
        start = 0
        while start < count:
            # A stretch of windows without a blocked unit.
            clear = True
            for unit in range(start, start + window):
                if blocked[unit]:
                    start = unit + 1
                    clear = False
                    break
            if not clear:
                continue
            stop = start + 1
            while stop < count and not blocked[stop + window - 1]:
                stop += 1
            least: Any = -1
            for left in range(start, max(start + 1, stop - spread + 1)):
                right = min(left + spread, stop)
                if least < left:
                    least = left
                    for place in range(left + 1, right):
                        if hashes[place] <= hashes[least]:
                            least = place
                elif hashes[right - 1] < hashes[least]:
                    least = right - 1
                else:
                    continue
                out[found] = mix(hashes[least] + SHINGLE_FACTOR)
                where[found] = (np.uint64(numbers[index]) << np.uint64(32)) | np.uint64(least)
                found += 1
            start = stop + window
    return found


@kernel
def _block(blocked: Any, count: Any, cuts: Any, filled: Any, number: Any) -> None:
    """Mark the units of document `number` that lie in one of the first `filled` cuts, sorted by number."""
    low, high = 0, filled
    while low < high:
        middle = (low + high) // 2
        if cuts[middle, 0] < number:
            low = middle + 1
        else:
            high = middle
    while low < filled and cuts[low, 0] == number:
        blocked[cuts[low, 1] : min(count, cuts[low, 2])] = 1
        low += 1


@kernel
def extend(
    data: Any, offsets: Any, row_of: Any, table: Any, numbers: Any, places: Any, others: Any, other_places: Any,
    own: Any, earlier: Any, shortest: Any, threshold: Any, alive: Any,
    hashes: Any, starts: Any, ends: Any, kept_hashes: Any, kept_starts: Any, kept_ends: Any, out: Any,
) -> Any:  # fmt: skip
    """Follow proposals, sorted by document and place, to both sides; out [m, 5] as `PassageDedup._extend` has it.

    `earlier` are cuts of documents before these. A document of whose units a share of `threshold` is cut is marked
    dead, and later proposals do not lean on it.
    """
    found = 0
    document: Any = -1
    other: Any = -1
    first_found = 0
    count = kept_count = 0
    blocked = np.zeros(0, np.uint8)
    kept_blocked = np.zeros(0, np.uint8)
    last_shift: Any = 0
    last_end: Any = -1
    cut_units = 0
    for index in range(numbers.size + 1):
        if index == numbers.size or numbers[index] != document:
            if document >= 0 and count and cut_units >= threshold * count:
                alive[document] = 0
            if index == numbers.size:
                break
            document = numbers[index]
            row = row_of[document]
            count = tokenize(data, offsets[row], offsets[row + 1], table, hashes, starts, ends)
            blocked = np.zeros(count, np.uint8)
            _block(blocked, count, own, own.shape[0], document)
            first_found = found
            other = -1
            cut_units = 0
        if blocked[places[index]] or not alive[others[index]]:
            continue
        if others[index] != other:
            other = others[index]
            last_end = -1
            if other != document:
                row = row_of[other]
                kept_count = tokenize(data, offsets[row], offsets[row + 1], table, kept_hashes, kept_starts, kept_ends)
                kept_blocked = np.zeros(kept_count, np.uint8)
                _block(kept_blocked, kept_count, own, own.shape[0], other)
                _block(kept_blocked, kept_count, earlier, earlier.shape[0], other)
                _block(kept_blocked, kept_count, out, first_found, other)
        same = other == document
        source = hashes if same else kept_hashes
        closed = blocked if same else kept_blocked
        limit = count if same else kept_count
        shift = places[index] - other_places[index]
        if shift == last_shift and places[index] < last_end:
            continue
        left = places[index]
        while left > 0 and left - shift > 0:
            if blocked[left - 1] or closed[left - 1 - shift] or hashes[left - 1] != source[left - 1 - shift]:
                break
            left -= 1
        right = places[index]
        while right < count and right - shift < limit:
            if blocked[right] or closed[right - shift] or hashes[right] != source[right - shift]:
                break
            right += 1
        last_shift, last_end = shift, right
        if right - left < shortest:
            continue
        out[found, 0], out[found, 1], out[found, 2], out[found, 3] = document, left, right, other
        out[found, 4] = left - shift
        blocked[left:right] = 1
        cut_units += right - left
        found += 1
    return found
