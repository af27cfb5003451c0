"""Train, validation and test by a hash of the cleaned text: a document's side never depends on what else there is.

A document has a number u in [0, 2^64), drawn from its text's hash. The lowest `validation` share goes to validation,
the highest `test` share to test. A domain whose share would give it fewer than `min_documents` gets its limits moved
to the u of that many documents.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headwater.curate.config import SplitConfig

SPLITS = ("train", "validation", "test")
SPAN = 2**64
SHARE_FOR_MINIMUM = 10
"""The minimum takes at most every tenth document of a domain."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one domain: validation is u < `validation_below`, test is u >= `test_from`."""

    validation_below: int
    test_from: int


def split_numbers(hashes: NDArray[np.uint64], seed: int) -> NDArray[np.uint64]:
    """u of each document, uint64 [n], from text hashes, uint64 [n, 2]; SplitMix64 of hash and seed."""
    golden = np.uint64(0x9E3779B97F4A7C15)
    with np.errstate(over="ignore"):
        mixed = (hashes[:, 0] ^ np.uint64(seed % SPAN) * golden) + hashes[:, 1] * golden
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def limits(config: SplitConfig, documents: int, lowest: Sequence[int], highest: Sequence[int]) -> Limits:
    """Limits of a domain with `documents` documents, of which `lowest` (ascending) and `highest` (descending) are the
    first `min_documents` numbers at both ends."""
    least = min(config.min_documents, documents // SHARE_FOR_MINIMUM)
    below, start = int(config.validation * SPAN), SPAN - int(config.test * SPAN)
    if config.validation and least:
        below = max(below, lowest[least - 1] + 1)
    if config.test and least:
        start = min(start, highest[least - 1])
    return Limits(below, start)


def sides(numbers: NDArray[np.uint64], limits: Limits) -> NDArray[np.uint8]:
    """Index into `SPLITS` of each document, uint8 [n]."""
    found = np.zeros(len(numbers), np.uint8)
    if limits.validation_below:
        found[numbers <= np.uint64(limits.validation_below - 1)] = 1
    if limits.test_from < SPAN:
        found[numbers >= np.uint64(limits.test_from)] = 2
    return found
