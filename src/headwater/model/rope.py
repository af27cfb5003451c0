"""Rotary positions (arXiv 2104.09864), with the four ways of stretching them that published models use.

In: a `ModelConfig` and positions `[batch, seq]`. Out: cos and sin `[batch, seq, head_dim]` in float32, and the rotation
itself, which pairs dimension i with i + head_dim / 2 as Hugging Face's checkpoints do. Frequencies are kept as
numbers, not as buffers: a model made on the meta device, sharded or moved needs no care.

    rotary = Rotary(config); cos, sin = rotary(positions); q = rotate(q, cos, sin)

Frequencies and attention factors equal those of `transformers` 5 to the last bit of float32 (tested).
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from headwater.model.config import ModelConfig, RopeScaling


def _plain(base: float, dim: int) -> Tensor:
    return 1.0 / (base ** (torch.arange(0, dim, 2, dtype=torch.float32, device="cpu") / dim))


def _llama3(inv_freq: Tensor, s: RopeScaling) -> Tensor:
    """Llama 3.1: short wavelengths stay, long ones are stretched in full, between them a linear blend."""
    assert s.original_max_position_embeddings is not None
    assert s.low_freq_factor is not None
    assert s.high_freq_factor is not None
    old = s.original_max_position_embeddings
    wavelength = 2 * math.pi / inv_freq
    stretched = torch.where(wavelength > old / s.low_freq_factor, inv_freq / s.factor, inv_freq)
    smooth = (old / wavelength - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor)
    blend = (1 - smooth) * stretched / s.factor + smooth * stretched
    medium = ~(wavelength < old / s.high_freq_factor) & ~(wavelength > old / s.low_freq_factor)
    return torch.where(medium, blend, stretched)


def _yarn(base: float, dim: int, s: RopeScaling) -> tuple[Tensor, float]:
    """arXiv 2309.00071, section 3.2 (frequencies) and 3.4 (attention factor)."""
    assert s.original_max_position_embeddings is not None
    old = s.original_max_position_embeddings

    def dimension(rotations: float) -> float:
        return (dim * math.log(old / (rotations * 2 * math.pi))) / (2 * math.log(base))

    def magnitude(weight: float) -> float:
        return 0.1 * weight * math.log(s.factor) + 1.0 if s.factor > 1 else 1.0

    low, high = dimension(s.beta_fast or 32), dimension(s.beta_slow or 1)
    if s.truncate is not False:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    ramp = torch.arange(dim // 2, dtype=torch.float32, device="cpu")
    ramp = ((ramp - low) / ((high if high != low else high + 0.001) - low)).clamp(0, 1)
    frequencies = base ** (torch.arange(0, dim, 2, dtype=torch.float32, device="cpu") / dim)
    keep = 1 - ramp
    inv_freq = 1.0 / (s.factor * frequencies) * (1 - keep) + 1.0 / frequencies * keep
    if s.attention_factor is not None:
        return inv_freq, s.attention_factor
    if s.mscale is not None and s.mscale_all_dim is not None:
        return inv_freq, magnitude(s.mscale) / magnitude(s.mscale_all_dim)
    return inv_freq, magnitude(1.0)


def rope_frequencies(config: ModelConfig) -> tuple[Tensor, float]:
    """Inverse frequencies `[head_dim / 2]` (float32, radians per position) and the factor on cos and sin.

    For `dynamic` these are the frequencies up to `max_position_embeddings`.
    """
    scaling, base, dim = config.rope_scaling, config.rope_theta, config.head_dim
    if scaling is None or scaling.rope_type == "dynamic":
        return _plain(base, dim), 1.0
    if scaling.rope_type == "linear":
        return _plain(base, dim) / scaling.factor, 1.0
    if scaling.rope_type == "llama3":
        return _llama3(_plain(base, dim), scaling), 1.0
    return _yarn(base, dim, scaling)


class Rotary:
    """Makes cos and sin for positions, laid out for `rotate`."""

    def __init__(self, config: ModelConfig) -> None:
        inv_freq, self.attention_factor = rope_frequencies(config)
        self.inv_freq: list[float] = inv_freq.tolist()  # doubles that are exactly the float32 values
        scaling = config.rope_scaling
        self.dynamic = scaling.factor if scaling is not None and scaling.rope_type == "dynamic" else None
        self.base, self.dim, self.trained_length = config.rope_theta, config.head_dim, config.max_position_embeddings

    def __call__(self, positions: Tensor, longest: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """positions: integers [batch, seq]. longest: each row's largest position [batch, 1], where these are not all of
        it. Returns cos and sin, each float32 [batch, seq, head_dim]; sin is negative in the first half, whose
        dimensions lose what the second half's gain."""
        if self.dynamic is None:
            inv_freq = torch.tensor(self.inv_freq, dtype=torch.float32, device=positions.device)
        else:
            longest = positions.amax(-1, keepdim=True) if longest is None else longest
            inv_freq = self._dynamic(longest, self.dynamic)
        angles = positions[..., None].float() * inv_freq
        cos, sin = angles.cos() * self.attention_factor, angles.sin() * self.attention_factor
        return torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)

    def _dynamic(self, longest: Tensor, factor: float) -> Tensor:
        """NTK-aware frequencies for each row's own longest position (`transformers` takes the batch's)."""
        length = (longest + 1).clamp(min=self.trained_length)
        stretch = (factor * length / self.trained_length) - (factor - 1)
        base = self.base * stretch ** (self.dim / (self.dim - 2))
        exponents = torch.arange(0, self.dim, 2, dtype=torch.float32, device=longest.device) / self.dim
        return (1.0 / (base[..., None] ** exponents)).float()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn each pair (i, i + head_dim / 2) of x [batch, seq, heads, head_dim] by its angle, in float32 or wider.

    The result has the shape and dtype of x; its memory is ordered [batch, heads, seq, head_dim], as attention reads it.
    """
    if torch.compiler.is_compiling():
        return _turn(x, cos, sin)
    return _Turn.apply(x, cos, sin)


def _turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    # With heads outside the sequence, cos and sin repeat in long contiguous runs (3 times as fast as by halves).
    batch, seq, heads, dim = x.shape
    turned = torch.empty(
        (batch, heads, seq, dim), dtype=torch.promote_types(x.dtype, torch.float32), device=x.device
    ).copy_(x.transpose(1, 2))
    first, second = turned.chunk(2, -1)
    swapped = torch.cat((second, first), -1)
    return turned.mul_(cos.unsqueeze(1)).addcmul_(swapped, sin.unsqueeze(1)).to(x.dtype).transpose(1, 2)


class _Turn(torch.autograd.Function):
    """`_turn`, whose gradient is the turn back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return _turn(x, cos, sin)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        return _turn(grad, cos, -sin), None, None
