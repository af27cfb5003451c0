"""Where the time of a run went: the parts of its steps, and what was no step at all. Goodput is the share of steps.

In: the columns of a run and its events. Out: seconds by part, for the whole and over the run. Pure.

    time_split(columns, events)["goodput"]       # 0.93
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headwater.monitor.web.columns import Columns
from headwater.monitor.web.events import number
from headwater.monitor.web.panels import rounded, whole

if TYPE_CHECKING:
    from headwater.monitor.web.thin import Floats

PARTS = {
    "forward_backward_seconds": "forward and backward",
    "communication_seconds": "communication",
    "optimizer_seconds": "optimizer",
    "data_wait_seconds": "waiting for data",
    "monitor_seconds": "sampling of tensors",
}
BETWEEN = {"checkpoint_seconds": "checkpoints", "validation_seconds": "validation and samples"}
OTHER, LOST, DOWN, UNKNOWN = "rest of the step", "steps done again", "not running", "unaccounted"
BUCKETS = 60
LONG_PAUSE_SECONDS, LONG_PAUSE_STEPS = 600.0, 50.0


def training_time(columns: Columns) -> tuple[Floats, int]:
    """(Seconds of training by step, how often the clock went back). Pauses (longer than ten minutes and than fifty
    steps) and clocks set back count nothing, so that runs compare."""
    import numpy

    steps = columns.steps
    clock = columns.dense(("time", ""))
    there = numpy.flatnonzero(~numpy.isnan(clock))
    if len(there) < 2:
        return numpy.zeros(len(steps)), 0
    gaps = numpy.diff(clock[there])
    usual = float(numpy.median(gaps[gaps > 0])) if (gaps > 0).any() else 0.0
    back = int((gaps < -1).sum())
    gaps[(gaps < 0) | (gaps > max(LONG_PAUSE_SECONDS, LONG_PAUSE_STEPS * usual))] = 0
    passed = numpy.concatenate(([0.0], numpy.cumsum(gaps)))
    return numpy.interp(numpy.arange(len(steps)), there, passed), back


def time_split(columns: Columns, events: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """The run's own goodput where it records one, else what its lines and events give:
    {total, goodput, parts: [{name, seconds}], over: {s, parts: [{name, y}]}}; None without times of steps.

    `over` holds shares of each of at most 60 stretches of the run. Lines may be several steps apart: the parts of a
    step then stand for all steps since the line before.
    """
    import numpy

    steps, seconds = columns.steps, columns.dense(("step_seconds", ""))
    if not len(steps) or numpy.isnan(seconds).all():
        return None
    stride = numpy.diff(steps, prepend=min(0.0, steps[0] - 1))
    stride = numpy.minimum(stride, max(1.0, float(numpy.median(stride)) * 2))  # a hole in the record is not a step
    seconds = numpy.nan_to_num(seconds) * stride
    spent: dict[str, Floats] = {}
    for key, name in PARTS.items():
        column = numpy.nan_to_num(columns.dense((key, ""))) * stride
        if column.any():
            spent[name] = column
    spent[OTHER] = numpy.maximum(0.0, seconds - sum(spent.values(), numpy.zeros(len(steps))))
    for key, name in BETWEEN.items():
        column = numpy.nan_to_num(columns.dense((key, "")))
        if column.any():
            spent[name] = column
    totals = {name: float(column.sum()) for name, column in spent.items()}
    lost, down = _restarts(columns, events, float(numpy.median(seconds / stride)))
    wall = max(_wall(columns, events), sum(totals.values()) + lost + down)
    rest = wall - sum(totals.values()) - lost - down
    besides = ((LOST, lost), (DOWN, down), (UNKNOWN, rest if rest > 0.01 * wall else 0.0))
    totals |= {name: amount for name, amount in besides if amount > 0}
    edges = numpy.unique(numpy.linspace(0, len(steps), min(BUCKETS, len(steps)) + 1).astype(int))
    sums = {name: numpy.add.reduceat(column, edges[:-1]) for name, column in spent.items()}
    recorded = columns.last(("goodput", ""))
    whole_stretch = numpy.maximum(sum(sums.values()), 1e-12)
    return {
        "total": wall,
        "goodput": min(1.0, recorded if recorded is not None else float(seconds.sum()) / wall) if wall > 0 else None,
        "parts": [{"name": name, "seconds": amount} for name, amount in totals.items()],
        "over": {
            "s": whole(steps[edges[1:] - 1]),
            "parts": [{"name": name, "y": rounded(column / whole_stretch)} for name, column in sums.items()],
        },
    }


def _wall(columns: Columns, events: Sequence[Mapping[str, Any]]) -> float:
    """From the first sign of the run to its last line. A run that was killed before its first checkpoint has begun more
    than once; its goodput counts from the first time on."""
    _, clock = columns.series(("time", ""))
    if not len(clock):
        return 0.0
    starts = [at for event in events if event.get("event") == "started" and (at := number(event.get("time")))]
    first = float(clock.min())
    return float(clock.max()) - min([first, *starts])


def _restarts(columns: Columns, events: Sequence[Mapping[str, Any]], usual_seconds: float) -> tuple[float, float]:
    """(Seconds of steps that were done again, seconds in which nothing ran) at each resume."""
    import numpy

    steps, clock = columns.series(("time", ""))
    lost = down = 0.0
    for event in events:
        at, step = number(event.get("time")), number(event.get("step"))
        if event.get("event") != "resumed" or at is None or step is None:
            continue
        before = numpy.flatnonzero(steps <= step)
        if not len(before):
            continue
        gap = max(0.0, at - float(clock[before[-1]]))
        again = min(gap, (number(event.get("records_dropped")) or 0.0) * usual_seconds)
        lost += again
        down += gap - again
    return lost, down
