"""The few global constants of the cost model, each with its meaning; none belongs to one family of runs.

Values come from `data/coefficients.yaml`, fitted by `benchmarks/plan_fit.py` on published runs.

    python -c "from headwater.plan.coefficients import DEFAULT; print(DEFAULT.gemm_sustained)"
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from importlib.resources import files

import yaml


@dataclass(frozen=True)
class Coefficients:
    """See `data/coefficients.yaml` for the value, the meaning and the source of each."""

    gemm_sustained: float = 0.95
    gemm_depth: float = 100.0
    gemm_launch: float = 5e-6
    wave_exponent: float = 0.8
    misaligned: float = 0.5
    ragged: float = 0.9
    flash1: float = 0.35
    flash2: float = 0.5
    flash3: float = 0.6
    flash_port: float = 0.6
    flash_warmup: float = 400.0
    score_bytes: float = 13.0
    memory_efficiency: float = 0.8
    elementwise_eager: float = 36.0
    elementwise_fused: float = 24.0
    elementwise_compiled: float = 14.0
    kernel_gap: float = 4e-6
    cast_bytes: float = 6.0
    intra_efficiency: float = 0.7
    inter_efficiency: float = 0.75
    latency: float = 15e-6
    hop_latency: float = 4e-6
    wgrad_hidden: float = 0.5
    tp_hidden: float = 0.5
    p2p_exposed: float = 1.0
    grad_hidden: float = 0.7
    interference: float = 0.1
    host_eager: float = 1.1e-3
    host_fused: float = 0.35e-3
    host_group: float = 0.3
    host_step: float = 5e-3
    straggler: float = 0.04
    straggler_power: float = 0.5
    expert_imbalance: float = 1.1
    expert_host: float = 2.5e-3
    expert_hidden: float = 0.3


def load() -> Coefficients:
    """Coefficients from the packaged file; a missing or unknown name is an error of ours."""
    raw = yaml.safe_load(files("headwater.plan").joinpath("data/coefficients.yaml").read_text())["coefficients"]
    return Coefficients(**{f.name: float(raw[f.name]["value"]) for f in fields(Coefficients)})
