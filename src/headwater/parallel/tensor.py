"""Tensor parallelism with sequence parallelism: every matrix of a model shared by the ranks of the `tp` axis.

In: a decoder or an encoder, or a stage of one, on any device. Out: the same module, changed in place; every parameter
is a `DTensor`. Megatron's plan (Shoeybi et al., arXiv 1909.08053; Korthikanti et al., arXiv 2205.05198): q, k, v, gate
and up are cut by columns, o and down by rows, so that a half-block needs one all-gather before and one reduce-scatter
after; between them, norms and the residual stream live on a share of the sequence. Embedding and head are cut along the
vocabulary.

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
from torch.nn import functional as F

from headwater.model.encoder import Encoder, LayerNorm, layer_norm
from headwater.model.norm import RMSNorm, rms_norm
from headwater.parallel.mesh import Mesh


class Replicated(ParallelStyle):
    """A norm (or a dense layer) whose parameters all ranks hold, applied by each to what it has: a share of the
    sequence, or of the heads.

    The gradient of the parameters is then a part of a sum over the ranks, and is marked so (`Partial`).
    """

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        if isinstance(module, nn.Identity):  # an encoder's first layer has no norm before its attention
            return module
        assert isinstance(module, RMSNorm | LayerNorm | nn.Linear)
        distribute_module(module, device_mesh, _replicate)
        module.forward = partial(_local_forward, module)  # type: ignore[method-assign]
        return module


def _replicate(name: str, module: nn.Module, mesh: DeviceMesh) -> None:
    for key, parameter in list(module.named_parameters(recurse=False)):
        replicated = distribute_tensor(parameter.detach(), mesh, [Replicate()], src_data_rank=None)
        module.register_parameter(key, nn.Parameter(replicated, requires_grad=parameter.requires_grad))


def _local_forward(module: RMSNorm | LayerNorm | nn.Linear, x: Tensor) -> Tensor:
    weight = _whole(module.weight)
    if isinstance(module, RMSNorm):
        return rms_norm(x, weight, module.eps)
    bias = None if module.bias is None else _whole(module.bias)
    if isinstance(module, nn.Linear):
        return F.linear(x, weight, bias)
    return layer_norm(x, weight, bias, module.eps)


def _whole(parameter: Tensor) -> Tensor:
    if isinstance(parameter, DTensor):
        local = parameter.to_local(grad_placements=(Partial(),))
        assert isinstance(local, Tensor)
        return local
    return parameter


def tensor_plan(stage: nn.Module) -> dict[str, ParallelStyle]:
    """How each module of a model is cut, by name; only what the stage holds."""
    sequence, whole = Shard(1), Replicate()
    # x, cos, sin, layout (and a decoder's cache): the stream is gathered along the sequence, the rest is whole.
    rest = (None,) * (3 if isinstance(stage, Encoder) else 4)
    plan: dict[str, ParallelStyle] = {
        "model.embed_tokens": RowwiseParallel(input_layouts=whole, output_layouts=sequence),
        "model.embed_norm": Replicated(),
        "model.norm": Replicated(),
        "head.dense": Replicated(),
        "head.norm": Replicated(),
        "lm_head": ColwiseParallel(),  # only its weight is used, by the loss
    }
    block: dict[str, ParallelStyle] = {
        "input_layernorm": Replicated(),
        "self_attn": PrepareModuleInput(input_layouts=(sequence, *rest), desired_input_layouts=(whole, *rest)),
        "self_attn.q_proj": ColwiseParallel(),
        "self_attn.k_proj": ColwiseParallel(),
        "self_attn.v_proj": ColwiseParallel(),
        "self_attn.q_norm": Replicated(),
        "self_attn.k_norm": Replicated(),
        "self_attn.o_proj": RowwiseParallel(output_layouts=sequence),
        "post_attention_layernorm": Replicated(),
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
    if mesh.size("tp") == 1:
        return
    parallelize_module(stage, mesh.submesh("tp"), tensor_plan(stage))
    if isinstance(stage, Encoder) and stage.lm_head_bias is not None:
        bias = distribute_tensor(stage.lm_head_bias.detach(), mesh.submesh("tp"), [Shard(0)], src_data_rank=None)
        stage.lm_head_bias = nn.Parameter(bias)
