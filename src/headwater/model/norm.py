"""RMSNorm, forward and backward in few passes over memory.

In: `[..., size]`. Out: the same shape, x / sqrt(mean(x^2) + eps) * weight (arXiv 1910.07467), computed in float32 or
wider; under autocast already in autocast's dtype, so that the projections that read it do not each cast it again.

    RMSNorm(192, eps=1e-5)(x)

PyTorch 2.13 takes `F.rms_norm` apart on CPUs. Measured there on [8192, 192], forward and backward, one thread: fp32
4.6 ms
against 7.8, float32 in and bfloat16 out 8.8 against 14.7.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from headwater.model.precision import product_dtype


class RMSNorm(nn.Module):
    """RMSNorm over the last axis with a learned weight `[size]`."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMSNorm of x [..., size] with weight [size]; the shape of x back."""
    dtype = product_dtype(x)
    if torch.compiler.is_compiling() or x.device.type != "cpu":  # both have a fused kernel of their own
        return F.rms_norm(x, weight.shape, weight, eps).to(dtype)
    return _FewPasses.apply(x, weight, eps, dtype)


class _FewPasses(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        length = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
        scale = length.square_().div_(x.shape[-1]).add_(eps).rsqrt_()
        ctx.save_for_backward(x, weight, scale)
        return (wide * scale).mul_(weight).to(dtype)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None]:
        x, weight, scale = ctx.saved_tensors
        grad = grad.to(scale.dtype)
        normal = x * scale
        grad_weight = (grad * normal).flatten(0, -2).sum(0).to(weight.dtype)
        # d/dx of n = x s: s (g - n mean(g n)), with g the gradient times the weight.
        grad = grad * weight
        along = torch.linalg.vecdot(grad, normal).unsqueeze(-1).div_(x.shape[-1])
        return grad.addcmul_(normal, along, value=-1).mul_(scale).to(x.dtype), grad_weight, None, None
