"""A plan: everything predicted for one layout, as one object that prints, saves and compares.

    plan = make_plan(model, train, cluster, layout)
    plan.data["days"]["p50"]; plan.data["step"]["components"]["tp"]

`Plan.data` is plain JSON: what `--json` prints, `plan diff` reads and the report draws. Keys are described in
`docs/plan.md`.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from headwater import __version__
from headwater.core.errors import InputError

from . import counts
from .build import one_case, scalars
from .candidates import runnable_reason
from .cases import Cases
from .cluster import ClusterSpec
from .coefficients import load
from .intervals import Source, features, half_width
from .memory import COMPONENTS as MEMORY_COMPONENTS
from .memory import FITS_SHARE, Memory, memory
from .model_spec import ModelSpec
from .money import USUAL_MFU, cost, rule_of_thumb
from .reliability import Reliability, reliability
from .scaling import advice as scaling_advice
from .step import COMPONENTS, StepTime, step_time
from .train_spec import Layout, TrainSpec

TOKEN_BYTES = 2.0  # a stored token; 4 where the vocabulary is beyond 65,536
LABELS = {
    "gemm": "matrix multiplies", "attention": "attention", "memory_bound": "memory-bound", "recompute": "recompute",
    "head": "head and uneven stages", "host": "host launch", "tp": "tensor parallel", "cp": "context parallel",
    "ep": "expert parallel", "bubble": "pipeline bubble", "pp": "stage transfers", "dp": "data parallel, exposed",
    "optimizer": "optimizer", "fixed": "step overhead", "straggler": "stragglers",
}  # fmt: skip


@dataclass
class Plan:
    """Specifications, and `data`: all that was predicted, as plain values."""

    model: ModelSpec
    train: TrainSpec
    cluster: ClusterSpec
    layout: Layout
    data: dict[str, Any] = field(default_factory=dict)

    @property
    def step_seconds(self) -> float:
        return float(self.data["step"]["seconds"])

    @property
    def fits(self) -> bool:
        return bool(self.data["memory"]["fits"])


def make_plan(model: ModelSpec, train: TrainSpec, cluster: ClusterSpec, layout: Layout) -> Plan:
    """Predict one layout. The cluster's nodes are cut to those the layout uses (a whole number of them)."""
    check_layout(model, train, cluster, layout)
    nodes = -(-layout.gpus // cluster.gpus_per_node)
    cluster = cluster.with_nodes(nodes)
    x = one_case(model, train, cluster, layout)
    timed, held = step_time(x, load(cluster.calibration)), memory(x)
    plan = Plan(model, train, cluster, layout)
    plan.data = {
        "headwater": __version__,
        "tier": "calibrated on this machine" if cluster.calibration else "calibrated on published runs",
        "model": _model(model, train, x),
        "cluster": _cluster(cluster),
        "train": {**asdict(train), "steps": train.steps, "tokens_per_step": train.seq * train.global_batch},
        "layout": {**asdict(layout), "gpus": layout.gpus, "describe": layout.describe()},
        "memory": _memory(x, held),
        "step": _step(x, timed, layout),
    }
    speed = _speed(x, timed, cluster, train)
    plan.data["throughput"] = speed
    plan.data |= _run(model, train, cluster, plan.data["step"]["seconds"], speed["half_width_log"])
    plan.data["scaling"] = scaling_advice(model.active_parameters, train.tokens, train.unique_tokens)
    reason = runnable_reason(model, train, layout.schedule if layout.pp > 1 else "1f1b", layout.ep)
    plan.data["runnable"] = {"runnable": not reason, "reason": reason}
    from .advice import warnings

    plan.data["warnings"] = warnings(plan)
    return plan


def check_layout(model: ModelSpec, train: TrainSpec, cluster: ClusterSpec, layout: Layout) -> None:
    """InputError when the layout cannot exist: what does not divide, or more GPUs than there are."""
    rows = (
        (layout.gpus > cluster.gpus, f"it takes {layout.gpus:,} GPUs and the cluster has {cluster.gpus:,}",
         "fewer ranks or more nodes"),
        (model.heads % layout.tp, f"tp {layout.tp} does not divide {model.heads} heads", "a divisor"),
        (layout.pp > model.layers, f"{layout.pp} stages for {model.layers} layers", "at most one stage a layer"),
        (train.seq % layout.cp, f"cp {layout.cp} does not divide a sequence of {train.seq:,}", "a divisor"),
        (
            train.global_batch % (layout.dp * layout.micro_batch),
            f"a batch of {train.global_batch:,} is no multiple of dp {layout.dp} x micro-batch {layout.micro_batch}",
            "change the batch or the layout",
        ),
        (layout.ep > 1 and not model.experts, f"ep {layout.ep} without experts", "ep 1"),
        (model.experts % layout.ep, f"ep {layout.ep} does not divide {model.experts} experts", "a divisor"),
    )  # fmt: skip
    for wrong, what, mend in rows:
        if wrong:
            raise InputError(what, where="layout", mend=mend)
    m = train.global_batch // (layout.dp * layout.micro_batch)
    if layout.pp > 1 and layout.schedule in ("interleaved_1f1b", "interleaved_zero_bubble") and m % layout.pp:
        raise InputError(
            f"{layout.schedule} needs micro-batches ({m}) in multiples of the {layout.pp} stages", where="layout"
        )
    if layout.pp > 1 and layout.schedule in ("zbv", "dualpipev", "dualpipe") and m < layout.pp:
        raise InputError(f"{layout.schedule} needs {layout.pp} micro-batches or more, not {m}", where="layout")


def _model(model: ModelSpec, train: TrainSpec, x: Cases) -> dict[str, Any]:
    full = float(counts.model_flops_per_token(x, 1.0)[0])
    causal = float(counts.model_flops_per_token(x, 0.5)[0])
    return {
        **asdict(model),
        "parameters": model.parameters,
        "active_parameters": model.active_parameters,
        "flops_per_token": full,
        "flops_per_token_causal": causal,
        "hardware_flops_per_token": float(counts.hardware_flops_per_token(x, 0.5)[0]),
        "flops_total": full * train.tokens,
        "convention": "model FLOPs: forward and backward of all multiplies; attention counts all scores "
        "(flops_per_token) or the causal half (_causal); hardware FLOPs add recomputed ones to the causal count",
    }


def _cluster(cluster: ClusterSpec) -> dict[str, Any]:
    out = asdict(cluster)
    out["gpu"] = {**asdict(cluster.gpu), "peak": dict(cluster.gpu.peak)}
    return {**out, "gpus": cluster.gpus, "describe": cluster.describe()}


def _memory(x: Cases, held: Memory) -> dict[str, Any]:
    names = ("first", "middle", "last")
    stages = {
        name: scalars({key: value + 0.0 * held.allocated for key, value in stage.items()})
        for name, stage in zip(names, held.stages, strict=True)
    }
    if float(x.pp[0]) <= 1:
        stages = {"only": stages["first"]}
    elif float(x.pp[0]) == 2:
        stages.pop("middle")
    device, capacity = float(held.device[0]), scalars({"rank": x.rank_memory})["rank"]
    parts = scalars({name: held.parts[name] for name in MEMORY_COMPONENTS})
    return {
        "components": parts,
        "stages": stages,
        "allocated_bytes": float(held.allocated[0]),
        "reserved_bytes": float(held.reserved[0]),
        "device_bytes": device,
        "capacity_bytes": capacity,
        "usable_bytes": FITS_SHARE * capacity,
        "share_of_device": device / capacity,
        "fits": device <= FITS_SHARE * capacity,
        "binds": max(parts, key=lambda name: parts[name]),
    }


def _step(x: Cases, timed: StepTime, layout: Layout) -> dict[str, Any]:
    parts = scalars({name: timed.parts[name] + 0.0 * timed.total for name in COMPONENTS})
    total = float(timed.total[0])
    chunk = float(layout.chunks)
    return {
        "seconds": total,
        "components": parts,
        "shares": {name: value / total for name, value in parts.items()},
        "micro_batches": int(x.microbatches[0]),
        "bubble_share": float(timed.bubble_fraction[0]),
        "exposed_traffic_share": sum(parts[name] for name in ("tp", "cp", "ep", "pp", "dp")) / total,
        "chunk_seconds": {
            "forward": float(timed.forward_seconds[0]) / chunk,
            "dgrad": float(timed.dgrad_seconds[0]) / chunk,
            "wgrad": float(timed.wgrad_seconds[0]) / chunk,
        },
    }


def _speed(x: Cases, timed: StepTime, cluster: ClusterSpec, train: TrainSpec) -> dict[str, Any]:
    each = float(timed.tokens_per_second_per_gpu(x)[0])
    full = float(counts.model_flops_per_token(x, 1.0)[0])
    causal = float(counts.model_flops_per_token(x, 0.5)[0])
    hardware = float(counts.hardware_flops_per_token(x, 0.5)[0])
    peak = cluster.gpu.peak_flops(train.precision)
    known = features(timed.parts, timed.total, x.experts > 0, np.zeros(1), x.quantised)
    width = float(half_width(known, np.array([Source.NAMED]))[0])  # the site is none of the table's
    return {
        "tokens_per_second": each * cluster.gpus,
        "tokens_per_second_per_gpu": each,
        "low": each * float(np.exp(-width)),
        "high": each * float(np.exp(width)),
        "interval": "80 % of published runs fall inside",
        "half_width_log": width,
        "model_tflops_per_gpu": each * full / 1e12,
        "mfu": each * full / peak,
        "mfu_causal": each * causal / peak,
        "hfu": each * hardware / peak,
        "mfu_convention": f"of the dense {train.precision} peak, {peak / 1e12:.0f} TFLOPS; mfu counts all attention "
        "scores, mfu_causal half of them, hfu the causal half and recomputed work",
    }


def _days(seconds: float, train: TrainSpec, kept: float) -> float:
    ramp = train.warmup_batch_tokens / train.tokens
    # While the batch ramps up, half of the full batch is the mean and the GPUs stand half idle.
    return train.steps * seconds * (1.0 + ramp) / max(kept, 1e-9) / (1.0 - train.evaluation_share) / 86400.0


def _run(model: ModelSpec, train: TrainSpec, cluster: ClusterSpec, seconds: float, width: float) -> dict[str, Any]:
    low, middle, high = cluster.gpu_mtbf_hours
    worst, usual, best = (reliability(cluster, model.parameters, hours) for hours in (low, middle, high))
    days = {
        "p10": _days(seconds * float(np.exp(-width)), train, best.goodput),
        "p50": _days(seconds, train, usual.goodput),
        "p90": _days(seconds * float(np.exp(width)), train, worst.goodput),
        "compute_only": train.steps * seconds / 86400.0,
    }
    money = {name: asdict(cost(cluster, days[name])) for name in ("p10", "p50", "p90")}
    return {
        "days": days,
        "failures": _failures(usual, worst, best, days["p50"]),
        "storage": _storage(model, train, cluster, usual, days["p50"]),
        "cost": {
            **money,
            "rule_of_thumb": {
                **asdict(rule_of_thumb(cluster, model.active_parameters, train.tokens)),
                "what": f"6 N D at {USUAL_MFU[0]:.0%} of the peak ({USUAL_MFU[1]:.0%} since Hopper), any layout",
            },
            "rented": "GPU-hours x price per GPU-hour",
            "all_in": f"rented x {cluster.all_in[0]:g} to {cluster.all_in[1]:g}: network, storage, staff, failed runs",
            "price_per_gpu_hour": cluster.price_per_gpu_hour,
        },
    }


def _failures(usual: Reliability, worst: Reliability, best: Reliability, days: float) -> dict[str, Any]:
    wall = days * 86400.0
    return {
        "hours_between": usual.mtbf_seconds / 3600.0,
        "expected": usual.failures(wall),
        "expected_low": best.failures(wall),
        "expected_high": worst.failures(wall),
        "goodput": usual.goodput,
        "goodput_low": worst.goodput,
        "goodput_high": best.goodput,
        "checkpoint_interval_seconds": usual.interval_seconds,
        "checkpoint_stall_seconds": usual.stall_seconds,
        "restart_seconds": usual.restart_seconds,
        "rule": "Daly 2006: optimum near sqrt(2 x save x MTBF), exact expectation of wall time",
    }


def _storage(
    model: ModelSpec, train: TrainSpec, cluster: ClusterSpec, usual: Reliability, days: float
) -> dict[str, Any]:
    width = TOKEN_BYTES if model.vocab <= 65_536 else 2.0 * TOKEN_BYTES
    rate = min(cluster.storage_bandwidth, cluster.nodes * cluster.storage_node_bandwidth)
    reading = train.tokens * width / (days * 86400.0)
    return {
        "dataset_bytes": (train.unique_tokens or train.tokens) * width,
        "read_bytes_per_second": reading,
        "checkpoint_bytes": usual.checkpoint_bytes,
        "checkpoint_save_seconds": usual.save_seconds,
        "write_bytes_per_second": rate,
        "read_share": reading / cluster.storage_bandwidth,
        "save_share_of_interval": usual.save_seconds / usual.interval_seconds,
        "ten_checkpoints_bytes": 10.0 * usual.checkpoint_bytes,
    }
