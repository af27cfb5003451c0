"""Predictions for a table of published runs: all variants of all rows at once, the fastest that fits of each row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from headwater.core.errors import InputError

from .cases import Cases, stack, take
from .coefficients import Coefficients
from .intervals import Source, features
from .memory import Memory, memory
from .published import Published, measured_throughput, prepare
from .published_table import Row
from .stacks import raw
from .step import StepTime, step_time


@dataclass
class Table:
    """Rows that can be predicted, their variants stacked, and what does not depend on coefficients."""

    rows: list[Published]
    cases: Cases
    owner: np.ndarray  # row of each variant
    start: np.ndarray  # first variant of each row
    memory: Memory
    fits: np.ndarray
    measured: np.ndarray  # tokens/s/GPU, nan where nothing was measured
    skipped: list[Published]

    @property
    def families(self) -> np.ndarray:
        return np.array([row.family for row in self.rows])

    @property
    def scored(self) -> np.ndarray:
        """Dense rows of grade A or B with a measured throughput."""
        good = [not row.moe and row.graded for row in self.rows]
        return np.array(good, dtype=bool) & np.isfinite(self.measured)

    @property
    def moe(self) -> np.ndarray:
        return np.array([row.moe for row in self.rows])


@dataclass
class Predictions:
    """One entry a row: the chosen variant, tokens/s/GPU and the features its interval comes from."""

    pick: np.ndarray
    throughput: np.ndarray
    features: np.ndarray
    source: np.ndarray  # a `Source`: what is known of the software and site of each row
    step: StepTime


def build(rows: Sequence[Row], siblings: Sequence[Row]) -> Table:
    """Prepare rows; a row that cannot be predicted goes to `skipped` with its reason. InputError if none can."""
    prepared = [prepare(row, siblings) for row in rows]
    kept = [row for row in prepared if row.variants]
    if not kept:
        reasons = list(dict.fromkeys(row.skipped for row in prepared))
        more = f", and {len(reasons) - 3} more" if len(reasons) > 3 else ""
        raise InputError(
            f"none of {len(rows)} rows can be predicted: {'; '.join(reasons[:3])}{more}",
            where="table",
            mend="a row needs a GPU, n_gpus, tp, pp, dp, hidden, layers or params_b, seq and global_batch",
        )
    flat = [variant for row in kept for variant in row.variants]
    owner = np.repeat(np.arange(len(kept)), [len(row.variants) for row in kept])
    cases = stack(flat)
    held = memory(cases)
    measured = np.array([measured_throughput(row.row, row.variants[0]) or np.nan for row in kept])
    start = np.searchsorted(owner, np.arange(len(kept)))
    skipped = [row for row in prepared if not row.variants]
    return Table(kept, cases, owner, start, held, np.asarray(held.fits(cases)), measured, skipped)


NEAR = 1.15  # where nothing fits, variants this near to the smallest still compete


def choose(table: Table, throughput: np.ndarray) -> np.ndarray:
    """The fastest variant that fits of each row; where none fits, the fastest of those nearest to fitting."""
    over = np.asarray(table.memory.device / table.cases.memory_bytes)
    least = np.minimum.reduceat(over, table.start)[table.owner]
    none_fits = ~np.logical_or.reduceat(table.fits, table.start)[table.owner]
    allowed = table.fits | (none_fits & (over <= NEAR * least))
    key = np.where(allowed, throughput, -over)
    order = np.lexsort((-key, table.owner))
    return order[np.searchsorted(table.owner[order], np.arange(len(table.rows)))]


def predict(table: Table, c: Coefficients) -> Predictions:
    """Predict every row with the constants `c`."""
    step = step_time(table.cases, c)
    throughput = np.asarray(step.tokens_per_second_per_gpu(table.cases))
    pick = choose(table, throughput)
    chosen = take(table.cases, pick)
    parts = {name: np.broadcast_to(value, throughput.shape)[pick] for name, value in step.parts.items()}
    searched = np.array([any("searched" in note for note in row.assumed) for row in table.rows])
    known = features(parts, step.total[pick], table.moe, searched, chosen.quantised)
    return Predictions(pick, throughput[pick], known, np.array([_source(row) for row in table.rows]), step)


def _source(row: Published) -> Source:
    if row.family in raw()["sources"]:
        return Source.SEEN
    return Source.GUESSED if row.usual_software else Source.NAMED
