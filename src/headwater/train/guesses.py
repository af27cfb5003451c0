"""What guessing costs on a dataset: marks that a loss must pass before it stands for anything learned.

In: the train split, weights of its domains. Out: nats a token for a model that knows nothing (`uniform`) and for one
that knows how often each token comes and nothing else (`unigram`).

    guess_losses(dataset.split("train"), vocab_size=50_304, mixture=None).unigram
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from headwater.dataset import DatasetSplit

STRETCHES, LENGTH = 32, 2048
"""Of each domain so many stretches of so many tokens are counted, spread evenly; that takes some milliseconds."""

SHARDS = 4
"""They lie in so many shards at most: on a store far away each is fetched before the first step."""


@dataclass(frozen=True, slots=True)
class GuessLosses:
    """Nats per token."""

    uniform: float
    unigram: float


def guess_losses(split: DatasetSplit, *, vocab_size: int, mixture: Mapping[str, float] | None) -> GuessLosses:
    """`mixture`: weights of the domains, None: their sizes. `unigram` is the entropy of the counts of a sample, with
    the correction of Miller and Madow (1955) for tokens that are too rare for it."""
    weights = mixture or {name: float(stream.tokens) for name, stream in split.domains.items()}
    whole = sum(weights.values())
    share = np.zeros(vocab_size)
    correction = 0.0
    for name, weight in weights.items():
        stream = split.domains[name]
        counts = np.zeros(vocab_size)
        for start, stop in _stretches(stream.shard_spans):
            counts += np.bincount(stream.read(start, stop), minlength=vocab_size)
        seen = counts.sum()
        share += weight / whole * counts / max(1.0, seen)
        correction += weight / whole * max(0, int((counts > 0).sum()) - 1) / (2 * max(1.0, seen))
    known = share[share > 0]
    return GuessLosses(math.log(vocab_size), float(-(known * np.log(known)).sum()) + correction)


def _stretches(shards: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """What is counted of a domain whose shards hold tokens (start, stop)."""
    chosen = min(SHARDS, len(shards))
    found: set[tuple[int, int]] = set()
    for place in range(chosen):
        first, end = shards[(2 * place + 1) * len(shards) // (2 * chosen)]
        each = STRETCHES // chosen
        starts = (first + index * max(0, end - first - LENGTH) // each for index in range(each))
        found |= {(start, min(start + LENGTH, end)) for start in starts}
    return sorted(found)
