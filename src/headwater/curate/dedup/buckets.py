"""Buckets: documents that share a key, made of sorted pairs of key and value.

Only keys of two or more documents are kept, in order of keys, members ascending. Chunks hold a fixed number of members,
whatever ranges the pairs were read in: the outcome of a sweep depends on where it is cut.

    for starts, members in chunks(store.sorted(band), number): ...
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from headwater.core.files import disk_errors
from headwater.curate.dedup.runs import Pairs

CHUNK_MEMBERS = 1 << 20
HELD_MEMBERS = 1 << 14
"""A band with fewer members stays in memory."""

Chunk = tuple[NDArray[np.int64], NDArray[np.uint32]]
"""(starts [buckets + 1], members [starts[-1]])"""


def chunks(parts: Iterable[Pairs], number: NDArray[np.uint32]) -> Iterator[Chunk]:
    """Buckets of pairs that come in order of keys, equal keys together; `number` maps a value to the document's
    number."""
    sizes: list[NDArray[np.int64]] = []
    members: list[NDArray[np.uint32]] = []
    waiting = 0
    for keys, values in parts:
        same = keys[1:] == keys[:-1]
        several = np.zeros(keys.size, np.bool_)
        several[1:] = same
        several[:-1] |= same
        keys, documents = keys[several], number[values[several]]
        order = np.lexsort((documents, keys))
        keys, documents = keys[order], documents[order]
        if keys.size:
            starts = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
            sizes.append(np.diff(np.append(starts, keys.size)))
            members.append(documents)
            waiting += documents.size
        while waiting >= CHUNK_MEMBERS:
            yield _cut(sizes, members)
            waiting = int(members[0].size)
    while waiting:
        yield _cut(sizes, members)
        waiting = int(members[0].size)


def _cut(sizes: list[NDArray[np.int64]], members: list[NDArray[np.uint32]]) -> Chunk:
    """Take the first buckets, until they have CHUNK_MEMBERS members or all are taken."""
    all_sizes, all_members = np.concatenate(sizes), np.concatenate(members)
    ends = np.cumsum(all_sizes)
    buckets = min(int(np.searchsorted(ends, CHUNK_MEMBERS)) + 1, all_sizes.size)
    end = int(ends[buckets - 1])
    sizes[:], members[:] = [all_sizes[buckets:]], [all_members[end:]]
    return np.concatenate([[0], ends[:buckets]]), all_members[:end]


def read_chunks(path: Path, sizes: Iterable[tuple[int, int]]) -> Iterator[Chunk]:
    """Chunks of a file that holds one after the other; `sizes` says starts and members of each."""
    with open(path, "rb") as file:
        for starts, members in sizes:
            borders = np.frombuffer(bytearray(file.read(8 * starts)), np.int64)
            yield borders, np.frombuffer(bytearray(file.read(4 * members)), np.uint32)


class Buckets:
    """The chunks of one band, to be read several times: in memory while they are small, else in a file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._held: list[Chunk] = []
        self._sizes: list[tuple[int, int]] = []

    @classmethod
    def of(cls, parts: Iterable[Pairs], number: NDArray[np.uint32], path: Path) -> Buckets:
        made = cls(path)
        for starts, members in chunks(parts, number):
            made._append(starts, members)
        return made

    def _append(self, starts: NDArray[np.int64], members: NDArray[np.uint32]) -> None:
        if members.size < HELD_MEMBERS and not self._sizes and not self._held:
            self._held.append((starts, members))
            return
        with disk_errors(self.path), open(self.path, "ab") as file:
            for held_starts, held_members in [*self._held, (starts, members)]:
                file.write(held_starts.tobytes())
                file.write(held_members.tobytes())
                self._sizes.append((held_starts.size, held_members.size))
        self._held.clear()

    def __iter__(self) -> Iterator[Chunk]:
        yield from self._held
        if self._sizes:
            yield from read_chunks(self.path, self._sizes)
