"""This rank's part of a full tensor, without communication.

In: a parameter that may be a `DTensor` (sharded over any mesh) and the full tensor it is a part of, which every rank
makes or reads by itself. Out: the part. So weights are initialised, and unsharded checkpoints loaded, one tensor at a
time: no rank ever holds the whole model.

    copy_full_(parameter, initial_tensor(name, parameter.shape, config, seed))
"""

from __future__ import annotations

import logging

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

# Torch warns that a dimension cut by two axes (tensor and data parallelism) is gathered in two operations, whose sums
# may differ between ranks. A gather sums nothing.
logging.getLogger("torch.distributed.tensor._redistribute").addFilter(
    lambda record: "all_gather operations" not in record.getMessage()
)


def local(tensor: Tensor) -> Tensor:
    """What this rank holds of a tensor, sharing its memory; no gradient flows."""
    tensor = tensor.detach()
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor


def local_part(full: Tensor, like: Tensor) -> Tensor:
    """The part of `full` that a rank which holds `like` holds; a view. ValueError if the full shapes differ."""
    if full.shape != like.shape:
        raise ValueError(f"a tensor of {tuple(full.shape)} is no source for one of {tuple(like.shape)}")
    if not isinstance(like, DTensor):
        return full
    sizes, offsets = compute_local_shape_and_global_offset(like.shape, like.device_mesh, like.placements)
    for axis, (offset, size) in enumerate(zip(offsets, sizes, strict=True)):
        full = full.narrow(axis, min(offset, full.shape[axis]), size)
    return full


@torch.no_grad()
def copy_full_(target: Tensor, source: Tensor) -> None:
    """Fill `target` in place from the full tensor, or from a `DTensor` that lies as the target does."""
    part = local(source) if isinstance(source, DTensor) else local_part(source, target)
    local(target).copy_(part)


@torch.no_grad()
def shaped_like(source: Tensor, like: Tensor) -> Tensor:
    """`source` as a tensor of its own on the device of `like`, sharded as `like` is if it has that full shape."""
    if isinstance(source, DTensor) or not isinstance(like, DTensor) or source.shape != like.shape:
        return source.to(like.device)
    return from_local(local_part(source, like).to(like.device, copy=True), like)


def whole(tensor: Tensor) -> Tensor:
    """The full tensor, gathered from the ranks that share it (all of them call this); itself where nobody does."""
    tensor = tensor.detach()
    if not isinstance(tensor, DTensor):
        return tensor
    gathered = tensor.full_tensor()
    assert isinstance(gathered, Tensor)
    return gathered


def from_local(part: Tensor, like: Tensor) -> Tensor:
    """This rank's `part` as a tensor that lies over the ranks as `like` does."""
    if not isinstance(like, DTensor):
        return part
    return DTensor.from_local(
        part, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
    )
