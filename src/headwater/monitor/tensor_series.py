"""Figures of single tensors and attention heads, read back: series by name over steps, for heat maps.

In: a run's folder, finished or growing, whose `tensors/` has Parquet files (`headwater.monitor.tensor_files`). Out:
matrices of steps x names. Files that are read once are kept, so asking again reads what is new.

    series = TensorSeries(run_dir); series.metrics(); steps, names, values = series.matrix("grad_norm", most_steps=200)
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headwater.monitor.tensor_files import FOLDER, TensorFile, list_files

TENSOR_METRICS: dict[str, str] = {
    "grad_norm": "param_grad_norm",
    "weight_norm": "param_weight_norm",
    "update_ratio": "update_ratio",
    "head_entropy": "head_entropy_ratio",
    "head_sink": "head_sink_ratio",
    "head_max_logit": "head_max_logit",
    "head_activity": "head_activity_ratio",
}
"""What is recorded of each tensor or head, and the metric of the registry that has its extremes."""

RETRIES = 5
"""A growing run joins files while they are read: then the list is taken anew."""


class Matrix(NamedTuple):
    """`values[i, j]` is that of `names[j]` at `steps[i]`, NaN where there is none."""

    steps: NDArray[np.int64]
    names: list[str]
    values: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class _Part:
    """The rows of a metric in one file."""

    steps: NDArray[np.int64]
    codes: NDArray[np.int64]
    names: tuple[str, ...]
    values: NDArray[np.float64]


class TensorSeries:
    """Reads what a run has recorded of its tensors; a run without any has no metrics."""

    def __init__(self, run_dir: Path | str) -> None:
        self._folder = Path(run_dir) / FOLDER
        self._read: dict[tuple[str, int, int], dict[str, _Part]] = {}
        self.broken: list[str] = []
        """Names of files that cannot be read (a power cut can leave one), at the last look; they are left out."""

    def metrics(self) -> list[str]:
        """Which metrics there are, in the order of `TENSOR_METRICS`."""
        found = {metric for part in self._parts() for metric in part}
        return [*(metric for metric in TENSOR_METRICS if metric in found), *sorted(found - TENSOR_METRICS.keys())]

    def matrix(self, metric: str, *, most_steps: int | None = None, keep: Literal["max", "min"] = "max") -> Matrix:
        """A metric over all sampled steps, names in the model's order; empty if it was never sampled.

        `most_steps`: at most so many rows; each is then the largest value (or the least, by `keep`) of several steps
        in a row, so that no spike is lost, and has the last of their steps.
        """
        parts = [part[metric] for part in self._parts() if metric in part]
        if not parts:
            return Matrix(np.zeros(0, np.int64), [], np.zeros((0, 0)))
        names = sorted({name for part in parts for name in part.names}, key=model_order)
        column = {name: place for place, name in enumerate(names)}
        steps = np.unique(np.concatenate([part.steps for part in parts]))
        values = np.full((len(steps), len(names)), np.nan)
        newest = np.full(len(steps), -1)
        for number, part in enumerate(parts):  # a later file's sample of a step replaces an earlier one's
            rows = np.searchsorted(steps, part.steps)
            again = np.unique(rows)
            again = again[newest[again] >= 0]
            values[again] = np.nan
            newest[rows] = number
            values[rows, np.array([column[name] for name in part.names], np.int64)[part.codes]] = part.values
        if most_steps is not None and len(steps) > most_steps:
            steps, values = _thin(steps, values, most_steps, keep)
        return Matrix(steps, names, values)

    def _parts(self) -> list[dict[str, _Part]]:
        """Rows by metric of every file, in the order they were sampled."""
        for attempt in range(RETRIES):
            try:
                return list(self._load(list_files(self._folder), last=attempt == RETRIES - 1))
            except FileNotFoundError:
                continue
        return []

    def _load(self, files: list[TensorFile], *, last: bool) -> Iterator[dict[str, _Part]]:
        self.broken = []
        known, self._read = self._read, {}
        for file in files:
            path = self._folder / file.name
            try:
                facts = os.stat(path)
                key = (file.name, facts.st_size, facts.st_mtime_ns)
                self._read[key] = known[key] if key in known else _read_file(path)
            except FileNotFoundError:
                if not last:
                    self._read |= {key: part for key, part in known.items() if key not in self._read}
                    raise
                continue
            except (OSError, ValueError, KeyError):  # pyarrow's errors are ValueErrors
                self.broken.append(file.name)
                continue
            yield self._read[key]


def _read_file(path: Path) -> dict[str, _Part]:
    import pyarrow.parquet as pq

    table = pq.read_table(path, columns=["step", "name", "metric", "value"], memory_map=False)
    metrics = table["metric"].combine_chunks().dictionary_encode()
    kinds, steps, values = metrics.indices.to_numpy(), table["step"].to_numpy(), table["value"].to_numpy()
    encoded = table["name"].combine_chunks().dictionary_encode()
    names, codes = encoded.dictionary.to_pylist(), encoded.indices.to_numpy()
    found = {}
    for number, metric in enumerate(metrics.dictionary.to_pylist()):
        rows = kinds == number
        used, own = np.unique(codes[rows], return_inverse=True)
        found[metric] = _Part(
            steps[rows].astype(np.int64), own.reshape(-1), tuple(names[code] for code in used), values[rows]
        )
    return found


def _thin(
    steps: NDArray[np.int64], values: NDArray[np.float64], most: int, keep: Literal["max", "min"]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    starts = np.arange(most) * len(steps) // most
    reduce = np.fmax if keep == "max" else np.fmin  # of a number and NaN they give the number
    ends = np.append(starts[1:], len(steps)) - 1
    return steps[ends], reduce.reduceat(values, starts, axis=0)


def model_order(name: str) -> tuple[int, list[tuple[int, str]]]:
    """Sorts names as a model has them: embedding, layers by number, final norm, head."""
    parts = [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]
    place = 1 if "layers." in name else 0 if "embed" in name else 3 if "head" in name else 2
    return place, parts
