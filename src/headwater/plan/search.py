"""Find the layout: cost every candidate at once, drop what does not fit, rank by speed, price or a limit.

    search(model, train, cluster)                 # fastest
    search(model, train, cluster, goal="cheapest", deadline_days=30)

Deterministic: ties go to the simpler layout (fewer stages, then less tensor parallelism, then a lower ZeRO stage).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from headwater.core.errors import InputError

from .build import cases
from .candidates import Candidates, enumerate_layouts, runnable_reason
from .cases import Cases, Schedule, take
from .cluster import ClusterSpec
from .coefficients import load
from .memory import COMPONENTS, FITS_SHARE, Memory, memory
from .model_spec import ModelSpec
from .reliability import reliability
from .step import StepTime, step_time
from .train_spec import SCHEDULE_NAMES, Layout, TrainSpec

GOALS = ("fastest", "cheapest")
_NAMES = {kind: name for name, kind in SCHEDULE_NAMES.items()}


@dataclass
class Found:
    """Ranked layouts, best first, with what each costs; or none, and the nearest miss."""

    layouts: list[Layout]
    nodes: list[int]
    days: np.ndarray
    dollars: np.ndarray
    step_seconds: np.ndarray
    device_bytes: np.ndarray
    considered: int
    fitting: int
    miss: str = ""
    nearest: Layout | None = None
    nearest_nodes: int = 0
    pareto: list[dict[str, float]] = field(default_factory=list)


def search(
    model: ModelSpec,
    train: TrainSpec,
    cluster: ClusterSpec,
    *,
    goal: str = "fastest",
    knobs: Mapping[str, Any] | None = None,
    deadline_days: float | None = None,
    budget_dollars: float | None = None,
    only_runnable: bool = True,
    keep: int = 20,
) -> Found:
    """Rank all layouts. `budget_dollars` is rented compute. InputError for a request that contradicts itself."""
    if goal not in GOALS:
        raise InputError(f"unknown goal {goal!r}", where="--goal", mend=f"one of {', '.join(GOALS)}")
    for name, value in (("deadline", deadline_days), ("budget", budget_dollars)):
        if value is not None and not 0 < value < float("inf"):
            raise InputError(f"{name} is {value}", where=f"--{name}", mend="a number above zero")
    knobs = dict(knobs or {})
    reason = runnable_reason(model, train)
    strict = only_runnable and not reason
    fewer = goal == "cheapest" or deadline_days is not None or budget_dollars is not None
    found = enumerate_layouts(
        model, train, cluster, knobs, node_counts=_node_counts(cluster, knobs, fewer), only_runnable=strict
    )
    if len(found) == 0:
        return _nothing(found, "no layout divides: " + _why_none(model, train, cluster, knobs, strict))
    table, held = _memory(model, train, cluster, found)
    fits = np.asarray(held.fits(table))
    if not fits.any():
        return _near_miss(model, train, cluster, found, held, table)
    return _rank(model, train, cluster, found, table, held, fits, goal, deadline_days, budget_dollars, keep)


def _node_counts(cluster: ClusterSpec, knobs: dict[str, Any], fewer: bool) -> list[int]:
    if "nodes" in knobs:
        nodes = int(knobs.pop("nodes"))
        if not 1 <= nodes <= cluster.nodes:
            raise InputError(
                f"{nodes} nodes of {cluster.nodes}", where="--fix nodes", mend=f"from 1 to {cluster.nodes}"
            )
        return [nodes]
    if not fewer:
        return [cluster.nodes]
    counts = {max(1, round(cluster.nodes * share)) for share in (1.0, 0.75, 0.5, 0.375, 0.25, 0.125, 0.0625, 0.03125)}
    return sorted(counts | {cluster.nodes})


def _memory(model: ModelSpec, train: TrainSpec, cluster: ClusterSpec, found: Candidates) -> tuple[Cases, Memory]:
    columns = found.columns
    layouts = {name: columns[name] for name in columns if name not in ("nodes", "shard")}
    layouts["shard_group"] = columns["shard"] * columns["cp"]
    layouts["recompute_core"] = np.ones(len(found))
    table = cases(model, train, cluster, layouts)
    return table, memory(table)


def _rank(
    model: ModelSpec,
    train: TrainSpec,
    cluster: ClusterSpec,
    found: Candidates,
    table: Cases,
    held: Memory,
    fits: np.ndarray,
    goal: str,
    deadline: float | None,
    budget: float | None,
    keep: int,
) -> Found:
    index = np.where(fits)[0]
    chosen, rest = found.take(index), take(table, index)
    timed: StepTime = step_time(rest, load(cluster.calibration))
    seconds = np.broadcast_to(np.asarray(timed.total), (len(chosen),))
    nodes = chosen.columns["nodes"]
    kept = np.array([_goodput(model, cluster, int(n)) for n in np.unique(nodes)])
    goodput = kept[np.searchsorted(np.unique(nodes), nodes)]
    days = train.steps * seconds / np.maximum(goodput, 1e-9) / (1.0 - train.evaluation_share) / 86400.0
    dollars = days * 24.0 * nodes * cluster.gpus_per_node * cluster.price_per_gpu_hour
    allowed = np.ones(len(chosen), dtype=bool)
    if deadline is not None:
        allowed &= days <= deadline
    if budget is not None:
        allowed &= dollars <= budget
    if not allowed.any():
        best = int(np.argmin(days if deadline is not None else dollars))
        miss = f"the nearest layout takes {days[best]:,.1f} days and ${dollars[best]:,.0f} of rented compute"
        out = _nothing(found, f"nothing meets the limits: {miss}")
        out.nearest, out.nearest_nodes, out.fitting = _layout(chosen, best), int(nodes[best]), int(fits.sum())
        return out
    first = dollars if goal == "cheapest" or (deadline is not None and budget is None) else days
    second = days if first is dollars else dollars
    c = chosen.columns
    # lexsort: the last key is the first criterion; equal to a millionth counts as a tie.
    keys = (
        c["recompute_light"],
        c["recompute"],
        c["chunks"],
        c["zero"],
        c["cp"],
        c["tp"],
        c["pp"],
        _digits(second),
        _digits(first),
        ~allowed,
    )
    order = np.lexsort(keys)
    top = order[: min(keep, int(allowed.sum()))]
    device = np.broadcast_to(np.asarray(held.device), fits.shape)[index]
    return Found(
        [_layout(chosen, int(i)) for i in top],
        [int(n) for n in nodes[top]],
        days[top],
        dollars[top],
        seconds[top],
        device[top],
        found.considered,
        int(fits.sum()),
        pareto=_pareto(days, dollars, nodes),
    )


def _digits(values: np.ndarray) -> np.ndarray:
    """Six significant digits, so that rounding noise does not decide a tie."""
    scale = 10.0 ** (5 - np.floor(np.log10(np.maximum(values, 1e-300))))
    return np.round(values * scale) / scale


def _goodput(model: ModelSpec, cluster: ClusterSpec, nodes: int) -> float:
    return reliability(cluster.with_nodes(nodes), model.parameters, cluster.gpu_mtbf_hours[1]).goodput


def _pareto(days: np.ndarray, dollars: np.ndarray, nodes: np.ndarray) -> list[dict[str, float]]:
    """The fastest layout of each node count, from the most nodes on, without those that another beats in both."""
    points: list[dict[str, float]] = []
    for n in np.unique(nodes):
        best = int(np.argmin(np.where(nodes == n, days, np.inf)))
        points.append({"nodes": float(n), "days": float(days[best]), "dollars": float(dollars[best])})
    points.sort(key=lambda point: (point["days"], point["dollars"]))
    front: list[dict[str, float]] = []
    for point in points:
        if not front or point["dollars"] < front[-1]["dollars"]:
            front.append(point)
    return front


def _layout(found: Candidates, i: int) -> Layout:
    c = {name: float(values[i]) for name, values in found.columns.items()}
    return Layout(
        tp=int(c["tp"]),
        pp=int(c["pp"]),
        dp=int(c["dp"]),
        cp=int(c["cp"]),
        ep=int(c["ep"]),
        chunks=int(c["chunks"]),
        micro_batch=int(c["micro_batch"]),
        zero=int(c["zero"]),
        shard=int(c["shard"]) if c["zero"] > 0 else int(c["dp"]),
        schedule=_NAMES.get(Schedule(int(c["schedule"])), "1f1b"),
        recompute=c["recompute"],
        recompute_light=bool(c["recompute_light"]),
    )


def _nothing(found: Candidates, why: str) -> Found:
    empty = np.zeros(0)
    return Found([], [], empty, empty, empty, empty, found.considered, 0, why)


def _near_miss(
    model: ModelSpec, train: TrainSpec, cluster: ClusterSpec, found: Candidates, held: Memory, table: Cases
) -> Found:
    device = np.broadcast_to(np.asarray(held.device), (len(found),))
    best = int(np.argmin(device))
    parts = {name: float(np.broadcast_to(np.asarray(held.parts[name]), device.shape)[best]) for name in COMPONENTS}
    worst = max(parts, key=lambda name: parts[name])
    have = FITS_SHARE * cluster.gpu.memory_bytes
    out = _nothing(
        found,
        f"nothing fits: the smallest of {len(found):,} layouts needs {device[best] / 2**30:.1f} GiB a GPU and "
        f"{have / 2**30:.1f} GiB may be used; {worst} binds with {parts[worst] / 2**30:.1f} GiB",
    )
    out.nearest, out.nearest_nodes = _layout(found, best), int(found.columns["nodes"][best])
    return out


def _held_wrong(model: ModelSpec, train: TrainSpec, gpus: int, knobs: Mapping[str, Any], runnable: bool) -> list[str]:
    """What each knob held fixed does not divide."""
    sizes: dict[str, tuple[tuple[int, str], ...]] = {
        "tp": ((gpus, "GPUs"), (model.heads, "heads"))
        + (((model.kv_heads, "key-value heads"), (train.seq, "tokens of a sample")) if runnable else ()),
        "cp": ((gpus, "GPUs"), (train.seq, "tokens of a sample")),
        "pp": ((gpus, "GPUs"),),
        "dp": ((gpus, "GPUs"), (train.global_batch, "samples a step")),
        "micro_batch": ((train.global_batch, "samples a step"),),
    }
    wrong = [
        f"{name} {knobs[name]} does not divide {value:,} {what}"
        for name, wanted in sizes.items()
        if name in knobs
        for value, what in wanted
        if value % int(knobs[name])
    ]
    if "pp" in knobs and int(knobs["pp"]) > model.layers:
        wrong.append(f"pp {knobs['pp']} is more than {model.layers} layers")
    return wrong


def _why_none(
    model: ModelSpec, train: TrainSpec, cluster: ClusterSpec, knobs: Mapping[str, Any], runnable: bool
) -> str:
    fixed = f"with {', '.join(f'{k}={v}' for k, v in knobs.items())} held fixed, " if knobs else ""
    wrong = _held_wrong(model, train, cluster.gpus, knobs, runnable)
    if wrong:
        return fixed + "; ".join(wrong)
    odd = cluster.gpus
    while odd % 2 == 0:
        odd //= 2
    unit = odd * 8 if train.global_batch >= odd * 8 else odd  # some powers of two too, for data-parallel ranks
    near = max(1, round(train.global_batch / unit)) * unit
    hint = ""
    if odd > 1 and train.global_batch % odd:
        hint = f"; a batch of {near:,} shares their factor {odd}"
    elif not knobs and train.global_batch % cluster.gpus:
        hint = f"; a batch of {max(1, round(train.global_batch / cluster.gpus)) * cluster.gpus:,} has a sample for each"
    return (
        f"{fixed}no tp (it divides {model.heads} heads) x pp ({model.layers} layers, a schedule that the micro-batches "
        f"fill) x dp (a batch of {train.global_batch:,}) makes {cluster.gpus:,} GPUs{hint}"
    )
