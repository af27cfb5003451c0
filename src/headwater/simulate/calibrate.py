"""A machine file out of measurements: what `--cluster` takes, with the cost model's constants as they are here.

In: `Rates`, the seconds of a few training steps, and on a CPU small finished runs for what a process takes. Out: a
mapping for YAML, the same fields as any cluster file, and under `calibration` constants in place of those fitted on
published runs.

    machine = calibrate("bf16", torch.device("cpu"), Path(".")); Path("machine.yaml").write_text(as_yaml(machine))

Rates come first: the peak and what a short K costs from products, attention's share of the peak, memory and messages.
What is left of the probes' steps is explained by three constants that no single measurement gives: bytes that a layer's
small operations move, what each of them costs at least, and a step's fixed part.
"""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

from headwater.model import keep_freed_memory
from headwater.model.blocked_attention import KEEP_UP_TO, QUERY_BLOCK
from headwater.parallel.precision import Precision
from headwater.plan import Layout, ModelSpec, TrainSpec, make_plan
from headwater.plan.cluster import from_config
from headwater.simulate.measure import Probe, Rates, measure_rates, ranks_here, step_seconds
from headwater.train.devices import used_memory_bytes

LEFT = ("elementwise_eager", "kernel_gap", "host_step")
"""Constants that whole steps decide."""


def calibrate(precision: Precision, device: torch.device, folder: Path) -> dict[str, Any]:
    """Measure this machine, a minute or two. `folder`: where storage is tried.

    A CPU's file wants `with_processor` besides."""
    if device.type == "cpu":
        keep_freed_memory()  # as a training run does: 5 to 14 % of a step
    rates = measure_rates(precision, device, folder)
    return machine_of(rates, step_seconds(precision, device), precision, device)


def machine_of(
    rates: Rates, steps: Mapping[Probe, float], precision: Precision, device: torch.device
) -> dict[str, Any]:
    """The cluster file's fields."""
    peak, depth = fit_products(rates.products, rates.launch)
    # The whole of an attention, forward and backward 2.5 times as much, half of the scores (see plan.compute) and on a
    # CPU whole tiles of them.
    tile = QUERY_BLOCK if device.type == "cpu" else 0
    shares = [
        3.5 * 2.0 * rows * heads * seq * (seq + tile) * width / seconds / peak / min(1.0, 0.5 + width / 256.0)
        for (rows, seq, heads, width), seconds in rates.attention.items()
    ]
    constants = {
        "gemm_sustained": 1.0,
        "gemm_depth": depth,
        "gemm_launch": rates.launch,
        "wave_exponent": 0.0,
        "misaligned": 1.0,
        "ragged": 1.0,
        "flash2": math.exp(sum(map(math.log, shares)) / len(shares)),
        "flash_warmup": 0.0,
        "memory_efficiency": 1.0,
        "intra_efficiency": 1.0,
        "latency": rates.message_latency,
        "tp_sync": 0.0,
        "hop_latency": rates.message_latency,
        "straggler": 0.0,
    }
    gpu = device.type == "cuda"
    if not gpu:  # whoever sends messages computes nothing meanwhile, and launching is part of the work
        constants |= dict.fromkeys(("grad_hidden", "tp_hidden", "wgrad_hidden"), 0.0)
        constants |= {"interference": 1.0, "host_eager": 1e-9}
    memory = torch.cuda.mem_get_info(device)[1] if gpu else os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    kinds = {"fp32", precision} | ({"bf16"} if precision == "fp32" else set())
    machine: dict[str, Any] = {
        "name": f"{platform.node()}, {torch.cuda.get_device_name(device) if gpu else platform.machine()}",
        "gpu": {
            "name": "measured",
            "peak": dict.fromkeys(sorted(kinds), peak / 1000000000000.0),
            "memory_gb": memory / 2**30,
            "memory_tbs": rates.memory / 1e12,
            "intra_gbs": rates.messages / 1e9,
            "units": 1,
            "gemm_ratio": dict.fromkeys(sorted(kinds), 1.0),
        },
        "gpus_per_node": torch.cuda.device_count() if gpu else ranks_here(),
        "nodes": 1,
        "nic_per_gpu": f"{rates.messages / 1e9:.6g}GB/s",
        "storage_bandwidth": f"{rates.storage / 1e9:.6g}GB/s",
        "price_per_gpu_hour": 0.01,
        "calibration": constants,
        "notes": f"measured with {torch.get_num_threads()} threads in {precision}; price is a placeholder",
    }
    if not gpu:
        machine["processor"] = {
            "process_bytes": float(used_memory_bytes(device)),  # until `with_processor` knows better
            "neighbours": float(f"{rates.neighbours:.4g}"),
            "attention_tile": QUERY_BLOCK,
            "attention_kept_keys": KEEP_UP_TO,
        }
    fitted, error = fit_steps(machine, steps, precision)
    machine["calibration"] = {name: float(f"{value:.6g}") for name, value in fitted.items()}
    machine["notes"] += f"; probes are within {error:.0%}"
    return machine


def fit_products(products: Mapping[tuple[int, int, int], float], launch: float) -> tuple[float, float]:
    """(FLOP/s, K that costs as much as its product): least absolute relative error, beyond what a launch costs."""
    best = (math.inf, 0.0, 0.0)
    for depth in (0.0, 16.0, 32.0, 64.0, 128.0, 256.0):
        work = np.array([2.0 * m * n * k * (1 + depth / k) for m, n, k in products])
        seconds = np.maximum(np.array(list(products.values())) - launch, 1e-9)
        rate = float(np.median(work / seconds))
        error = float(np.abs(work / rate / seconds - 1.0).sum())
        if error < best[0]:
            best = (error, rate, depth)
    return best[1], best[2]


def fit_steps(
    machine: Mapping[str, Any], steps: Mapping[Probe, float], precision: str
) -> tuple[dict[str, float], float]:
    """All constants, with those of `LEFT` so that the probes' steps come out; and the largest relative error left."""
    constants = dict(machine["calibration"]) | {"elementwise_eager": 40.0, "kernel_gap": 5e-6, "host_step": 2e-3}

    def error(values: Mapping[str, float]) -> tuple[float, float]:
        logs = [
            math.log(predicted_step({**machine, "calibration": dict(values)}, probe, precision) / seconds)
            for probe, seconds in steps.items()
        ]
        return sum(x * x for x in logs), max(abs(math.expm1(x)) for x in logs)

    constants, best = descend(error, constants, LEFT)
    return constants, best[1]


def descend(
    error: Callable[[Mapping[str, float]], tuple[float, float]], constants: dict[str, float], names: Sequence[str]
) -> tuple[dict[str, float], tuple[float, float]]:
    """The constants with those of `names` changed by smaller and smaller factors while the first of `error`'s figures
    falls; and both figures there."""
    best = error(constants)
    for factor in (4.0, 2.0, 1.4, 1.15, 1.05):
        improved = True
        while improved:
            improved = False
            for name in names:
                for change in (factor, 1.0 / factor):
                    tried = {**constants, name: constants[name] * change}
                    # Very small and very large values say the same; stay where a reader believes them.
                    if not 1e-9 < tried[name] < 1e4:
                        continue
                    found = error(tried)
                    if found[0] < best[0] * (1 - 1e-6):
                        constants, best, improved = tried, found, True
    return constants, best


def predicted_step(machine: Mapping[str, Any], probe: Probe, precision: str) -> float:
    """Seconds of a probe's step by the planner with this machine's constants."""
    model = ModelSpec.from_fields(
        layers=probe.layers, hidden=probe.hidden, heads=probe.heads, ffn=probe.ffn, vocab=probe.vocab
    )
    work = TrainSpec(tokens=1e6, seq=probe.seq, global_batch=probe.rows, precision=precision, stack="headwater")
    return make_plan(model, work, from_config(machine), Layout(micro_batch=probe.rows, zero=0)).step_seconds


def as_yaml(machine: Mapping[str, Any]) -> str:
    """The machine file's text."""
    return yaml.safe_dump(dict(machine), sort_keys=False, allow_unicode=True)
