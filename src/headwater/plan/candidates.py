"""All layouts worth a look, as arrays: divisors of what must divide, pruned before anything is costed.

In: model, work, cluster and knobs held fixed. Out: a table of candidates and what was left out and why. Deterministic.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from headwater.core.errors import InputError

from .cases import Schedule
from .cluster import ClusterSpec
from .model_spec import ModelSpec
from .train_spec import RUNNABLE_SCHEDULES, SCHEDULE_NAMES, TrainSpec

MICRO_BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
CHUNKS = (2, 3, 4, 5, 6, 8, 10, 12)
# Share of layers computed again, and whether memory-bound work is: none, selective, a part, full.
RECOMPUTE = ((0.0, 0.0), (0.0, 1.0), (0.25, 0.0), (0.5, 0.0), (1.0, 0.0))
LONG_SEQUENCE = 16384  # below it context parallelism is not tried unless asked for
RUNNABLE_PRECISIONS = ("fp32", "tf32", "fp16", "bf16", "fp8")
SPLIT_BACKWARD = ("interleaved_zero_bubble", "zbv", "dualpipev")
SPLIT_KINDS = tuple(SCHEDULE_NAMES[name] for name in SPLIT_BACKWARD)
KNOBS = ("tp", "pp", "dp", "cp", "ep", "chunks", "micro_batch", "zero", "shard", "schedule", "recompute", "nodes")


@dataclass
class Candidates:
    """Columns of equal length, one entry a layout; `nodes` is how many nodes it uses."""

    columns: dict[str, np.ndarray]
    considered: int = 0
    notes: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()))) if self.columns else 0

    def take(self, index: Any) -> Candidates:
        return Candidates({name: values[index] for name, values in self.columns.items()}, self.considered, self.notes)


def divisors(n: int) -> list[int]:
    small = [d for d in range(1, int(n**0.5) + 1) if n % d == 0]
    return sorted({*small, *(n // d for d in small)})


def runnable_reason(model: ModelSpec, train: TrainSpec, schedule: str = "1f1b", ep: int = 1) -> str:
    """Why Headwater's trainer cannot run this, or nothing when it can."""
    reasons = []
    if model.experts:
        reasons.append("mixture-of-experts models are planned, not trained")
    if model.kv_lora:
        reasons.append("multi-head latent attention is planned, not trained")
    if model.learned_positions or model.norm_bias or not model.gated:
        reasons.append("the trainer's decoder is of the Llama family (RMSNorm, gated feed-forward, rotary positions)")
    if ep > 1:
        reasons.append("expert parallelism is planned, not trained")
    if train.precision not in RUNNABLE_PRECISIONS:
        reasons.append(f"{train.precision} training is planned, not done")
    if train.optimizer not in ("adamw", "muon"):
        reasons.append(f"optimizer {train.optimizer} is planned, not done")
    if train.stack == "headwater-compiled" and schedule in SPLIT_BACKWARD:
        reasons.append(f"schedule {schedule} computes input and weight gradients apart, which compiled blocks cannot")
    if schedule not in RUNNABLE_SCHEDULES:
        reasons.append(f"schedule {schedule} is planned, not done")
    return "; ".join(reasons)


def _frozen(knobs: Mapping[str, Any]) -> dict[str, Any]:
    unknown = sorted(set(knobs) - set(KNOBS))
    if unknown:
        raise InputError(f"unknown knob {unknown[0]!r}", where="--fix", mend=f"one of {', '.join(KNOBS)}")
    schedule = knobs.get("schedule")
    if schedule is not None and schedule not in SCHEDULE_NAMES:
        raise InputError(f"unknown schedule {schedule!r}", where="--fix", mend=f"one of {', '.join(SCHEDULE_NAMES)}")
    for name in ("tp", "pp", "dp", "cp", "ep", "chunks", "micro_batch", "shard"):
        if name in knobs and int(knobs[name]) < 1:
            raise InputError(f"{name} is {knobs[name]}", where="--fix", mend="at least 1")
    if "zero" in knobs and not 0 <= int(knobs["zero"]) <= 3:
        raise InputError(f"zero is {knobs['zero']}", where="--fix", mend="a stage from 0 to 3")
    return dict(knobs)


def _choose(knobs: Mapping[str, Any], name: str, options: Iterable[int]) -> list[int]:
    return [int(knobs[name])] if name in knobs else sorted(set(options))


def _stages(layers: int, pp: int) -> bool:
    """Whether layers, alone or with embedding and head as one each, fill the stages evenly."""
    return pp == 1 or (pp <= layers and (layers % pp == 0 or (layers + 2) % pp == 0 or (layers + 1) % pp == 0))


def _schedules(
    knobs: Mapping[str, Any], pp: int, layers: int, m: int, only_runnable: bool, compiled: bool = False
) -> list[tuple[Schedule, int]]:
    """Schedules and chunks for pp stages and m micro-batches."""
    if pp == 1:  # which is as 1f1b with one chunk
        alone = knobs.get("schedule", "1f1b") == "1f1b" and int(knobs.get("chunks", 1)) == 1
        return [(Schedule.NONE, 1)] if alone else []
    per_stage = layers // pp if layers % pp == 0 else (layers + 2) // pp if (layers + 2) % pp == 0 else 0
    names = [knobs["schedule"]] if "schedule" in knobs else ["1f1b", "interleaved_1f1b"] + ["zbv"] * (not compiled)
    if not only_runnable and "schedule" not in knobs:
        names += ["zb_h1", "zb_h2"]
    out: list[tuple[Schedule, int]] = []
    for name in names:
        kind = SCHEDULE_NAMES[name]
        if kind in (Schedule.INTERLEAVED, Schedule.INTERLEAVED_ZB):
            fits = [v for v in CHUNKS if per_stage and per_stage % v == 0 and m % pp == 0]
            chunks = _choose(knobs, "chunks", fits) if "chunks" in knobs else fits
            out += [(kind, v) for v in chunks if per_stage and per_stage % v == 0 and m % pp == 0]
        elif kind in (Schedule.ZB_V, Schedule.DUALPIPE_V):
            if per_stage and per_stage % 2 == 0 and m >= (2 * pp if only_runnable else pp):
                out.append((kind, 2))
        elif m >= pp or kind == Schedule.GPIPE or not only_runnable:  # the trainer's 1F1B fills every stage first
            out.append((kind, 1))
    if "chunks" in knobs:
        out = [(kind, v) for kind, v in out if v == int(knobs["chunks"])]
    return out


def enumerate_layouts(
    model: ModelSpec,
    train: TrainSpec,
    cluster: ClusterSpec,
    knobs: Mapping[str, Any],
    *,
    node_counts: Sequence[int],
    only_runnable: bool,
) -> Candidates:
    """Every layout whose sizes divide: heads by tp, layers by pp, batch by dp, sequence by cp, experts by ep."""
    fixed = _frozen(knobs)
    rows: list[tuple[float, ...]] = []
    considered = 0
    widths = [*([model.ffn] if model.ffn else []), *([model.expert_ffn] if model.experts else [])]
    for nodes in node_counts:
        gpus = nodes * cluster.gpus_per_node
        heads = [t for t in divisors(model.heads) if t <= cluster.domain and gpus % t == 0]
        for tp in _choose(fixed, "tp", heads):
            if model.heads % tp or gpus % tp or any(width % tp for width in widths):
                continue
            if only_runnable and (model.kv_heads % tp or train.seq % tp):
                continue  # the trainer shares key-value heads and the sequence too
            rest = gpus // tp
            long = train.seq >= LONG_SEQUENCE
            cps = [c for c in divisors(rest) if train.seq % (2 * c) == 0 and c <= 64] if long else [1]
            for cp in _choose(fixed, "cp", cps):
                if rest % cp or train.seq % cp:
                    continue
                stages = [p for p in divisors(rest // cp) if _stages(model.layers, p)]
                for pp in _choose(fixed, "pp", stages):
                    if (rest // cp) % pp or pp > model.layers:
                        continue
                    dp = rest // cp // pp
                    if ("dp" in fixed and dp != int(fixed["dp"])) or train.global_batch % dp:
                        considered += 1
                        continue
                    considered += _one_shape(
                        rows, fixed, model, train, only_runnable, (tp, pp, dp, cp, nodes), cluster.gpus_per_node
                    )
    names = ("tp", "pp", "dp", "cp", "ep", "chunks", "micro_batch", "zero", "shard", "schedule", "recompute",
             "recompute_light", "nodes")  # fmt: skip
    table = np.array(rows, dtype=float).reshape(len(rows), len(names))
    return Candidates({name: table[:, i] for i, name in enumerate(names)}, considered + len(rows))


def _one_shape(
    rows: list[tuple[float, ...]],
    fixed: Mapping[str, Any],
    model: ModelSpec,
    train: TrainSpec,
    only_runnable: bool,
    shape: tuple[int, int, int, int, int],
    per_node: int,
) -> int:
    """Append the candidates of one (tp, pp, dp, cp); returns how many were dropped."""
    tp, pp, dp, cp, nodes = shape
    per_rank = train.global_batch // dp
    micro = [b for b in MICRO_BATCHES if per_rank % b == 0]
    eps = [1]
    if model.experts:
        eps = [x for x in divisors(model.experts) if x <= dp * cp * tp and (dp * cp * tp) % x == 0]
    zeros = [int(fixed["zero"])] if "zero" in fixed else [0, 1, 2, 3] if dp * cp > 1 else [0]
    again = list(RECOMPUTE)
    compiled = only_runnable and train.stack == "headwater-compiled"
    if "recompute" in fixed:
        again = [recompute_choice(fixed["recompute"])]
    dropped = 0
    for b in _choose(fixed, "micro_batch", micro):
        if per_rank % b:
            dropped += 1
            continue
        for kind, chunks in _schedules(fixed, pp, model.layers, per_rank // b, only_runnable, compiled):
            # The trainer computes again for each half of a backward pass that is split, and saves little by it.
            split = only_runnable and kind in SPLIT_KINDS and "recompute" not in fixed
            for ep in _choose(fixed, "ep", eps):
                for zero in zeros:
                    if zero > 1 and pp > 1 and "zero" not in fixed:
                        dropped += 1  # sharding gradients or weights again every micro-batch never wins in a pipeline
                        continue
                    for shard in _shards(fixed, zero, dp, tp * cp, per_node):
                        rows.extend(
                            (tp, pp, dp, cp, ep, chunks, b, zero, shard, float(kind), share, light, nodes)
                            for share, light in (RECOMPUTE[:1] if split else again)
                        )
    return dropped


def recompute_choice(value: Any) -> tuple[float, float]:
    """`none`, `selective`, `full` or a share of the layers."""
    named = {"none": (0.0, 0.0), "selective": (0.0, 1.0), "full": (1.0, 0.0)}
    if str(value) in named:
        return named[str(value)]
    try:
        share = float(value)
    except (TypeError, ValueError):
        share = -1.0
    if not 0.0 <= share <= 1.0:
        raise InputError(f"recompute {value!r}", where="--fix", mend="none, selective, full or a share from 0 to 1")
    return share, 0.0


def _shards(fixed: Mapping[str, Any], zero: int, dp: int, inner: int, per_node: int) -> list[int]:
    """Sizes of the group that shares state: all of dp, or (ZeRO-3) only the ranks of one node."""
    if "shard" in fixed:
        size = int(fixed["shard"])
        return [size] if dp % size == 0 and (zero > 0 or size == 1) else []
    if zero == 0:
        return [1]
    node = per_node // inner if inner and per_node % inner == 0 else 0
    return [dp, node] if zero == 3 and 1 < node < dp and dp % node == 0 else [dp]
