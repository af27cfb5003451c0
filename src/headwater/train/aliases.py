"""Precision and recomputation in the words of other trainers, brought to ours.

In: a value as a recipe for another project has it. Out: ours, or None where it says nothing. `TrainConfig` nests them
as `VALUE_ALIASES`.

    PRECISION_ALIASES["fp16"][1](True)      # "fp16", for `precision`
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Translation = tuple[str, Callable[[Any], Any]]

_PRECISIONS = {
    "no": "fp32", "none": "fp32", "32": "fp32", "32-true": "fp32", "float32": "fp32", "float": "fp32",
    "16": "fp16", "16-mixed": "fp16", "float16": "fp16", "half": "fp16",
    "bf16-mixed": "bf16", "bfloat16": "bf16",
    "transformer-engine": "fp8",
}  # fmt: skip
"""Names of accelerate, Lightning and PyTorch; `no` is false in YAML 1.1."""


def _precision(value: Any) -> Any:
    if value is False:
        return "fp32"
    return _PRECISIONS.get(str(value), value)


def _switch(name: str) -> Callable[[Any], Any]:
    """`fp16: true` means that precision; `fp16: false` says nothing of the others."""

    def translate(value: Any) -> Any:
        if not isinstance(value, bool):
            raise ValueError(f"is true or false, not {value!r}")
        return name if value else None

    return translate


def _scale_of_power(power: Any) -> Any:
    if not isinstance(power, int) or isinstance(power, bool) or not 0 <= power <= 60:
        raise ValueError(f"is a power of two from 0 to 60, not {power!r}")
    return float(2**power)


def _no_static_scale(value: Any) -> Any:
    """0 (or nothing) asks for a dynamic scale, which is the only one here."""
    if value:
        raise ValueError(
            f"a fixed loss scale of {value!r} is not supported\n  mend: leave it out; the scale is dynamic, from "
            "scaler.init_scale"
        )


def _checkpointing(value: Any) -> Any:
    """`gradient_checkpointing: true` is what other trainers write for `full`."""
    if isinstance(value, bool):
        return "full" if value else "none"
    return value


def _by_layer(method: Any) -> Any:
    """Megatron's method `block` is ours. `uniform` makes one checkpoint of several layers, which ours never does."""
    if method not in ("block", None):
        raise ValueError(
            f"method {method!r} is not supported: every layer is a checkpoint of its own\n  mend: leave it and the "
            "number of layers out to recompute all layers, or use block"
        )


PRECISION_ALIASES: dict[str, Translation] = {
    **dict.fromkeys(("precision", "mixed_precision", "dtype"), ("precision", _precision)),
    **{name: ("precision", _switch(name)) for name in ("fp32", "tf32", "bf16", "fp16", "fp8")},
    **{f"{name}.enabled": ("precision", _switch(name)) for name in ("bf16", "fp16", "fp8")},
    "fp16.initial_scale_power": ("scaler.init_scale", _scale_of_power),
    "fp16.loss_scale": ("scaler", _no_static_scale),
    "loss_scale": ("scaler", _no_static_scale),
}
"""accelerate's `mixed_precision`, Hugging Face's `fp16: true`, DeepSpeed's blocks."""

SCALER_PATHS = {
    **dict.fromkeys(("init_scale", "initial_loss_scale"), "scaler.init_scale"),
    "growth_factor": "scaler.growth_factor",
    "backoff_factor": "scaler.backoff_factor",
    **dict.fromkeys(("growth_interval", "loss_scale_window", "fp16.loss_scale_window"), "scaler.growth_interval"),
    **dict.fromkeys(("min_loss_scale", "fp16.min_loss_scale"), "scaler.min_scale"),
}

_CHECKPOINTING = (
    "activation_checkpointing", "gradient_checkpointing", "recompute_granularity", "activations_checkpoint_granularity",
)  # fmt: skip

RECOMPUTE_ALIASES: dict[str, Translation] = {
    **dict.fromkeys(_CHECKPOINTING, ("activation_checkpointing", _checkpointing)),
    **dict.fromkeys(("recompute_method", "activations_checkpoint_method"), ("recompute", _by_layer)),
}

RECOMPUTE_PATHS = {
    **dict.fromkeys(("recompute_num_layers", "activations_checkpoint_num_layers"), "recompute.num_layers"),
    **dict.fromkeys(("cpu_checkpointing", "cpu_offloading", "offload_activations"), "recompute.offload"),
    "checkpoint_every_layers": "recompute.every",
}
