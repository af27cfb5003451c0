"""Activation checkpointing: what is kept for the backward pass and what is computed again.

In: the layers of a stage. Out: the same layers; their parameters keep their names, because only `forward` is wrapped.

    checkpoint_layers(stage.model.layers, "selective", RecomputeConfig(every=2))

`full` keeps a layer's inputs only (about a third more compute). `selective` per operation also keeps the results of
matrix products and attention, which are the costly ones, and recomputes norms, activations and rotations (Korthikanti
et al. 2022, arXiv 2205.05198, in the per-operation form of torchtitan). Of a row-parallel product, a part of a sum over
the tp ranks, it keeps the sum's share that reduce-scatter leaves on this rank, 1 / tp of the size; the product is not
made again, since nothing else reads it. `selective` with `attention` recomputes the attention alone, between its
projections: it drops the probabilities that short sequences keep on a CPU; fused attention on GPUs keeps none to begin
with.

Pipeline schedules with a split backward pass (zero-bubble) go through a layer's graph more than once; each pass
computes again what it needs, so checkpointing costs more there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
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
    "_c10d_functional::reduce_scatter_tensor",
}
"""Operations whose results `selective` keeps; so are the project's own attention operators."""

_OWN_NAMESPACE = "headwater::"


class _Unread:
    """In place of a kept result that nobody will read: as large, without its numbers (torch's `_VersionWrapper`)."""

    def __init__(self, result: Tensor) -> None:
        part = result._local_tensor if isinstance(result, DTensor) else result
        self._spec = result._spec if isinstance(result, DTensor) else None
        self._shape, self._dtype, self._device = part.shape, part.dtype, part.device

    def get_val(self, allow_mutation: bool) -> Tensor:
        part = torch.empty(self._shape, dtype=self._dtype, device=self._device)
        return part if self._spec is None else DTensor(part, self._spec, requires_grad=False)


class _PartialSums:
    """Whether products that are being made are parts of a sum over ranks, where their type does not show it."""

    depth = 0


@contextmanager
def partial_sums() -> Iterator[None]:
    """Inside, products of plain tensors are parts of a sum over ranks, which a reduce-scatter makes afterwards."""
    _PartialSums.depth += 1
    try:
        yield
    finally:
        _PartialSums.depth -= 1


def _is_partial_sum(result: Any) -> bool:
    if isinstance(result, DTensor):
        return any(placement.is_partial() for placement in result.placements)
    return isinstance(result, Tensor) and _PartialSums.depth > 0


class _Note:
    """What `_Kept` tells its places. An object of its own, so that none refers back: kept results go with the graph,
    not with the garbage collector's next round."""

    def __init__(self, *, reused: bool) -> None:
        self.reused = reused
        self.unread: _Unread | None = None


class _Kept(dict[Any, Any]):
    """Kept results, by operation and place.

    Where a backward pass goes through a graph more than once (`reused`), results stay for the passes that follow:
    PyTorch marks each as used up when a pass takes it. All of them go when the graph goes.
    """

    def __init__(self, *, reused: bool) -> None:
        super().__init__()
        self._note = _Note(reused=reused)

    def __missing__(self, operation: Any) -> dict[int, Any]:
        self[operation] = places = _Places(self._note)
        return places

    def policy(self, context: Any, operation: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        name = operation.name().split(".")[0] if isinstance(operation, torch._ops.OpOverload) else ""
        if not (name in _KEPT_NAMES or name.startswith(_OWN_NAMESPACE)):
            return CheckpointPolicy.PREFER_RECOMPUTE
        if _is_partial_sum(context.op_output):
            self._note.unread = _Unread(context.op_output)
            return CheckpointPolicy.PREFER_RECOMPUTE
        return CheckpointPolicy.MUST_SAVE


class _Places(dict[int, Any]):
    def __init__(self, note: _Note) -> None:
        super().__init__()
        self._note = note

    def __setitem__(self, place: int, value: Any) -> None:
        unread, self._note.unread = self._note.unread, None
        if place not in self or not self._note.reused:
            super().__setitem__(place, value if unread is None else unread)


def _contexts_of(kept: _Kept) -> tuple[Any, Any]:
    writing, reading = create_selective_checkpoint_contexts(kept.policy)
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
    return _contexts_of(_Kept(reused=False))


def _reusable_contexts() -> tuple[Any, Any]:
    return _contexts_of(_Kept(reused=True))


def offload_layers(layers: Mapping[str, nn.Module] | nn.ModuleDict) -> None:
    """What the layers save for the backward pass waits in host memory. After `checkpoint_layers`, and after compilation
    of `forward`."""
    for layer in layers.values():
        layer.forward = offloaded(layer.forward)
