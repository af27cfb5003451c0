"""A unigram model over tokens: the floor any language model must beat.

Unigram.fit(stream, vocab_size=32768).log_probabilities(np.array([17, 4]))
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from headwater.core.errors import InputError

ADDED = 0.5
"""Added to every id's count, seen or not (Krichevsky and Trofimov's estimator)."""


class Unigram:
    """p(token) = (count + ADDED) / (tokens + ADDED * vocabulary)."""

    def __init__(self, logs: NDArray[np.float64]) -> None:
        self._logs = logs
        self.vocab_size = len(logs)

    @classmethod
    def fit(cls, stream: NDArray[np.integer], *, vocab_size: int) -> Unigram:
        """Count `stream` [tokens]. Raises InputError for an empty stream or an id outside the vocabulary."""
        if len(stream) == 0:
            raise InputError("no tokens to train the unigram model on")
        if int(stream.min()) < 0 or int(stream.max()) >= vocab_size:
            raise InputError(
                f"token ids {int(stream.min())}..{int(stream.max())} do not fit a vocabulary of {vocab_size}",
                mend="train the unigram model on tokens of the same tokenizer",
            )
        counts = np.bincount(stream, minlength=vocab_size).astype(np.float64)
        return cls(np.log((counts + ADDED) / (len(stream) + ADDED * vocab_size)))

    def log_probabilities(self, document: NDArray[np.integer]) -> NDArray[np.float64]:
        """ln p of every token. [tokens]"""
        return self._logs[document]

    def score(self, documents: list[NDArray[np.integer]]) -> list[NDArray[np.float64]]:
        """ln p of every token of every document; one array a document, in order."""
        return [self._logs[document] for document in documents]
