"""The few global constants of the cost model, each with its meaning; none belongs to one family of runs.

Values come from `data/coefficients.yaml`, written by `benchmarks/plan_fit.py` from published runs: a prior with its
spread (what hardware and papers say) pulled by robust least squares on log throughput.

    python -c "from headwater.plan.coefficients import load; print(load().gemm_sustained)"
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from importlib.resources import files
from typing import Any

import yaml


@dataclass(frozen=True)
class Coefficients:
    """One number a constant; `data/coefficients.yaml` says what each means and where its prior comes from."""

    gemm_sustained: float
    gemm_depth: float
    gemm_launch: float
    wave_exponent: float
    misaligned: float
    ragged: float
    flash1: float
    flash2: float
    flash3: float
    flash_port: float
    flash_warmup: float
    score_bytes: float
    memory_efficiency: float
    elementwise_eager: float
    elementwise_fused: float
    elementwise_compiled: float
    kernel_gap: float
    cast_bytes: float
    intra_efficiency: float
    inter_efficiency: float
    latency: float
    tp_sync: float
    hop_latency: float
    wgrad_hidden: float
    tp_hidden: float
    p2p_exposed: float
    grad_hidden: float
    interference: float
    host_eager: float
    host_fused: float
    host_group: float
    host_step: float
    straggler: float
    straggler_power: float
    expert_imbalance: float
    expert_host: float
    expert_hidden: float


@cache
def raw() -> dict[str, Any]:
    """The file as it stands: constants with prior, spread, limit and meaning, and the interval's weights."""
    return yaml.safe_load(files("headwater.plan").joinpath("data/coefficients.yaml").read_text())


@cache
def _fitted() -> Coefficients:
    table = raw()["coefficients"]
    return Coefficients(**{f.name: float(table[f.name]["value"]) for f in fields(Coefficients)})


def load(measured: Mapping[str, float] | None = None) -> Coefficients:
    """The fitted constants; in place of some, those that were measured on a machine."""
    return replace(_fitted(), **measured) if measured else _fitted()
