"""Exact comparison of two documents: how much of their shingle sets they share, and where.

Scores are exact up to collisions of 64-bit hashes. Documents shorter than one shingle are equal (score 1) if their
folded texts are, else 0; a short and a long document are never equal. Byte-identical texts have score 1.

    jaccard("the cat sat on the mat today", "the cat sat on the mat")      # 0.666...
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headwater.curate.dedup.folding import fold_table
from headwater.curate.dedup.kernels import kernel, small
from headwater.curate.dedup.tokens import Bytes, Offsets, fold_text, mix, scratch, shingle, tokenize, utf8


class Measure(IntEnum):
    """What a score is. JACCARD: shared shingles over all of both; CONTAINMENT: over those of the removed document;
    IDENTICAL: 1 for the same bytes, else 0."""

    JACCARD = 0
    CONTAINMENT = 1
    IDENTICAL = 2


BYTES_A_STEP = 16
"""Text that the plain function gets through in the time of one step of a plain loop, roughly."""

_IDENTICAL = int(Measure.IDENTICAL)
_CONTAINMENT = int(Measure.CONTAINMENT)


@kernel
def _same(data: Any, a: Any, a_end: Any, b: Any, b_end: Any) -> Any:
    if a_end - a != b_end - b:
        return False
    for index in range(a_end - a):  # noqa: SIM110 - a generator does not compile
        if data[a + index] != data[b + index]:
            return False
    return True


@kernel
def _put(keys: Any, stamps: Any, stamp: Any, value: Any) -> Any:
    """Put a hash into an open table whose live places bear `stamp`: (its place, whether it is new)."""
    last = np.uint64(keys.size - 1)
    place = mix(value) & last
    while stamps[place] == stamp:
        if keys[place] == value:
            return np.int64(place), False
        place = (place + np.uint64(1)) & last
    keys[place] = value
    stamps[place] = stamp
    return np.int64(place), True


@kernel
def _has(keys: Any, stamps: Any, stamp: Any, value: Any) -> Any:
    """The place of a hash, or -1."""
    last = np.uint64(keys.size - 1)
    place = mix(value) & last
    while stamps[place] == stamp:
        if keys[place] == value:
            return np.int64(place)
        place = (place + np.uint64(1)) & last
    return np.int64(-1)


@kernel
def compare_pairs(
    data: Any, offsets: Any, table: Any, width: Any, measure: Any, kept: Any, removed: Any,
    hashes: Any, starts: Any, ends: Any, keys: Any, stamps: Any, scores: Any,
) -> None:  # fmt: skip
    """Score of each pair of rows (kept[i], removed[i]) into scores. Pairs with the same kept side should follow one
    another: its set is then made once. keys, stamps: [2, places], places a power of two above twice the most units,
    stamps zero."""
    stamp = np.int64(0)
    made = np.int64(-1)
    size: Any = 0
    for pair in range(kept.size):
        a, a_end = offsets[kept[pair]], offsets[kept[pair] + 1]
        b, b_end = offsets[removed[pair]], offsets[removed[pair] + 1]
        if _same(data, a, a_end, b, b_end):
            scores[pair] = 1.0
            continue
        scores[pair] = 0.0
        if measure == _IDENTICAL:
            continue
        if kept[pair] != made:
            made = kept[pair]
            stamp += 1
            size = 0
            for index in range(shingle(hashes, tokenize(data, a, a_end, table, hashes, starts, ends), width)):
                if _put(keys[0], stamps[0], stamp, hashes[index])[1]:
                    size += 1
        count = shingle(hashes, tokenize(data, b, b_end, table, hashes, starts, ends), width)
        if size == 0 and count == 0:
            first, second = np.empty(a_end - a, np.uint32), np.empty(b_end - b, np.uint32)
            length = fold_text(data, a, a_end, table, first)
            if length == fold_text(data, b, b_end, table, second):
                equal = True
                for index in range(length):
                    equal = equal and first[index] == second[index]
                scores[pair] = 1.0 if equal else 0.0
            continue
        if size == 0 or count == 0:
            continue
        shared = other = 0
        for index in range(count):
            if _put(keys[1], stamps[1], np.int64(pair + 1), hashes[index])[1]:
                other += 1
                if _has(keys[0], stamps[0], stamp, hashes[index]) >= 0:
                    shared += 1
        scores[pair] = shared / other if measure == _CONTAINMENT else shared / (size + other - shared)


@kernel
def _characters(data: Any, begin: Any, end: Any, out: Any) -> None:
    """Characters before each byte of data[begin:end], and at its end."""
    count = 0
    for at in range(begin, end):
        out[at - begin] = count
        if at + 1 == end or (data[at + 1] & 0xC0) != 0x80:
            count += 1
    out[end - begin] = count


@kernel
def span_pairs(
    data: Any, offsets: Any, table: Any, width: Any, kept: Any, removed: Any,
    hashes: Any, starts: Any, ends: Any, other: Any, other_starts: Any, other_ends: Any,
    keys: Any, stamps: Any, places: Any, spans: Any, totals: Any,
) -> None:  # fmt: skip
    """Where the removed text of each pair stands in the kept one: spans [n, most, 4] of (start, end, start in kept,
    end in kept), in characters, in order; totals [n] counts those beyond `most` too. `places` maps a table's place to
    the shingle's number in the kept text."""
    for pair in range(kept.size):
        a, a_end = offsets[kept[pair]], offsets[kept[pair] + 1]
        b, b_end = offsets[removed[pair]], offsets[removed[pair] + 1]
        a_at, b_at = np.empty(a_end - a + 1, np.int32), np.empty(b_end - b + 1, np.int32)
        _characters(data, a, a_end, a_at)
        _characters(data, b, b_end, b_at)
        n_kept = shingle(hashes, tokenize(data, a, a_end, table, hashes, starts, ends), width)
        n_removed = shingle(other, tokenize(data, b, b_end, table, other, other_starts, other_ends), width)
        total = 0
        if n_kept == 0 or n_removed == 0 or _same(data, a, a_end, b, b_end):
            spans[pair, 0, 0], spans[pair, 0, 1] = 0, b_at[b_end - b]
            spans[pair, 0, 2], spans[pair, 0, 3] = 0, a_at[a_end - a]
            totals[pair] = 1
            continue
        stamp = np.int64(pair + 1)
        for index in range(n_kept):
            place, new = _put(keys[0], stamps[0], stamp, hashes[index])
            if new:
                places[place] = index
        at = 0
        while at < n_removed:
            place = _has(keys[0], stamps[0], stamp, other[at])
            if place < 0:
                at += 1
                continue
            there = places[place]
            length = 1
            while at + length < n_removed and there + length < n_kept and other[at + length] == hashes[there + length]:
                length += 1
            if total < spans.shape[1]:
                spans[pair, total, 0] = b_at[other_starts[at] - b]
                spans[pair, total, 1] = b_at[other_ends[at + length + width - 2] - b]
                spans[pair, total, 2] = a_at[starts[there] - a]
                spans[pair, total, 3] = a_at[ends[there + length + width - 2] - a]
            total += 1
            at += length
        totals[pair] = total


def places_for(units: int) -> int:
    """Places of a table for a text of this many units: a power of two, at most half full."""
    return 1 << max(4, (2 * units - 1).bit_length())


def _sizes(offsets: Offsets, rows: NDArray[np.int64], units: NDArray[np.int32] | None) -> tuple[int, int, int]:
    """Bytes of all texts, bytes of the longest, and most units; without counts, as many as the bytes can hold."""
    lengths = offsets[rows + 1] - offsets[rows]
    longest = int(lengths.max())
    return int(lengths.sum()), longest, longest // 2 + 1 if units is None else int(units[rows].max())


def score_pairs(
    data: Bytes,
    offsets: Offsets,
    kept: NDArray[np.int64],
    removed: NDArray[np.int64],
    *,
    width: int,
    measure: Measure = Measure.JACCARD,
    simplify: bool = False,
    units: NDArray[np.int32] | None = None,
) -> NDArray[np.float64]:
    """Score of each pair of rows, float64 [n]. `units` of each row, if known, save memory: 50 to 100 bytes for each
    unit of the longest text."""
    scores = np.zeros(kept.size)
    if kept.size:
        total, longest, most_units = _sizes(offsets, np.concatenate([kept, removed]), units)
        places = places_for(most_units)
        keys, stamps = np.empty((2, places), np.uint64), np.zeros((2, places), np.int32)
        run = small(compare_pairs, total // BYTES_A_STEP)
        run(
            data, offsets, fold_table(simplify), width, int(measure), kept, removed, *scratch(longest), keys, stamps,
            scores,
        )  # fmt: skip
    return scores


def span_arrays(
    data: Bytes,
    offsets: Offsets,
    kept: NDArray[np.int64],
    removed: NDArray[np.int64],
    *,
    width: int,
    most: int,
    simplify: bool = False,
    units: NDArray[np.int32] | None = None,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Spans [n, most, 4] and how many each pair has [n]; see `span_pairs`."""
    spans = np.zeros((kept.size, most, 4), np.int64)
    totals = np.zeros(kept.size, np.int64)
    if kept.size:
        total, longest, most_units = _sizes(offsets, np.concatenate([kept, removed]), units)
        places = places_for(most_units)
        keys, stamps = np.empty((1, places), np.uint64), np.zeros((1, places), np.int32)
        run = small(span_pairs, total // BYTES_A_STEP)
        run(
            data, offsets, fold_table(simplify), width, kept, removed, *scratch(longest), *scratch(longest), keys,
            stamps, np.empty(places, np.int32), spans, totals,
        )  # fmt: skip
    return spans, totals


def _pair(kept: str, removed: str, width: int, measure: Measure, simplify: bool) -> float:
    parts = [utf8(kept), utf8(removed)]
    offsets = np.array([0, parts[0].size, parts[0].size + parts[1].size], np.int64)
    rows = np.array([0], np.int64), np.array([1], np.int64)
    scores = score_pairs(np.concatenate(parts), offsets, *rows, width=width, measure=measure, simplify=simplify)
    return float(scores[0])


def jaccard(first: str, second: str, *, width: int = 5, simplify: bool = False) -> float:
    """Jaccard similarity of the shingle sets of two texts, 0 to 1."""
    return _pair(first, second, width, Measure.JACCARD, simplify)


def containment(part: str, whole: str, *, width: int = 5, simplify: bool = False) -> float:
    """Share of the shingles of `part` that `whole` has too, 0 to 1."""
    return _pair(whole, part, width, Measure.CONTAINMENT, simplify)
