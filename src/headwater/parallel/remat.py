"""Activation checkpointing: what is kept for the backward pass and what is computed again.

In: the layers of a stage. Out: the same layers; their parameters keep their names, because only `forward` is wrapped.

    checkpoint_layers(stage.model.layers, "selective", RecomputeConfig(every=2))

`full` keeps a layer's inputs only (about a third more compute). `selective` per operation also keeps the results of
matrix products and attention, which are the costly ones, and recomputes norms, activations and rotations (Korthikanti
et al. 2022, arXiv 2205.05198, in the per-operation form of torchtitan). `selective` with `attention` recomputes the
attention alone, between its projections: it drops the probabilities that short sequences keep on a CPU; fused attention
on GPUs keeps none to begin with.

Pipeline schedules with a split backward pass (zero-bubble) go through a layer's graph more than once; each pass
computes again what it needs, so checkpointing costs more there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from headwater.parallel.offload import offloaded
from headwater.parallel.step_config import RecomputeConfig

Mode = Literal["none", "selective", "full"]

_KEPT_NAMES = {
    "aten::mm",
    "aten::addmm",
    "aten::bmm",
    "aten::_scaled_mm",
    "aten::_scaled_dot_product_flash_attention",
    "aten::_scaled_dot_product_efficient_attention",
    "aten::_scaled_dot_product_flash_attention_for_cpu",
    "aten::_scaled_dot_product_cudnn_attention",
    "torch_attn::_varlen_attn",
}
"""Operations whose results `selective` keeps; so are the project's own attention operators."""

_OWN_NAMESPACE = "headwater::"


def _policy(context: Any, operation: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    name = operation.name().split(".")[0] if isinstance(operation, torch._ops.OpOverload) else ""
    kept = name in _KEPT_NAMES or name.startswith(_OWN_NAMESPACE)
    return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE


class _WrittenOnce(dict[int, Any]):
    """Kept results of one operation. PyTorch marks each as used up when a backward pass takes it; here it stays, for
    the passes that follow. All of them go when the graph goes."""

    def __setitem__(self, index: int, value: Any) -> None:
        self.setdefault(index, value)


def _reusable_contexts() -> tuple[Any, Any]:
    writing, reading = create_selective_checkpoint_contexts(_policy)
    kept: defaultdict[Any, Any] = defaultdict(_WrittenOnce)
    writing.storage = reading.storage = kept
    return writing, reading


def chosen_layers(layers: Iterable[str], recompute: RecomputeConfig) -> set[str]:
    """Which layers of a stage (by their number in the whole model) are checkpointed."""
    numbers = [name for name in layers if int(name) % recompute.every == 0]
    return set(numbers if recompute.num_layers is None else numbers[: recompute.num_layers])


def checkpoint_layers(
    layers: Mapping[str, nn.Module] | nn.ModuleDict,
    mode: Mode,
    recompute: RecomputeConfig | None = None,
    *,
    split_backward: bool = False,
) -> set[str]:
    """Wrap the `forward` of the chosen layers, keyed by their number in the model; which ones they were.

    `split_backward`: a schedule computes gradients of inputs and of weights in passes of their own.
    """
    recompute = recompute or RecomputeConfig()
    chosen = chosen_layers(layers.keys(), recompute) if mode != "none" else set()
    for name, layer in layers.items():
        if name in chosen:
            if mode == "full":
                layer.forward = _again(layer.forward)
            elif recompute.selective == "attention":
                attention: Any = layer.self_attn
                attention.attend = _again(attention.attend)
            else:
                layer.forward = (_again_in_parts if split_backward else _again_selectively)(layer.forward)
    return chosen


# Plain functions, for torch.compile to look into: a `functools.partial` of `checkpoint` it would leave alone, and a
# context function it wants to see by name.


def _again(function: Callable[..., Any]) -> Callable[..., Any]:
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return checkpoint(function, *args, use_reentrant=False, **kwargs)

    return wrapper


def _again_selectively(function: Callable[..., Any]) -> Callable[..., Any]:
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return checkpoint(function, *args, use_reentrant=False, context_fn=_contexts, **kwargs)

    return wrapper


def _again_in_parts(function: Callable[..., Any]) -> Callable[..., Any]:
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return checkpoint(function, *args, use_reentrant=False, context_fn=_reusable_contexts, **kwargs)

    return wrapper


def _contexts() -> tuple[Any, Any]:
    contexts: tuple[Any, Any] = create_selective_checkpoint_contexts(_policy)
    return contexts


def offload_layers(layers: Mapping[str, nn.Module] | nn.ModuleDict) -> None:
    """What the layers save for the backward pass waits in host memory. After `checkpoint_layers`, and after compilation
    of `forward`."""
    for layer in layers.values():
        layer.forward = offloaded(layer.forward)
