"""Which pairs to compare, and who stays: documents are numbered by preference, 0 first.

A bucket is the documents that share a key. In each, only its first live document is paired with the others (a star,
so a bucket of n costs n - 1 comparisons, not n squared); what that leaves undecided is paired with the next, up to
`representatives` of them, in later sweeps. A document goes exactly if a document before it that itself stays was
compared with it and found equal enough: never by a chain. The outcome depends on numbers, keys and texts alone.

    pairs, left = propose(starts, members, alive, 0, tested, no_bits, 0, 8, out)
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from headwater.curate.dedup.kernels import kernel, small

HALF = np.uint64(32)
LOW = np.uint64(0xFFFFFFFF)


@kernel
def _distance(a: Any, b: Any) -> Any:
    bits = a ^ b
    count = 0
    while bits:
        bits &= bits - np.uint64(1)
        count += 1
    return count


@kernel
def _holds(values: Any, wanted: Any) -> Any:
    """Whether a sorted array holds a value."""
    low, high = 0, values.size
    while low < high:
        middle = (low + high) // 2
        if values[middle] < wanted:
            low = middle + 1
        else:
            high = middle
    return low < values.size and values[low] == wanted


@kernel
def propose(
    starts: Any, members: Any, alive: Any, frozen: Any, tested: Any, bits: Any, most_bits: Any,
    representatives: Any, out: Any,
) -> Any:  # fmt: skip
    """Pairs (first << 32 | second) to compare into out, uint64 [members.size]; returns (how many, pairs left out
    because a bucket has more live documents than `representatives`).

    starts [buckets + 1] cuts members, ascending in each bucket; documents below `frozen` are never removed, so two of
    them are no pair; `bits`, if not empty, are SimHashes by document: pairs further apart are passed over.
    """
    count = 0
    left = 0
    live = np.empty(members.size, np.uint32)
    for bucket in range(starts.size - 1):
        size = 0
        for index in range(starts[bucket], starts[bucket + 1]):
            if alive[members[index]]:
                live[size] = members[index]
                size += 1
        if size < 2 or live[size - 1] < frozen:
            continue
        before = count
        for centre in range(min(representatives, size - 1)):
            high = np.uint64(live[centre]) << np.uint64(32)
            for index in range(centre + 1, size):
                second = live[index]
                if second < frozen:
                    continue
                if bits.size and _distance(bits[live[centre]], bits[second]) > most_bits:
                    continue
                pair = high | np.uint64(second)
                if not _holds(tested, pair):
                    out[count] = pair
                    count += 1
            if count > before:
                break
        if count == before and size - 1 > representatives:
            rest = size - representatives
            left += rest * (rest - 1) // 2
    return count, left


@kernel
def propose_apart(
    starts: Any, members: Any, side: Any, tested: Any, bits: Any, most_bits: Any, representatives: Any, out: Any
) -> Any:
    """Pairs (held << 32 | train) of documents that share a key and lie on different sides, into out, uint64 [places];
    returns how many, or -1 if there is no place for all. `side`, uint8 by number: 0 gone, 1 train, 2 held out. Of the
    held-out documents of a bucket the first `representatives` are taken."""
    count = 0
    for bucket in range(starts.size - 1):
        held = 0
        for index in range(starts[bucket], starts[bucket + 1]):
            if side[members[index]] != 2:
                continue
            held += 1
            if held > representatives:
                break
            high = np.uint64(members[index]) << np.uint64(32)
            for other in range(starts[bucket], starts[bucket + 1]):
                second = members[other]
                if side[second] != 1:
                    continue
                if bits.size and _distance(bits[members[index]], bits[second]) > most_bits:
                    continue
                pair = high | np.uint64(second)
                if not _holds(tested, pair):
                    if count == out.size:
                        return -1
                    out[count] = pair
                    count += 1
    return count


@kernel
def settle(edges: Any, alive: Any) -> None:
    """Who stays. edges: uint64 (later << 32 | earlier), sorted; alive, uint8 [n], is set to 0 for those that go."""
    alive[:] = 1
    for index in range(edges.size):
        later = edges[index] >> HALF
        if alive[later] and alive[edges[index] & LOW]:
            alive[later] = 0


class Graph:
    """Pairs compared so far and the edges found: pairs whose score reached the threshold."""

    def __init__(self, documents: int) -> None:
        self.alive = np.ones(documents, np.uint8)
        self.edges = np.empty(0, np.uint64)  # later << 32 | earlier, sorted
        self.scores = np.empty(0, np.float64)
        self.rules = np.empty(0, np.uint8)

    def add(self, pairs: NDArray[np.uint64], scores: NDArray[np.float64], rule: int) -> None:
        """Add edges, pairs of (earlier << 32 | later) not added before, and decide anew who stays."""
        fresh = ((pairs & LOW) << HALF) | (pairs >> HALF)
        edges = np.concatenate([self.edges, fresh])
        order = np.argsort(edges, kind="stable")
        self.edges = edges[order]
        self.scores = np.concatenate([self.scores, scores])[order]
        self.rules = np.concatenate([self.rules, np.full(pairs.size, rule, np.uint8)])[order]
        small(settle, self.edges.size)(self.edges, self.alive)

    def removals(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64], NDArray[np.uint8]]:
        """(removed, kept, score, rule) of every document that goes, ascending; kept is the first that stays among
        those it equals, by the rule that came first."""
        later, earlier = (self.edges >> HALF).astype(np.int64), (self.edges & LOW).astype(np.int64)
        usable = np.flatnonzero(self.alive[earlier])
        _, first = np.unique(later[usable], return_index=True)
        chosen = usable[first]
        return later[chosen], earlier[chosen], self.scores[chosen], self.rules[chosen]
