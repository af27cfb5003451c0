"""Keys on disk: pairs of a 64-bit key and a value, in several bands, given in any order and read back by key.

Pairs are held until a run's worth of them is there, then each band's are sorted and appended to its file as one run.
Reading takes one range of keys at a time out of all runs, so memory does not grow with the number of pairs. Nothing
is written as long as all fits into one run.

    store = RunStore(folder, bands=20); store.add(keys, rows)
    for keys, values in store.sorted(band=3): ...
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headwater.core.files import disk_errors

RUN_PAIRS, MOST_RUN_PAIRS = 1 << 14, 1 << 18
"""Pairs held before they are written: one in 64 of all, so that neither memory nor the number of runs grows."""

PART_PAIRS, MOST_PART_PAIRS = 1 << 15, 1 << 21
"""Pairs of one key range read at a time, about 40 bytes of memory each: one in 64 of all."""

Pairs = tuple[NDArray[np.uint64], NDArray[Any]]


class RunStore:
    """Pairs (uint64 key, value of `dtype`) in `bands` bands, files BAND.runs in `folder`."""

    def __init__(self, folder: Path, bands: int, dtype: type = np.uint32, run_pairs: int = 0) -> None:
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
        if self._held >= (self.run_pairs or _share(self.pairs, RUN_PAIRS, MOST_RUN_PAIRS)):
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

    def sorted(self, band: int) -> Iterator[Pairs]:
        """Pairs in order of keys, a range of keys at a time, so that equal keys come together; the order of pairs with
        the same key is not fixed."""
        yield from merged(self._open(band))

    def drop(self, band: int) -> None:
        """Forget a band's file; call when the band has been read for the last time."""
        self._path(band).unlink(missing_ok=True)


def _share(pairs: int, least: int, most: int) -> int:
    """One in 64 of the pairs, within limits."""
    return min(max(pairs >> 6, least), most)


def merged(runs: Sequence[Pairs], bases: Sequence[int] = ()) -> Iterator[Pairs]:
    """The pairs of several runs, each in order of keys, as one sequence in order of keys, a range of keys at a time;
    equal keys come together, in no fixed order of values. `bases` are added to the values of each run."""
    shifts = [np.uint64(base) for base in bases] or [np.uint64(0)] * len(runs)
    if any(keys.size for keys, _ in runs):
        full = [number for number, (keys, _) in enumerate(runs) if keys.size]
        runs, shifts = [runs[number] for number in full], [shifts[number] for number in full]
        lowest = min(int(keys[0]) for keys, _ in runs)
        highest = max(int(keys[-1]) for keys, _ in runs)
        total = sum(keys.size for keys, _ in runs)
        parts = max(1, -(-total // _share(total, PART_PAIRS, MOST_PART_PAIRS)))
        before = [0] * len(runs)
        for part in range(1, parts + 1):
            border = highest if part == parts else lowest + (highest - lowest) * part // parts
            after = [int(np.searchsorted(keys, np.uint64(border), side="right")) for keys, _ in runs]
            keys = np.concatenate([run[0][a:b] for run, a, b in zip(runs, before, after, strict=True)])
            values = np.concatenate(
                [
                    run[1][a:b] + shift.astype(run[1].dtype)
                    for run, shift, a, b in zip(runs, shifts, before, after, strict=True)
                ]
            )
            before = after
            if keys.size:
                order = np.argsort(keys)
                yield keys[order], values[order]
