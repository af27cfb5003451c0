"""Hashed n-grams of texts and logistic regression on them, compiled.

A text becomes the hashes of its units (CJK characters and words, case folded), of pairs of units in a row, and of three
CJK characters in a row, counted in 2**bits buckets; a bucket weighs the root of its count, and a text has length 1.
"""

# ruff: noqa: SIM109 - membership in a tuple compiles to slower code than comparisons
from __future__ import annotations

from typing import Any

import numpy as np

from headwater.core.units import DIGIT, HAN, HANGUL, JOINER, LATIN, LETTER
from headwater.curate.quality.kernels import kernel

MOST_UNITS = 4096
"""Units at the beginning of a text that are looked at."""

_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_OTHER_FACTOR = np.uint64(0xD6E8FEB86659FD93)
_MIX = np.uint64(0xFF51AFD7ED558CCD)
_SHIFT = np.uint64(32)


@kernel
def _mix(value: Any) -> Any:
    value ^= value >> _SHIFT
    value *= _MIX
    value ^= value >> _SHIFT
    return value


@kernel
def features(points: Any, begin: Any, end: Any, table: Any, bits: Any, counts: Any, buckets: Any, values: Any) -> Any:
    """Buckets and weights of the text points[begin:end] (code points, uint32) into `buckets` and `values`; returns how
    many. `counts`, int32 [2**bits], is all zeros before and after."""
    shift = np.uint64(64 - bits)
    found = units = 0
    word = np.uint64(0)
    inside = False
    first = second = np.uint64(0)  # the last two units, the newer first
    first_cjk = second_cjk = False
    for at in range(begin, end + 1):
        point = np.int64(points[at]) if at < end else 10
        kind = np.int64(table[point])
        if kind == LATIN or kind == LETTER or kind == DIGIT or kind == JOINER:
            if 65 <= point <= 90 or 0x410 <= point <= 0x42F:
                point += 32
            if kind == DIGIT:
                point = 48  # numbers are alike
            word = (word ^ np.uint64(point)) * _FACTOR
            word ^= word >> _SHIFT
            inside = True
            continue
        cjk = HAN <= kind <= HANGUL
        for turn in range(2):
            if turn == 0:
                if not inside:
                    continue
                unit, unit_cjk = word, False
                inside, word = False, np.uint64(0)
            else:
                if not cjk:
                    continue
                unit, unit_cjk = (np.uint64(point) + np.uint64(1)) * _MIX, True
            for width in range(1, 4):
                if width == 1:
                    key = unit
                elif width == 2:
                    if units < 1:
                        break
                    key = first * _OTHER_FACTOR + unit
                else:
                    if units < 2 or not (unit_cjk and first_cjk and second_cjk):
                        break
                    key = (second * _OTHER_FACTOR + first) * _OTHER_FACTOR + unit
                bucket = np.int64(_mix(key) * _FACTOR >> shift)
                if counts[bucket] == 0:
                    buckets[found] = bucket
                    found += 1
                counts[bucket] += 1
            second, second_cjk = first, first_cjk
            first, first_cjk = unit, unit_cjk
            units += 1
        if units >= MOST_UNITS:
            break
    norm = 0.0
    for index in range(found):
        norm += counts[buckets[index]]
        values[index] = np.sqrt(counts[buckets[index]])
        counts[buckets[index]] = 0
    if found:
        scale = 1.0 / np.sqrt(norm)
        for index in range(found):
            values[index] *= scale
    return found


@kernel
def score(points: Any, offsets: Any, table: Any, bits: Any, weights: Any, bias: Any, out: Any) -> None:
    """Raw score (log-odds before calibration) of each text into `out`, float64 [texts]."""
    counts = np.zeros(1 << bits, np.int32)
    buckets, values = np.empty(3 * MOST_UNITS + 8, np.int64), np.empty(3 * MOST_UNITS + 8, np.float64)
    for text in range(offsets.size - 1):
        found = features(points, offsets[text], offsets[text + 1], table, bits, counts, buckets, values)
        total = np.float64(bias)
        for index in range(found):
            total += weights[buckets[index]] * values[index]
        out[text] = total


@kernel
def train(
    points: Any, offsets: Any, table: Any, bits: Any, labels: Any, importance: Any, order: Any, rate: Any, decay: Any,
    weights: Any, squares: Any,
) -> Any:  # fmt: skip
    """One pass of AdaGrad over the texts in `order`; the last place of `weights` and `squares` is the bias. Returns the
    mean loss, each text weighed by its importance."""
    counts = np.zeros(1 << bits, np.int32)
    buckets, values = np.empty(3 * MOST_UNITS + 8, np.int64), np.empty(3 * MOST_UNITS + 8, np.float64)
    bias = weights.size - 1
    loss = total = 0.0
    for text in order:
        found = features(points, offsets[text], offsets[text + 1], table, bits, counts, buckets, values)
        logit = weights[bias]
        for index in range(found):
            logit += weights[buckets[index]] * values[index]
        chance = 1.0 / (1.0 + np.exp(-logit))
        right = chance if labels[text] == 1 else 1.0 - chance
        loss -= importance[text] * np.log(max(right, 1e-12))
        total += importance[text]
        error = (chance - labels[text]) * importance[text]
        for index in range(found):
            bucket = buckets[index]
            step = error * values[index] + decay * weights[bucket]
            squares[bucket] += step * step
            weights[bucket] -= rate * step / np.sqrt(squares[bucket])
        squares[bias] += error * error
        weights[bias] -= rate * error / np.sqrt(squares[bias] + 1e-12)
    return loss / max(total, 1e-12)
