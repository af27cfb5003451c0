"""The gradient's global norm, and scaling, when its tensors are spread over ranks in different ways.

In: parameters whose gradients may be plain tensors or DTensors on different meshes, on all pipeline stages. Out: the
norm of the whole gradient, the same number on every rank. Each rank sums the squares of what it holds, divided by how
many ranks hold the same numbers; one all-reduce over the world makes the total.

    settle(parameters.values(), mesh); norm = global_norm(parameters, mesh); scale_(parameters.values(), 1 / norm)
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard

from headwater.parallel.mesh import Mesh
from headwater.parallel.slices import local


def settle(parameters: Iterable[nn.Parameter], mesh: Mesh) -> None:
    """Finish gradients that are still parts of a sum over tp ranks (those of norms), in one all-reduce.

    Call it once, after the last backward pass of a step. Under FSDP they are finished as they are reduced.
    """
    group = mesh.group("tp")
    if group is None:
        return
    pending = [p for p in parameters if isinstance(p.grad, DTensor) and any(x.is_partial() for x in p.grad.placements)]
    if not pending:
        return
    parts = [p.grad.to_local() for p in pending]  # type: ignore[union-attr]
    flat = _flatten_dense_tensors(parts)
    dist.all_reduce(flat, group=group)
    for parameter, whole in zip(pending, _unflatten_dense_tensors(flat, parts), strict=True):
        assert isinstance(parameter, DTensor)
        parameter.grad = DTensor.from_local(whole, parameter.device_mesh, parameter.placements, run_check=False)


def global_norm(parameters: Mapping[str, nn.Parameter], mesh: Mesh, *, tied: Collection[str] = ()) -> float:
    """Square root of the sum of squares of all gradients, over all ranks and pipeline stages.

    `tied`: names of parameters whose gradient another stage has as well and counts. Call it on every rank.
    """
    total = squares([p.grad for name, p in parameters.items() if p.grad is not None and name not in tied], mesh).sum()
    if (world := mesh.group("world")) is not None:
        dist.all_reduce(total, group=world)
    return float(total.sqrt())


@torch.no_grad()
def squares(tensors: Sequence[Tensor], mesh: Mesh, *, parts: Sequence[Tensor] | None = None) -> Tensor:
    """[n], this rank's share of each tensor's sum of squares: added up over all ranks it is that of the whole tensor.

    `parts`: other numbers than the tensors' own that lie over the ranks as they do, as this rank has them.
    """
    wide = torch.float32 if mesh.device.type == "mps" else torch.float64
    if not tensors:
        return torch.zeros(0, dtype=wide, device=mesh.device)
    norms = torch.stack(torch._foreach_norm([local(tensor) for tensor in tensors] if parts is None else list(parts)))
    owners = torch.tensor([1.0 / copies(tensor, mesh) for tensor in tensors], dtype=wide)
    return norms.to(wide).square() * owners.to(mesh.device)


def copies(tensor: Tensor, mesh: Mesh) -> int:
    """How many ranks of a pipeline stage hold the same numbers as this one."""
    shards = 1
    if isinstance(tensor, DTensor):
        for axis, placement in enumerate(tensor.placements):
            assert isinstance(placement, (Shard, _StridedShard, Replicate)), f"{placement} is a part of a sum"
            if not placement.is_replicate():
                shards *= tensor.device_mesh.size(axis)
    return mesh.world // mesh.size("pp") // shards


@torch.no_grad()
def scale_(parameters: Iterable[nn.Parameter], factor: float) -> None:
    """Multiply every gradient in place."""
    gradients = [local(p.grad) for p in parameters if p.grad is not None]
    if gradients:
        torch._foreach_mul_(gradients, factor)
