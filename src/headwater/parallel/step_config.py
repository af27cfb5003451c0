"""Sections of `train:` about how a step computes: loss scale, fp8 scaling, what is computed again.

In: plain values. Out: frozen sections that `train.config` nests. No torch is imported.

    LossScaleConfig(init_scale=2**15); Float8Config(scaling="row"); RecomputeConfig(every=2)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Literal

from pydantic import model_validator

from headwater.core.config import Section, field


class LossScaleConfig(Section):
    """The dynamic loss scale of fp16 (Micikevicius et al. 2018, arXiv 1710.03740); other precisions need none."""

    init_scale: float = field(65536.0, aliases=("initial_scale", "initial_loss_scale"), gt=0)
    """What the loss is multiplied with at first."""

    growth_factor: float = field(2.0, gt=1)
    """The scale is multiplied with this after `growth_interval` steps in a row without an overflow."""

    backoff_factor: float = field(0.5, gt=0, lt=1)
    """The scale is multiplied with this after an overflow; that step is skipped."""

    growth_interval: int = field(2000, aliases=("loss_scale_window", "scale_window"), ge=1, unit="steps")
    """Steps without an overflow before the scale grows."""

    min_scale: float = field(1.0, aliases=("min_loss_scale",), gt=0)
    """The run stops with an error rather than let the scale fall below this: gradients then overflow whatever the
    scale, so training has diverged."""

    @model_validator(mode="after")
    def _check_floor(self) -> LossScaleConfig:
        if self.min_scale > self.init_scale:
            raise ValueError(f"min_scale {self.min_scale:g} is above init_scale {self.init_scale:g}")
        return self


def _scaling(name: Any) -> Any:
    """torchao's and torchtitan's names of recipes."""
    return {"tensorwise": "tensor", "rowwise": "row"}.get(name, name)


class Float8Config(Section):
    """How `precision: fp8` scales: forward operands in e4m3, gradients in e5m2, scales from the tensors at hand."""

    VALUE_ALIASES: ClassVar[dict[str, tuple[str, Callable[[Any], Any]]]] = {
        **dict.fromkeys(("recipe", "recipe_name"), ("scaling", _scaling)),
    }

    scaling: Literal["tensor", "row"] = field("tensor", aliases=("granularity",))
    """`tensor`: one scale a tensor; `row`: one for each row of each operand, along the dimension that is summed over,
    which bears outliers better and costs a little time."""


class RecomputeConfig(Section):
    """Which layers `activation_checkpointing` applies to, what `selective` computes again, and where the rest waits."""

    every: int = field(1, kind="operational", ge=1, unit="layers")
    """Every k-th layer is checkpointed, counted over the whole model, layer 0 first; 1: every one."""

    num_layers: int | None = field(
        None, kind="operational", aliases=("recompute_num_layers", "activations_checkpoint_num_layers"), ge=0,
        unit="layers",
    )  # fmt: skip
    """At most so many layers of each pipeline stage, its first ones (Megatron's method `block`); null: no limit."""

    selective: Literal["per_op", "attention"] = field("per_op", kind="operational", aliases=("selective_mode",))
    """What `selective` computes again: `per_op` all but matrix products and attention; `attention` the attention
    alone, as Megatron does."""

    offload: bool = field(
        False, kind="operational",
        aliases=("cpu_checkpointing", "cpu_offloading", "offload_activations", "activation_offload"),
    )  # fmt: skip
    """Keep what layers save for the backward pass in host memory, pinned on CUDA: with `full` each layer's input, with
    `none` all of it, with `selective` what is not the result of a kept operation."""

    @property
    def chooses(self) -> bool:
        """Whether it says anything of what is computed again."""
        return self.every != 1 or self.num_layers is not None or self.selective != "per_op"

    def share(self, stage_layers: int) -> float:
        """Share of a stage's layers that is checkpointed, 0 to 1."""
        chosen = max(1, stage_layers) / self.every
        return min(chosen, chosen if self.num_layers is None else self.num_layers) / max(1, stage_layers)
