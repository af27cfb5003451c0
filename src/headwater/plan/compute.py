"""Time of the arithmetic of one layer on one GPU: matrix multiplies, attention, memory-bound operations, host.

Roofline with tile and wave quantisation: a multiply of (M, N, K) runs as tiles of the output over the GPU's units;
the last wave is partly empty, a short K pays its prologue, and a dimension that is not a multiple of eight leaves
the fast path. In: `Cases`; out: seconds a micro-batch and layer, by pass.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .cases import Array, Attention, Cases
from .coefficients import Coefficients
from .counts import attention_span

# Output tiles tried, and their rate relative to the largest: a small tile reads more per FLOP. Assumed from CUTLASS
# profiles; the fitted wave exponent and depth absorb what is off.
NEW_UNITS = 6e14  # FLOP/s of 16-bit peak beyond which a part has warp-group matrix units (Hopper and later)
KERNELS = (
    24.0,
    12.0,
    6.0,
)  # memory-bound kernels of a forward layer: eager, fused by hand, compiled; counted in traces
TILES = ((128.0, 256.0, 1.0), (128.0, 128.0, 0.92), (64.0, 64.0, 0.62))


@dataclass
class Pass:
    """Seconds of one layer and micro-batch: forward, gradient of inputs, gradient of weights."""

    forward: Array
    dgrad: Array
    wgrad: Array

    def __add__(self, other: Pass) -> Pass:
        return Pass(self.forward + other.forward, self.dgrad + other.dgrad, self.wgrad + other.wgrad)

    def scaled(self, factor: Array) -> Pass:
        return Pass(self.forward * factor, self.dgrad * factor, self.wgrad * factor)

    @property
    def backward(self) -> Array:
        return self.dgrad + self.wgrad


@dataclass
class Arithmetic:
    """What a matrix multiply runs on."""

    peak: Array
    limit: Array
    bytes: Array
    bandwidth: Array
    units: Array


def gemm_seconds(m: Array, n: Array, k: Array, on: Arithmetic, c: Coefficients) -> Array:
    """Seconds of one (M, N, K) multiply; zero where a dimension is zero."""
    best: Array = np.inf
    for rows, columns, rate in TILES:
        tiles = np.ceil(m / rows) * np.ceil(n / columns)
        padded = tiles * rows * columns
        waves = np.maximum(tiles, 1.0) / on.units
        # Stream-K and split-K soften the last wave: the exponent is between 0 (no loss) and 1 (full quantisation).
        quantised = (np.ceil(waves) / waves) ** c.wave_exponent
        best = np.minimum(best, padded * quantised / rate)
    depth = 1.0 + c.gemm_depth / np.maximum(k, 1.0)
    smooth = (n % 64 == 0) & (k % 64 == 0)
    aligned = np.where((n % 8 == 0) & (k % 8 == 0), np.where(smooth, 1.0, c.ragged), c.misaligned)
    compute = 2.0 * best * k * depth / (on.peak * on.limit * c.gemm_sustained * aligned)
    traffic = (on.bytes * (m * k + k * n) + 2.0 * m * n) / (on.bandwidth * c.memory_efficiency)
    return np.where(m * n * k > 0, np.maximum(compute, traffic) + c.gemm_launch, 0.0)


def linear(m: Array, n: Array, k: Array, on: Arithmetic, c: Coefficients) -> Pass:
    """The three multiplies of a linear layer with input [M, K] and weight [N, K]."""
    return Pass(gemm_seconds(m, n, k, on, c), gemm_seconds(m, k, n, on, c), gemm_seconds(n, k, m, on, c))


def _linear_arithmetic(x: Cases) -> Arithmetic:
    return Arithmetic(x.peak_linear, x.limit_linear, x.linear_bytes, x.memory_bandwidth, x.units)


def _half_arithmetic(x: Cases) -> Arithmetic:
    return Arithmetic(x.peak_half, x.limit_half, 2.0 * x.width, x.memory_bandwidth, x.units)


def attention_projections(x: Cases, c: Coefficients) -> Pass:
    """Query, key, value and output projections, or the low-rank ones of latent attention."""
    on, t, h = _linear_arithmetic(x), x.tokens, x.hidden
    q_local = x.q_dim / x.tp
    kv_width = np.where(x.mla > 0, 0.0, 2.0 * x.kv_local * x.head_dim)
    qkv = linear(t, np.where(x.mla > 0, 0.0, q_local + kv_width), h, on, c)
    output = linear(t, h, np.where(x.mla > 0, x.heads * x.value_dim / x.tp, q_local), on, c)
    total = qkv + output
    if np.any(np.asarray(x.mla) > 0):
        q_in = np.where(x.q_lora > 0, x.q_lora, h)
        total = total + linear(t, np.where(x.mla > 0, x.q_lora, 0.0), h, on, c)
        total = total + linear(t, np.where(x.mla > 0, q_local, 0.0), q_in, on, c)
        total = total + linear(t, np.where(x.mla > 0, x.kv_lora + x.rope_dim, 0.0), h, on, c)
        up = x.heads * (x.head_dim - x.rope_dim + x.value_dim) / x.tp
        total = total + linear(t, np.where(x.mla > 0, up, 0.0), x.kv_lora, on, c)
    return total


def dense_ffn(x: Cases, c: Coefficients) -> Pass:
    on, t, h = _linear_arithmetic(x), x.tokens, x.hidden
    return linear(t, (1.0 + x.gated) * x.ffn / x.tp, h, on, c) + linear(t, h, x.ffn / x.tp, on, c)


def expert_ffn(x: Cases, c: Coefficients) -> Pass:
    """Grouped multiplies of the routed experts, the shared expert and the router of one MoE layer."""
    on, t, h = _linear_arithmetic(x), x.tokens, x.hidden
    experts = np.maximum(x.experts, 1.0)
    local = np.maximum(experts / x.ep, 1.0)
    rows = t * x.topk / (local * x.tp) * c.expert_imbalance
    width = (1.0 + x.gated) * x.expert_ffn
    one = linear(rows, width, h, on, c) + linear(rows, h, x.expert_ffn, on, c)
    shared = linear(t, (1.0 + x.gated) * x.shared_ffn / x.tp, h, on, c) + linear(t, h, x.shared_ffn / x.tp, on, c)
    router = linear(t / x.tp, x.experts, h, _half_arithmetic(x), c)
    return one.scaled(local) + shared + router


def attention_core(x: Cases, c: Coefficients) -> Pass:
    """Scores, softmax and weighted sum. Backward is counted whole as input gradient: it has no weights.

    Unfused: two batched multiplies and `score_bytes` of traffic a score element. Flash: half the scores (causal),
    backward 2.5 times forward because scores are computed again (Dao, FlashAttention-2).
    """
    heads = x.heads / x.tp
    value = np.where(x.mla > 0, x.value_dim, x.head_dim)
    queries = x.micro_batch * heads * (x.seq / x.cp)
    scores = queries * attention_span(x, 1.0)
    flops = 2.0 * scores * (x.head_dim + value)
    on = _half_arithmetic(x)
    # unfused
    aligned = np.where(x.head_dim % 8 == 0, 1.0, c.misaligned)
    depth = 1.0 + c.gemm_depth / x.head_dim
    multiply = flops * depth / (on.peak * on.limit * c.gemm_sustained * aligned)
    softmax = x.width * scores * c.score_bytes / (x.memory_bandwidth * c.memory_efficiency)
    unfused = multiply + softmax
    # flash
    rate = np.select(
        [x.attention == Attention.FLASH1, x.attention == Attention.FLASH2], [c.flash1, c.flash2], default=c.flash3
    )
    # Kernels written for the generation before miss the new matrix units: about 0.6 of what tuned ones reach.
    ported = (x.attention < Attention.FLASH3) & (x.peak_half > NEW_UNITS)
    rate = rate * np.where(ported, c.flash_port, 1.0)
    rate = rate / (1.0 + c.flash_warmup / x.seq) * np.minimum(1.0, 0.5 + x.head_dim / 256.0)
    met = attention_span(x, 0.5) + 0.5 * x.attention_tile  # a tile on the diagonal is computed whole
    flash = 2.0 * queries * met * (x.head_dim + value) / (on.peak * rate)
    is_flash = x.attention > Attention.UNFUSED
    forward = np.where(is_flash, flash, unfused)
    backward = np.where(is_flash, 2.5 * flash, 2.0 * unfused)
    return Pass(forward, backward, 0.0 * backward)


def memory_bound(x: Cases, c: Coefficients, moe: bool) -> Pass:
    """Norms, residuals, activation, rotary embedding, casts: bytes moved over the memory bandwidth."""
    t = x.tokens
    sp = np.where(x.sequence_parallel > 0, x.tp, 1.0)
    per_hidden = np.select(
        [x.fusion == 0, x.fusion == 1], [c.elementwise_eager, c.elementwise_fused], default=c.elementwise_compiled
    )
    width = x.topk * x.expert_ffn / x.tp + x.shared_ffn / x.tp if moe else x.ffn / x.tp
    scale = per_hidden / 24.0
    around = per_hidden * x.hidden / sp
    if moe:  # permute and unpermute of the dispatched copies: read and write each, both ways
        around = around + 8.0 * x.topk * x.hidden / x.tp
    inside = scale * ((4.0 + 2.0 * x.gated) * width + 4.0 * (x.heads / x.tp + 2.0 * x.kv_local) * x.head_dim)
    casts = np.where(x.quantised > 0, c.cast_bytes, 0.0) * (2.0 * x.hidden + x.q_dim / x.tp + width)
    kernels = np.select([x.fusion == 0, x.fusion == 1], KERNELS[:2], default=KERNELS[2])
    forward = (
        x.width * t * (around + inside + casts) / (x.memory_bandwidth * c.memory_efficiency) + kernels * c.kernel_gap
    )
    return Pass(forward, 2.0 * forward, 0.0 * forward)


def head(x: Cases, c: Coefficients) -> Pass:
    """Output projection and cross-entropy of one micro-batch on the last stage."""
    columns = np.ceil(x.vocab / (128.0 * x.tp)) * 128.0  # trainers pad the table
    gemm = linear(x.tokens, columns, x.hidden, _half_arithmetic(x), c)
    per_logit = np.where(x.fused_loss > 0, 8.0, 20.0)
    traffic = x.tokens * columns * per_logit / (x.memory_bandwidth * c.memory_efficiency)
    return gemm + Pass(traffic / 2, traffic / 2, 0.0 * traffic)


def host_layer(x: Cases, c: Coefficients) -> Array:
    """Seconds the host needs to launch one forward pass of one layer."""
    per_layer = np.where(x.slow_host > 0, c.host_eager, c.host_fused) + np.where(x.experts > 0, c.expert_host, 0.0)
    # Every rank of a tensor-parallel group waits for its slowest host at each collective.
    per_layer = per_layer * (1.0 + c.host_group * np.where(x.tp > 1, (x.tp / 8.0) ** 2, 0.0))
    return np.where(x.graphs > 0, 0.1 * per_layer, per_layer)


def recompute_forward(x: Cases, layer: Pass, core: Pass, light: Pass) -> Array:
    """Seconds of forward work done again in backward, an average layer.

    Recomputing only the core costs nothing extra with flash attention, whose backward does it anyway.
    """
    core_again = np.where((x.recompute_core > 0) & (x.attention == Attention.UNFUSED), core.forward, 0.0)
    kept = core_again + x.recompute_light * light.forward
    return x.recompute * layer.forward + (1.0 - x.recompute) * kept
