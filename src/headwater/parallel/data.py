"""Data parallelism with FSDP2: who holds parameters, gradients and optimizer state, and when gradients are summed.

In: a stage, the mesh, a ZeRO stage. Out: the stage wrapped by `fully_shard`, a block at a time, so that communication
of one block overlaps with the arithmetic of the next. How ZeRO (Rajbhandari et al., arXiv 1910.02054) maps to it:

- 0: `dp_replicate` copies; gradients are all-reduced.
- 1, 2: `dp_shard` ranks share optimizer state, parameters and reduced gradients; the parameters are gathered once for
  the forward pass and kept until the backward pass is over (`reshard_after_forward=False`).
- 3: the same, gathered for a block's forward and again for its backward pass (`reshard_after_forward=True`).
- `dp_replicate` and `dp_shard` both above 1: hybrid sharding on a mesh of two axes.

    shard_data_parallel(stage, mesh, zero=3)

Gradients are summed, not averaged: the loss has been divided by the global number of tokens already.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn
from torch.distributed.fsdp import FSDPModule, fully_shard

from headwater.parallel.mesh import Mesh
from headwater.parallel.precision import Precision, sharding_policy


def shard_data_parallel(
    stage: nn.Module, blocks: Iterable[nn.Module], mesh: Mesh, *, zero: int, precision: Precision = "fp32"
) -> None:
    """Wrap every block and then the rest of the stage, in place. Nothing to do where ranks hold no copies.

    Context-parallel ranks hold the same parameters too, so they share them as `dp_shard` ranks do. A pipeline runs many
    micro-batches between two of its reductions, so its stages stay gathered for the step, at ZeRO 3 as well.
    """
    replicate, shared = mesh.size("dp_replicate"), mesh.size("fsdp")
    if replicate * shared == 1:
        return
    grid = mesh.submesh("dp_replicate", "fsdp") if replicate > 1 else mesh.submesh("fsdp")
    policy = sharding_policy(precision)
    for block in blocks:
        fully_shard(block, mesh=grid, mp_policy=policy, reshard_after_forward=zero == 3 and mesh.size("pp") == 1)
    # The head is read by the loss, after the forward pass: what the root holds has to stay gathered.
    fully_shard(stage, mesh=grid, mp_policy=sharding_policy("fp32"), reshard_after_forward=False)
    for module in fsdp_modules(stage):
        module.set_force_sum_reduction_for_comms(True)  # gloo cannot multiply while it reduces
        module.set_gradient_divide_factor(1.0)


def fsdp_modules(stage: nn.Module) -> list[FSDPModule]:
    """Wrapped modules of a stage, the root first; [] if it is not wrapped."""
    return [module for module in stage.modules() if isinstance(module, FSDPModule)]


def before_micro_batch(stage: nn.Module, *, last: bool, sync: bool, zero: int) -> None:
    """Tell a stage about the backward pass that comes: whether it is the step's `last`, and whether to `sync`, that is
    to sum gradients over ranks rather than keep them for a later pass.

    Below ZeRO 3 parameters stay gathered until the last one: they are communicated once a step.
    """
    if isinstance(stage, FSDPModule):
        stage.set_requires_gradient_sync(sync)
        stage.set_requires_all_reduce(last)  # over copies of the shards, which add up until then
        stage.set_is_last_backward(last)
        stage.set_reshard_after_backward(last or zero == 3)


def reshard(stage: nn.Module) -> None:
    """Drop gathered parameters after a forward pass that no backward pass follows.

    They would be taken for the current ones by the next forward pass, whatever has been written to the shards.
    """
    for module in fsdp_modules(stage):
        module.reshard()
