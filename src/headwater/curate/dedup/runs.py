"""Keys on disk: pairs of a 64-bit key and a value, in several bands, given in any order and read back by key.

Pairs are held until `run_pairs` of them are there, then each band's are sorted and appended to its file as one run.
Reading takes one range of keys at a time out of all runs, so memory does not grow with the number of pairs. Nothing
is written as long as all fits into one run.

    store = RunStore(folder, bands=20); store.add(keys, rows)
    for keys, values in store.sorted(band=3): ...
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headwater.core.files import disk_errors

RUN_PAIRS = 1 << 16
PART_PAIRS = 1 << 21
"""Pairs of one key range read at a time, about 40 bytes of memory each."""

Pairs = tuple[NDArray[np.uint64], NDArray[Any]]


class RunStore:
    """Pairs (uint64 key, value of `dtype`) in `bands` bands, files BAND.runs in `folder`."""

    def __init__(self, folder: Path, bands: int, dtype: type = np.uint32, run_pairs: int = RUN_PAIRS) -> None:
        self.folder, self.bands, self.dtype, self.run_pairs = folder, bands, np.dtype(dtype), run_pairs
        self.pairs = 0
        self._keys = np.empty((bands, 0), np.uint64)
        self._values = np.empty(0, self.dtype)
        self._waiting: list[tuple[NDArray[np.uint64], NDArray[Any]]] = []
        self._held = 0
        self._runs: list[int] = []

    def add(self, keys: NDArray[np.uint64], values: NDArray[Any]) -> None:
        """Add keys [bands, n] with values [n]."""
        if values.size == 0:
            return
        self._waiting.append((keys, values))
        self._held += values.size
        self.pairs += values.size
        if self._held >= self.run_pairs:
            self._write()

    def _gather(self) -> None:
        if self._waiting:
            self._keys = np.concatenate([self._keys, *(keys for keys, _ in self._waiting)], axis=1)
            self._values = np.concatenate([self._values, *(values for _, values in self._waiting)])
            self._waiting.clear()

    def _write(self) -> None:
        self._gather()
        for band in range(self.bands):
            order = np.argsort(self._keys[band])
            path = self._path(band)
            with disk_errors(path), open(path, "ab") as file:
                file.write(self._keys[band][order].tobytes())
                file.write(self._values[order].tobytes())
        self._runs.append(self._values.size)
        self._keys = np.empty((self.bands, 0), np.uint64)
        self._values = np.empty(0, self.dtype)
        self._held = 0

    def _path(self, band: int) -> Path:
        return self.folder / f"{band:03d}.runs"

    def _open(self, band: int) -> list[Pairs]:
        self._gather()
        runs: list[Pairs] = []
        if self._runs:
            raw = np.memmap(self._path(band), np.uint8, mode="r")
            at = 0
            for size in self._runs:
                middle, end = at + 8 * size, at + (8 + self.dtype.itemsize) * size
                runs.append((raw[at:middle].view(np.uint64), raw[middle:end].view(self.dtype)))
                at = end
        if self._values.size:
            order = np.argsort(self._keys[band])
            runs.append((self._keys[band][order], self._values[order]))
        return runs

    def sorted(self, band: int, part_pairs: int = PART_PAIRS) -> Iterator[Pairs]:
        """Pairs in order of keys, a range of keys at a time, so that equal keys come together; the order of pairs with
        the same key is not fixed."""
        runs = self._open(band)
        if not runs:
            return
        lowest = min(int(keys[0]) for keys, _ in runs)
        highest = max(int(keys[-1]) for keys, _ in runs)
        parts = max(1, -(-self.pairs // part_pairs))
        before = [0] * len(runs)
        for part in range(1, parts + 1):
            border = highest if part == parts else lowest + (highest - lowest) * part // parts
            after = [int(np.searchsorted(keys, np.uint64(border), side="right")) for keys, _ in runs]
            keys = np.concatenate([run[0][a:b] for run, a, b in zip(runs, before, after, strict=True)])
            values = np.concatenate([run[1][a:b] for run, a, b in zip(runs, before, after, strict=True)])
            before = after
            if keys.size:
                order = np.argsort(keys)
                yield keys[order], values[order]

    def drop(self, band: int) -> None:
        """Forget a band's file; call when the band has been read for the last time."""
        self._path(band).unlink(missing_ok=True)


class Buckets:
    """Documents that share a key, in one file: only keys of two or more, in order of keys, members ascending."""

    CHUNK_MEMBERS = 1 << 20

    def __init__(self, path: Path) -> None:
        self.path = path
        self.members = 0
        self.buckets = 0
        self._held: list[tuple[NDArray[np.int64], NDArray[np.uint32]]] = []  # until it is too much to hold
        self._chunks: list[tuple[int, int]] = []  # buckets, members of each chunk on disk

    @classmethod
    def of(cls, store: RunStore, band: int, number: NDArray[np.uint32], path: Path) -> Buckets:
        """The buckets of a band; `number` maps a stored value to the document's number."""
        made = cls(path)
        sizes: list[NDArray[np.int64]] = []
        members: list[NDArray[np.uint32]] = []
        waiting = 0
        for keys, values in store.sorted(band):
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
            # Chunks hold a fixed number of members, whatever the ranges they were read in: the outcome of a sweep
            # depends on where it is cut.
            while waiting >= cls.CHUNK_MEMBERS:
                waiting = made._cut(sizes, members)
        while waiting:
            waiting = made._cut(sizes, members)
        return made

    def _cut(self, sizes: list[NDArray[np.int64]], members: list[NDArray[np.uint32]]) -> int:
        """Take the first buckets, until they have CHUNK_MEMBERS members or all are taken; returns members left."""
        all_sizes, all_members = np.concatenate(sizes), np.concatenate(members)
        ends = np.cumsum(all_sizes)
        buckets = min(int(np.searchsorted(ends, self.CHUNK_MEMBERS)) + 1, all_sizes.size)
        end = int(ends[buckets - 1])
        self._append(np.concatenate([[0], ends[:buckets]]), all_members[:end])
        sizes[:], members[:] = [all_sizes[buckets:]], [all_members[end:]]
        return int(all_members.size) - end

    def _append(self, starts: NDArray[np.int64], members: NDArray[np.uint32]) -> None:
        self.members += members.size
        self.buckets += starts.size - 1
        if members.size < RUN_PAIRS and not self._chunks and not self._held:
            self._held.append((starts, members))
            return
        with disk_errors(self.path), open(self.path, "ab") as file:
            for held_starts, held_members in [*self._held, (starts, members)]:
                file.write(held_starts.tobytes())
                file.write(held_members.tobytes())
                self._chunks.append((held_starts.size, held_members.size))
        self._held.clear()

    def __iter__(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.uint32]]]:
        """Chunks of (starts [buckets + 1], members)."""
        yield from self._held
        if self._chunks:
            with open(self.path, "rb") as file:
                for borders, count in self._chunks:
                    starts = np.frombuffer(bytearray(file.read(8 * borders)), np.int64)
                    yield starts, np.frombuffer(bytearray(file.read(4 * count)), np.uint32)
