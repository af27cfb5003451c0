"""Tensor parallelism with sequence parallelism: every matrix of a decoder shared by the ranks of the `tp` axis.

In: a decoder or a stage of one, on any device. Out: the same module, changed in place; every parameter is a `DTensor`.
Megatron's plan (Shoeybi et al., arXiv 1909.08053; Korthikanti et al., arXiv 2205.05198): q, k, v, gate and up are cut
by columns, o and down by rows, so that a half-block needs one all-gather before and one reduce-scatter after; between
them, norms and the residual stream live on a share of the sequence. Embedding and head are cut along the vocabulary.

    apply_tensor_parallel(stage, mesh)

Activations outside the matrices are plain tensors [batch, seq / tp, hidden], also from one pipeline stage to the next.
"""

from __future__ import annotations

from functools import partial

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_module, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    parallelize_module,
)

from headwater.model.norm import RMSNorm, rms_norm
from headwater.parallel.mesh import Mesh


class ReplicatedNorm(ParallelStyle):
    """A norm whose weight all ranks hold, applied by each to what it has: a share of the sequence, or of the heads.

    The gradient of the weight is then a part of a sum over the ranks, and is marked so (`Partial`).
    """

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        assert isinstance(module, RMSNorm)
        distribute_module(module, device_mesh, _replicate)
        module.forward = partial(_local_norm, module)  # type: ignore[method-assign]
        return module


def _replicate(name: str, module: nn.Module, mesh: DeviceMesh) -> None:
    for key, parameter in list(module.named_parameters(recurse=False)):
        replicated = distribute_tensor(parameter.detach(), mesh, [Replicate()], src_data_rank=None)
        module.register_parameter(key, nn.Parameter(replicated, requires_grad=parameter.requires_grad))


def _local_norm(norm: RMSNorm, x: Tensor) -> Tensor:
    weight: Tensor = norm.weight
    if isinstance(weight, DTensor):
        weight = weight.to_local(grad_placements=(Partial(),))
    return rms_norm(x, weight, norm.eps)


def tensor_plan(stage: nn.Module) -> dict[str, ParallelStyle]:
    """How each module of a decoder is cut, by name; only what the stage holds."""
    sequence, whole = Shard(1), Replicate()
    plan: dict[str, ParallelStyle] = {
        "model.embed_tokens": RowwiseParallel(input_layouts=whole, output_layouts=sequence),
        "model.norm": ReplicatedNorm(),
        "lm_head": ColwiseParallel(),  # only its weight is used, by the loss
    }
    block: dict[str, ParallelStyle] = {
        "input_layernorm": ReplicatedNorm(),
        # x, cos, sin, layout, cache: the stream is gathered along the sequence, the rest is whole everywhere.
        "self_attn": PrepareModuleInput(
            input_layouts=(sequence, None, None, None, None), desired_input_layouts=(whole, None, None, None, None)
        ),
        "self_attn.q_proj": ColwiseParallel(),
        "self_attn.k_proj": ColwiseParallel(),
        "self_attn.v_proj": ColwiseParallel(),
        "self_attn.q_norm": ReplicatedNorm(),
        "self_attn.k_norm": ReplicatedNorm(),
        "self_attn.o_proj": RowwiseParallel(output_layouts=sequence),
        "post_attention_layernorm": ReplicatedNorm(),
        "mlp": PrepareModuleInput(input_layouts=(sequence,), desired_input_layouts=(whole,)),
        "mlp.gate_proj": ColwiseParallel(),
        "mlp.up_proj": ColwiseParallel(),
        "mlp.down_proj": RowwiseParallel(output_layouts=sequence),
    }
    plan |= {f"model.layers.*.{name}": style for name, style in block.items()}
    present = {name for name, _ in stage.named_modules()}
    layers = [name for name in present if name.startswith("model.layers.") and name.count(".") == 2]
    return {
        name: style
        for name, style in plan.items()
        if name in present or ("*" in name and layers and name.replace("model.layers.*", layers[0]) in present)
    }


def apply_tensor_parallel(stage: nn.Module, mesh: Mesh) -> None:
    """Cut the matrices of a stage over the tp axis, in place; nothing to do where it is 1."""
    if mesh.size("tp") > 1:
        parallelize_module(stage, mesh.submesh("tp"), tensor_plan(stage))
