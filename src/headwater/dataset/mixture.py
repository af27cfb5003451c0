"""Which domain each sample comes from: exact quotas at every prefix, any sample at once, and back.

Weights are integers. With total T = sum of the weights (divided by their common divisor), the sequence of domains
repeats every T samples; within that block it is Tijdeman's solution of the chairman assignment problem (1980,
Discrete Mathematics 32), for which after any number n of samples every domain's count differs from n * weight / T by
at most 1 - 1/(2D - 2) with D domains: less than one sample, at every prefix and not only at block borders.

    mixture = Mixture(whole_weights({"web": 0.45, "books": 0.25, "code": 0.15, "papers": 0.08, "other": 0.07}))
    mixture.count("web", 1000)                  # 450
    mixture.domain(17), mixture.place("web", 3) # the domain of sample 17; the sample that is web's fourth
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from functools import cached_property
from math import gcd, lcm

import numpy as np
from numpy.typing import NDArray

from headwater.core.errors import RecipeError

FINEST = 65_536
"""Longest block of samples. Weights that would need a longer one are rounded to parts of this."""


def whole_weights(weights: Mapping[str, float]) -> dict[str, int]:
    """Weights on any scale as coprime integers with a total of at most `FINEST`.

    Decimal weights are taken as written (0.1 is one tenth), so 45/25/15/8/7 gives a block of 100 samples. Weights
    without such a small common measure, for example token counts, are rounded to parts of `FINEST` by largest
    remainder. Raises RecipeError when no weight is positive, one is negative or not finite, or one is so small that
    it would round to nothing.
    """
    if not weights or not all(0 <= value < float("inf") for value in weights.values()) or not any(weights.values()):
        raise RecipeError(
            f"cannot mix with the weights {dict(weights)}",
            where="mixture",
            mend="give at least one domain a positive weight; none may be negative or infinite",
        )
    exact = {name: Fraction(repr(value)) for name, value in sorted(weights.items()) if value > 0}
    scale = lcm(*(value.denominator for value in exact.values()))
    parts = {name: int(value * scale) for name, value in exact.items()}
    divisor = gcd(*parts.values())
    if sum(parts.values()) // divisor > FINEST:
        parts, divisor = _rounded(exact), 1
        if lost := [name for name, part in parts.items() if part == 0]:
            raise RecipeError(
                f"the weight of {', '.join(lost)} is below 1/{FINEST:,} of the mixture",
                where="mixture",
                mend="give it a larger weight, or leave it out",
            )
        divisor = gcd(*parts.values())
    return {name: part // divisor for name, part in parts.items()}


def _rounded(exact: Mapping[str, Fraction]) -> dict[str, int]:
    total = sum(exact.values())
    ideal = {name: value * FINEST / total for name, value in exact.items()}
    parts = {name: int(value) for name, value in ideal.items()}
    by_remainder = sorted(ideal, key=lambda name: (parts[name] - ideal[name], name))
    for name in by_remainder[: FINEST - sum(parts.values())]:
        parts[name] += 1
    return parts


class Mixture:
    """The periodic sequence of domains for positive integer weights. Immutable.

    `names` are sorted, so equal weights give equal sequences whatever their order in a recipe.
    """

    def __init__(self, weights: Mapping[str, int]) -> None:
        if not weights or any(value < 1 for value in weights.values()) or sum(weights.values()) > FINEST:
            raise ValueError(f"weights must be positive integers with a total of at most {FINEST}: {dict(weights)}")
        divisor = gcd(*weights.values())
        self.names = tuple(sorted(weights))
        self.weights = {name: weights[name] // divisor for name in self.names}
        self.block = sum(self.weights.values())
        """Samples after which every quota is met exactly and the sequence begins again."""

    @cached_property
    def _sequence(self) -> NDArray[np.int32]:
        """Index of the domain of each sample of a block, int32 [block]."""
        return _tijdeman([self.weights[name] for name in self.names])

    @cached_property
    def _places(self) -> dict[str, NDArray[np.int64]]:
        """Of each domain, its samples in a block in rising order, int64 [weight]."""
        return {name: np.flatnonzero(self._sequence == index) for index, name in enumerate(self.names)}

    def domain(self, sample: int) -> str:
        """The domain of sample `sample` >= 0."""
        return self.names[self._sequence[sample % self.block]]

    def count(self, name: str, samples: int) -> int:
        """How many of the first `samples` samples are of domain `name`; 0 for a domain without weight."""
        if name not in self.weights:
            return 0
        blocks, rest = divmod(samples, self.block)
        return blocks * self.weights[name] + int(np.searchsorted(self._places[name], rest))

    def place(self, name: str, number: int) -> int:
        """The sample that is the domain's `number`-th, counted from 0: the inverse of `count`."""
        blocks, rest = divmod(number, self.weights[name])
        return blocks * self.block + int(self._places[name][rest])


def _tijdeman(weights: list[int]) -> NDArray[np.int32]:
    """Assign each of sum(weights) samples to a domain.

    At sample n (from 1) a domain is eligible if n * w - T * count >= T / (2D - 2); among these the one whose count
    would first fall too far behind is taken. All in integers, so that every machine agrees.
    """
    total, domains = sum(weights), len(weights)
    sequence = np.zeros(total, dtype=np.int32)
    if domains == 1:
        return sequence
    slack = 2 * domains - 2
    counts = [0] * domains
    for n in range(1, total + 1):
        best, best_deadline = -1, (0, 1)
        for index, weight in enumerate(weights):
            behind = n * weight - total * counts[index]  # in 1/T of a sample
            if slack * behind < total:
                continue
            # Samples until the count would be more than 1 - 1/slack behind: (T (slack - 1) / slack - behind) / w.
            deadline = (total * (slack - 1) - slack * behind, weight)
            if best < 0 or deadline[0] * best_deadline[1] < best_deadline[0] * deadline[1]:
                best, best_deadline = index, deadline
        assert best >= 0, "Tijdeman's theorem: some domain is always eligible"
        sequence[n - 1] = best
        counts[best] += 1
    return sequence
