"""What a difference between two models is worth: paired tests, bootstrap intervals, what a test could have seen.

In: a score for each item, the same items in the same order for both models. Out: plain numbers. Nothing but numpy; all
draws are seeded, so the same scores give the same interval.

    mcnemar(first, second).p_value; paired_bootstrap(first, second).low; minimum_detectable_difference(first, second)

Sources: McNemar (1947), exact binomial form; Efron and Tibshirani (1993) for percentile intervals; Koehn (2004) for the
paired bootstrap.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 2000
CONFIDENCE = 0.95
BLOCK = 1 << 22
"""Drawn item numbers that exist at once (32 MB)."""

Values = Sequence[float] | NDArray[np.floating]


@dataclass(frozen=True, slots=True)
class Interval:
    """A value and its interval at `confidence`; `p_value` (two-sided, against 0) where the value is a difference."""

    value: float
    low: float
    high: float
    confidence: float = CONFIDENCE
    p_value: float | None = None


@dataclass(frozen=True, slots=True)
class McNemar:
    """`only_first`: items that the first model alone has right; p_value: exact, two-sided."""

    only_first: int
    only_second: int
    p_value: float


def mcnemar(first: Values, second: Values) -> McNemar:
    """The exact test on items that one model has right (1) and the other wrong (0). ValueError for other scores."""
    a, b = _pair(first, second)
    if not np.isin(a, (0.0, 1.0)).all() or not np.isin(b, (0.0, 1.0)).all():
        raise ValueError("McNemar's test needs items that are right (1) or wrong (0)")
    only_first, only_second = int(((a == 1) & (b == 0)).sum()), int(((a == 0) & (b == 1)).sum())
    return McNemar(only_first, only_second, sign_test(only_first, only_second))


def sign_test(wins: int, losses: int) -> float:
    """Two-sided exact p of so uneven a split of a fair coin's throws; 1 without any."""
    n, fewer = wins + losses, min(wins, losses)
    if n == 0:
        return 1.0
    logs = [math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1) for k in range(fewer + 1)]
    tail = math.fsum(math.exp(log - n * math.log(2)) for log in logs)
    return min(1.0, 2 * tail)


def paired_bootstrap(
    first: Values, second: Values, *, resamples: int = RESAMPLES, confidence: float = CONFIDENCE, seed: int = 0
) -> Interval:
    """Difference of means, second minus first, with its percentile interval over draws of items."""
    a, b = _pair(first, second)
    difference = b - a
    drawn = _means(difference, resamples, seed)
    return _interval(float(difference.mean()), drawn, confidence, test=True)


def bootstrap(values: Values, *, resamples: int = RESAMPLES, confidence: float = CONFIDENCE, seed: int = 0) -> Interval:
    """A mean with its percentile interval."""
    array = _checked(values)
    return _interval(float(array.mean()), _means(array, resamples, seed), confidence)


def bootstrap_of(
    statistic: Callable[[NDArray[np.float64]], float],
    table: NDArray[np.float64],
    *,
    resamples: int = RESAMPLES,
    confidence: float = CONFIDENCE,
    seed: int = 0,
    test: bool = False,
) -> Interval:
    """Any statistic of a table [items, columns] (a ratio of sums, a ratio of two models' means); items are drawn with
    all their columns. Draws whose statistic is not finite (nothing to divide by) count in no interval."""
    if len(table) == 0:
        raise ValueError("nothing to draw from")
    random = np.random.default_rng(seed)
    drawn = np.array([statistic(table[random.integers(len(table), size=len(table))]) for _ in range(resamples)])
    return _interval(float(statistic(table)), drawn[np.isfinite(drawn)], confidence, test=test)


def perplexity_interval(
    nats: Values, counts: Values, *, resamples: int = RESAMPLES, confidence: float = CONFIDENCE, seed: int = 0
) -> Interval:
    """exp(sum of nats / sum of counts) of a corpus, documents being drawn; `counts`: tokens, words or bytes of each."""
    table = np.stack(_pair(nats, counts), axis=1)

    def perplexity(rows: NDArray[np.float64]) -> float:
        total, units = rows.sum(0)
        return math.exp(min(total / units, 700.0)) if units else math.nan

    return bootstrap_of(perplexity, table, resamples=resamples, confidence=confidence, seed=seed)


def minimum_detectable_difference(
    first: Values, second: Values, *, power: float = 0.8, confidence: float = CONFIDENCE
) -> float:
    """The smallest true difference that a paired test on so many such items finds with probability `power`:
    (z of the confidence + z of the power) x the standard error of the difference. Infinite for fewer than two items; of
    items that are right or wrong, at least what the exact test can find at all. NaN where all items differ alike: they
    do not say how much others would."""
    a, b = _pair(first, second)
    if len(a) < 2:
        return math.inf
    least = 0.0
    if np.isin(a, (0.0, 1.0)).all() and np.isin(b, (0.0, 1.0)).all():
        fewest = next(count for count in range(1, 1075) if sign_test(count, 0) <= 1 - confidence)
        least = fewest / len(a) if fewest <= len(a) else math.inf
    spread = float((b - a).std(ddof=1))
    if not spread:
        return least or math.nan
    error = spread / math.sqrt(len(a))
    return max(least, (normal_quantile((1 + confidence) / 2) + normal_quantile(power)) * error)


def normal_quantile(probability: float) -> float:
    """z with that much of the normal distribution below it, to 1e-12, by bisection of erf."""
    if not 0 < probability < 1:
        raise ValueError(f"a probability between 0 and 1 is needed, not {probability}")
    low, high = -40.0, 40.0
    while high - low > 1e-13:
        middle = (low + high) / 2
        if 0.5 * math.erfc(-middle / math.sqrt(2)) < probability:
            low = middle
        else:
            high = middle
        if middle in (low, high) and (low + high) / 2 == middle:
            break
    return (low + high) / 2


def holm(p_values: Sequence[float]) -> list[float]:
    """p values of several tests made together, adjusted by Holm's method (1979); in the order given."""
    order = sorted(range(len(p_values)), key=lambda place: p_values[place])
    adjusted, worst = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(order):
        worst = max(worst, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = worst
    return adjusted


def _checked(values: Values) -> NDArray[np.float64]:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or array.size == 0:
        raise ValueError("a list of at least one score is needed")
    if not np.isfinite(array).all():
        raise ValueError("a score is not a finite number")
    return array


def _pair(first: Values, second: Values) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    a, b = _checked(first), _checked(second)
    if a.size != b.size:
        raise ValueError(f"{a.size} scores of the first and {b.size} of the second: not the same items")
    return a, b


def _means(values: NDArray[np.float64], resamples: int, seed: int) -> NDArray[np.float64]:
    random = np.random.default_rng(seed)
    found, rows = [], max(1, BLOCK // values.size)
    for start in range(0, resamples, rows):
        index = random.integers(values.size, size=(min(rows, resamples - start), values.size))
        found.append(values[index].mean(1))
    return np.concatenate(found)


def _interval(value: float, drawn: NDArray[np.float64], confidence: float, *, test: bool = False) -> Interval:
    if drawn.size == 0:
        return Interval(value, math.nan, math.nan, confidence)
    low, high = np.quantile(drawn, [(1 - confidence) / 2, (1 + confidence) / 2])
    p_value = None
    if test:  # the share of draws on the other side of 0, both tails; one draw is counted in, so that it is never 0
        side = min(int((drawn <= 0).sum()), int((drawn >= 0).sum()))
        p_value = min(1.0, 2 * (side + 1) / (drawn.size + 1))
    return Interval(value, float(low), float(high), confidence, p_value)
