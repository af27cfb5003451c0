"""What guessing costs on a dataset: marks that a loss must pass before it stands for anything learned.

In: the train split, weights of its domains. Out: nats a token for a model that knows nothing (`uniform`) and for one
that knows how often each token comes and nothing else (`unigram`).

    guess_losses(dataset.split("train"), vocab_size=50_304, mixture=None).unigram
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from headwater.dataset import DatasetSplit

STRETCHES, LENGTH = 32, 2048
"""Of each domain so many stretches of so many tokens are counted, spread evenly; that takes some milliseconds."""


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
        starts = {index * max(0, stream.tokens - LENGTH) // STRETCHES for index in range(STRETCHES)}
        counts = np.zeros(vocab_size)
        for start in sorted(starts):
            tokens = stream.window(start, min(start + LENGTH, stream.tokens)).tokens
            counts += np.bincount(tokens, minlength=vocab_size)
        seen = counts.sum()
        share += weight / whole * counts / max(1.0, seen)
        correction += weight / whole * max(0, int((counts > 0).sum()) - 1) / (2 * max(1.0, seen))
    known = share[share > 0]
    return GuessLosses(math.log(vocab_size), float(-(known * np.log(known)).sum()) + correction)
