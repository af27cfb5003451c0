"""Matrix products of the blocks in fp8: e4m3 forward, e5m2 gradients, scales from the tensors at hand.

In: a model stage (before or after tensor parallelism was applied). Out: the same stage; the projections of its blocks
multiply in fp8, their weights stay fp32 parameters of the same name. Embedding and head are left alone.

    convert(stage, Float8Config(scaling="row"), backend_for(device))

All three products of a projection (output, gradient of the input, gradient of the weight) go through
`torch._scaled_mm`, which CPUs have too: fp8 operands, exact products, fp32 sums, so a CPU is the reference for a GPU.
With one scale a tensor the fp8 operands are kept for the backward pass, half the memory of bf16's. With one a row they
are cast again, because each product sums over another dimension.

Under tensor parallelism the largest value is taken over all ranks that share a summed dimension: the fp8 numbers are
those of one process. On CUDA torchao's linear layer does the same mathematics where torchao is installed.

Sources: Micikevicius et al. 2022 (arXiv 2209.05433) for the formats; torchao's float8 training for the scaling rule.
"""

from __future__ import annotations

import importlib.util
from contextlib import nullcontext
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard
from torch.nn import functional as F

from headwater.core.errors import RecipeError
from headwater.model.precision import product_dtype
from headwater.parallel.remat import partial_sums
from headwater.parallel.step_config import Float8Config

FORWARD, BACKWARD = torch.float8_e4m3fn, torch.float8_e5m2
MULTIPLE = 16
"""Tensor cores take fp8 operands whose sides are multiples of this."""

_LEAST = 1e-12
"""Smallest largest value a scale is made for; an all-zero tensor has none."""

Backend = Literal["torch", "torchao"]
Split = Literal["", "out", "in"]


def to_float8(
    x: Tensor, dtype: torch.dtype, dim: int | None = None, group: ProcessGroup | None = None
) -> tuple[Tensor, Tensor]:
    """(x in `dtype`, the factor that brings it back). One factor [1, 1], or one for each row along `dim`, keeping the
    dimension. The largest value is taken over `group`. The factor is fp32; overflow saturates."""
    largest = x.abs().amax().view(1, 1) if dim is None else x.abs().amax(dim, keepdim=True)
    largest = largest.to(torch.float32)
    if group is not None:
        dist.all_reduce(largest, dist.ReduceOp.MAX, group)
    limit = torch.finfo(dtype).max
    # In float64, so that compiled and eager code round alike.
    scale = (limit / largest.to(torch.float64).clamp(min=_LEAST)).to(torch.float32)
    return (x.to(torch.float32) * scale).clamp(-limit, limit).to(dtype), scale.reciprocal()


def scaled_product(a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor], dtype: torch.dtype) -> Tensor:
    """a @ b of fp8 operands with their factors: [m, k] with [1, 1] or [m, 1], [k, n] with [1, 1] or [1, n]."""
    (left, left_factor), (right, right_factor) = a, b
    if left.is_cuda and left.shape[1] % MULTIPLE:  # a number of tokens; zeros add nothing
        missing = MULTIPLE - left.shape[1] % MULTIPLE
        left, right = _padded(left, (0, missing)), _padded(right, (0, 0, 0, missing))
    by_row = left_factor.numel() > 1 or right_factor.numel() > 1
    # A CPU makes the product of float32 copies, which autocast would round to bfloat16.
    with torch.autocast(left.device.type, enabled=False):
        return torch._scaled_mm(
            left.contiguous(),
            right.t().contiguous().t(),  # column-major, as the kernel wants its second operand
            left_factor.flatten()[:, None] if by_row else left_factor.view(()),  # strides of 1, unlike `contiguous`
            right_factor.flatten()[None] if by_row else right_factor.view(()),
            out_dtype=dtype,
        )


def _padded(x: Tensor, sizes: tuple[int, ...]) -> Tensor:
    return F.pad(x.view(torch.uint8), sizes).view(x.dtype)


class _Product(torch.autograd.Function):
    """x [t, k] times weight [n, k] transposed, both in the dtype of products. `split` says which dimension of the
    weight `group` shares: "out" (n) or "in" (k); then only the sums over it need the group's largest value."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, by_row: bool, split: Split, group: ProcessGroup | None) -> Tensor:
        over_in = group if split == "in" else None
        whole = group if split else None
        dim = 1 if by_row else None
        x8 = to_float8(x, FORWARD, dim, over_in)
        w8 = to_float8(weight, FORWARD, dim, over_in if by_row else whole)
        ctx.by_row, ctx.dtype = by_row, x.dtype
        ctx.over_out = group if split == "out" else None
        ctx.save_for_backward(*((x, weight) if by_row else (*x8, *w8)))
        return scaled_product(x8, (w8[0].t(), w8[1].t()), x.dtype)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        grad_x = grad_w = None
        need_x, need_w = ctx.needs_input_grad[:2]
        if ctx.by_row:
            x, weight = ctx.saved_tensors
            if need_x:  # sums over n
                g8 = to_float8(grad, BACKWARD, 1, ctx.over_out)
                grad_x = scaled_product(g8, to_float8(weight, FORWARD, 0, ctx.over_out), ctx.dtype)
            if need_w:  # sums over tokens
                g8, x8 = to_float8(grad, BACKWARD, 0), to_float8(x, FORWARD, 0)
                grad_w = scaled_product((g8[0].t(), g8[1].t()), x8, ctx.dtype)
            return grad_x, grad_w, None, None, None
        x_, x_factor, w_, w_factor = ctx.saved_tensors
        g, g_factor = to_float8(grad, BACKWARD, None, ctx.over_out)
        if need_x:
            grad_x = scaled_product((g, g_factor), (w_, w_factor), ctx.dtype)
        if need_w:
            grad_w = scaled_product((g.t(), g_factor), (x_, x_factor), ctx.dtype)
        return grad_x, grad_w, None, None, None


class Float8Linear(nn.Linear):
    """A Linear whose products are in fp8. Made from a Linear in place by `convert`."""

    by_row: bool

    def forward(self, x: Tensor) -> Tensor:
        dtype = product_dtype(x)
        weight = self.weight.to(dtype)
        if isinstance(weight, DTensor):
            y = _sharded_product(x.to(dtype), weight, self.by_row)
        else:
            y = _Product.apply(x.to(dtype).reshape(-1, x.shape[-1]), weight, self.by_row, "", None)
            y = y.view(*x.shape[:-1], -1)
        return y if self.bias is None else y + self.bias.to(dtype)


def _sharded_product(x: Tensor, weight: DTensor, by_row: bool) -> Tensor:
    """The product of DTensors on a tensor-parallel mesh of one dimension: weight split by rows (column-parallel) or by
    columns (row-parallel), or whole; the result split by its last dimension, a partial sum, or whole."""
    assert isinstance(x, DTensor), "the input of a tensor-parallel projection is a DTensor"
    mesh, placement = weight.device_mesh, weight.placements[0]
    last = x.dim() - 1
    split: Split = "out" if placement.is_shard(0) else "in" if placement.is_shard(1) else ""
    taken: Placement = Shard(last) if split == "in" else Replicate()
    given: Placement = {"out": Shard(last), "in": Partial(), "": Replicate()}[split]
    gradient: Placement = {"out": Partial(), "in": Shard(last), "": Replicate()}[split]
    local = x.redistribute(mesh, [taken]).to_local(grad_placements=[gradient])
    with partial_sums() if split == "in" else nullcontext():
        y = _Product.apply(
            local.reshape(-1, local.shape[-1]),
            weight.to_local(grad_placements=[placement]),
            by_row,
            split,
            mesh.get_group() if split else None,
        )
    return DTensor.from_local(y.view(*local.shape[:-1], -1), mesh, [given], run_check=False)


def has_torchao() -> bool:
    """Whether torchao can be imported (it is not imported here: that takes a second and a half)."""
    return importlib.util.find_spec("torchao") is not None


def backend_for(device: torch.device, *, tensor_parallel: bool = False) -> Backend:
    """Who multiplies: torchao on CUDA where it is installed and weights are whole, else PyTorch's kernel alone."""
    return "torchao" if device.type == "cuda" and not tensor_parallel and has_torchao() else "torch"


def convert(stage: nn.Module, config: Float8Config, backend: Backend = "torch") -> list[str]:
    """Make every Linear inside the stage's blocks multiply in fp8, in place; their names.

    Raises RecipeError if a side of one is no multiple of 16 (of a rank's share of it, where it is sharded).
    """
    blocks = stage.get_submodule("model.layers")
    linears = {name: m for name, m in blocks.named_modules() if isinstance(m, nn.Linear)}
    for name, linear in linears.items():
        _check(name, linear)
    if backend == "torchao":
        _convert_by_torchao(blocks, config)
        return list(linears)
    for linear in linears.values():
        linear.__class__ = Float8Linear
        linear.by_row = config.scaling == "row"  # type: ignore[assignment]
    return list(linears)


def _check(name: str, linear: nn.Linear) -> None:
    weight = linear.weight
    rows, columns = getattr(weight, "_local_tensor", weight).shape
    if rows % MULTIPLE or columns % MULTIPLE:
        raise RecipeError(
            f"layer {name} is {rows} x {columns} on a rank, and fp8 products need sides that are multiples of "
            f"{MULTIPLE}",
            where="train.precision",
            mend=f"make hidden_size, intermediate_size, heads x head_dim and kv heads x head_dim multiples of "
            f"{MULTIPLE} x parallel.tp, or set train.precision to bf16",
        )


def _convert_by_torchao(blocks: nn.Module, config: Float8Config) -> None:
    from torchao.float8 import CastConfig, Float8LinearConfig, ScalingGranularity, convert_to_float8_training

    granularity = ScalingGranularity.AXISWISE if config.scaling == "row" else ScalingGranularity.TENSORWISE
    convert_to_float8_training(
        blocks,
        config=Float8LinearConfig(
            cast_config_input=CastConfig(scaling_granularity=granularity, target_dtype=FORWARD),
            cast_config_weight=CastConfig(scaling_granularity=granularity, target_dtype=FORWARD),
            cast_config_grad_output=CastConfig(scaling_granularity=granularity, target_dtype=BACKWARD),
            pad_inner_dim=True,
        ),
    )
