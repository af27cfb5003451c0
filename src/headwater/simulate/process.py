"""What only whole runs show of a machine without accelerators: a process's own memory, and messages as ranks send them.

In: a machine file's fields and a few small finished runs of this machine: two or more of one process, of different
sizes, and any of several ranks. Out: the same fields, with a `processor` section that explains the runs' memory and
constants of messages that explain the steps of several ranks.

    machine = with_messages(with_processor(machine, runs), runs)

A resident size is a line over the bytes of tensors at the peak: where it begins is interpreter and libraries, and what
it rises by beyond one is what the allocator keeps between blocks. Several ranks begin higher. A message of a training
step costs more than one of a bare collective, because it is gathered from many tensors and goes back into them, by the
same core that computes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from headwater.core.errors import UserError
from headwater.plan.cluster import from_config
from headwater.simulate.calibrate import descend
from headwater.simulate.runs import compare_run, plan_of_run


def with_processor(machine: Mapping[str, Any], runs: Sequence[Path]) -> dict[str, Any]:
    """The machine with what these runs show. UserError if they do not have two sizes in one process."""
    bare = {**machine["processor"], "process_bytes": 1.0, "rank_bytes": 0.0, "allocator_share": 0.0}
    cluster = from_config({**machine, "processor": bare})
    single: list[tuple[float, float]] = []
    several: list[tuple[float, float]] = []
    for folder in runs:
        planned = plan_of_run(folder, cluster)
        tensors = float(planned.plan.data["memory"]["device_bytes"]) - 1.0
        (single if planned.plan.layout.gpus == 1 else several).append((tensors, planned.measured_bytes))
    start, share = fit_line(single)
    more = [measured - start - (1.0 + share) * tensors for tensors, measured in several]
    processor = {
        **machine["processor"],
        "process_bytes": float(round(start)),
        "rank_bytes": float(round(max(0.0, float(np.median(more))))) if more else 0.0,
        "allocator_share": float(f"{share:.4g}"),
    }
    return {**machine, "processor": processor}


MESSAGES = ("intra_efficiency", "latency")
"""Constants that the steps of several ranks decide: a share of the bare collectives' rate, seconds of a call."""


def with_messages(machine: Mapping[str, Any], runs: Sequence[Path]) -> dict[str, Any]:
    """The machine with messages that cost what the steps of several ranks show; as it is if no run has several."""
    start = dict(machine["calibration"])
    several = [folder for folder in runs if plan_of_run(folder, from_config(machine)).plan.layout.gpus > 1]
    if not several:
        return dict(machine)

    def error(constants: Mapping[str, float]) -> tuple[float, float]:
        cluster = from_config({**machine, "calibration": {**constants, "hop_latency": constants["latency"]}})
        logs = [math.log(compare_run(folder, cluster).quiet_ratio) for folder in several]
        return sum(x * x for x in logs), max(abs(math.expm1(x)) for x in logs)

    constants, (_, left) = descend(error, start, MESSAGES)
    rounded = {name: float(f"{constants[name]:.6g}") for name in MESSAGES}
    calibration = {**start, **rounded, "hop_latency": rounded["latency"]}
    return {**machine, "calibration": calibration, "notes": f"{machine['notes']}; ranks are within {left:.0%}"}


def fit_line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """(Bytes without tensors, share kept beyond tensors) of (bytes of tensors, resident bytes): least squares of
    relative errors, the share at least 0. UserError if all are of one size."""
    if len({tensors for tensors, _ in points}) < 2:
        raise UserError(
            f"{len(points)} runs of one process and one size", where="calibration", mend="give two runs of two sizes"
        )
    tensors, measured = np.array(points).T
    rise, start = np.polyfit(tensors, measured, 1, w=1.0 / measured)
    if rise < 1.0:
        rise, start = 1.0, float(np.average(measured - tensors, weights=1.0 / measured**2))
    return float(start), float(rise - 1.0)
