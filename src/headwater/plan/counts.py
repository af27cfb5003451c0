"""Parameters and FLOPs in closed form, for one model or many layouts at once.

Sources: Narayanan et al. (SC21) equations 2 and 3; DeepSeek-V2/V3 for latent attention; checked exactly against
`transformers` for fifteen public configurations in `tests/plan/test_counts.py`.
"""

from __future__ import annotations

import numpy as np

from .cases import Array, Cases


def attention_matrix_parameters(x: Cases) -> Array:
    """Weights of the attention projections of one layer, whole (not sharded)."""
    plain = x.hidden * (x.q_dim + 2.0 * x.kv_heads * x.head_dim) + x.q_dim * x.hidden
    q = np.where(x.q_lora > 0, x.hidden * x.q_lora + x.q_lora * x.q_dim, x.hidden * x.q_dim)
    nope = x.head_dim - x.rope_dim
    latent = (
        q
        + x.hidden * (x.kv_lora + x.rope_dim)
        + x.kv_lora * x.heads * (nope + x.value_dim)
        + x.heads * x.value_dim * x.hidden
    )
    return np.where(x.mla > 0, latent, plain)


def ffn_parameters(x: Cases, width: Array) -> Array:
    return (2.0 + x.gated) * x.hidden * width


def layer_parameters_local(x: Cases) -> Array:
    """Parameters of an average layer held by one rank after tensor and expert parallelism."""
    share = np.where(x.experts > 0, 1.0 - x.dense_layers / x.layers, 0.0)
    attention = attention_matrix_parameters(x) / x.tp
    dense = ffn_parameters(x, x.ffn) / x.tp
    experts = ffn_parameters(x, x.expert_ffn) * x.experts / np.where(x.ep > 1, x.ep, x.tp)
    sparse = experts + ffn_parameters(x, x.shared_ffn) / x.tp + x.hidden * x.experts
    return attention + dense * (1.0 - share) + sparse * share + 2.0 * x.hidden


def matrix_parameters(x: Cases) -> Array:
    """Weights every token is multiplied with (active parameters without the embedding lookup, head included)."""
    share = np.where(x.experts > 0, 1.0 - x.dense_layers / x.layers, 0.0)
    dense = ffn_parameters(x, x.ffn)
    sparse = ffn_parameters(x, x.expert_ffn) * x.topk + ffn_parameters(x, x.shared_ffn) + x.hidden * x.experts
    per_layer = attention_matrix_parameters(x) + dense * (1.0 - share) + sparse * share
    return x.layers * per_layer + x.vocab * x.hidden


def head_units(x: Cases) -> Array:
    """Weight of the output head in layers, by multiply work; recompute makes a layer dearer, never the head.

    The trainer's own cut (`spread` 3) does not know of recompute: stages stay where they are when it changes.
    """
    again = np.where(np.asarray(x.spread) > 2, 0.0, x.recompute)
    per_layer = (matrix_parameters(x) - x.vocab * x.hidden) / x.layers
    return x.vocab * x.hidden / (per_layer * (1.0 + again / 3.0))


def total_parameters(x: Cases) -> Array:
    share = np.where(x.experts > 0, 1.0 - x.dense_layers / x.layers, 0.0)
    dense = ffn_parameters(x, x.ffn)
    sparse = ffn_parameters(x, x.expert_ffn) * x.experts + ffn_parameters(x, x.shared_ffn) + x.hidden * x.experts
    per_layer = attention_matrix_parameters(x) + dense * (1.0 - share) + sparse * share + 2.0 * x.hidden
    return x.layers * per_layer + x.vocab * x.hidden * np.where(x.tied > 0, 1.0, 2.0) + x.hidden


def attention_span(x: Cases, causal: Array) -> Array:
    """Keys a query meets on average over the layers; a window is never counted twice its length."""
    full = x.seq * causal
    windowed = np.where(x.window > 0, np.minimum(x.window, full), full)
    return (1.0 - x.window_share) * full + x.window_share * windowed


def attention_flops_per_token(x: Cases, causal: Array) -> Array:
    """Forward and backward FLOPs of the attention core a token; `causal` 0.5 counts half the scores, 1 all."""
    value = np.where(x.mla > 0, x.value_dim, x.head_dim)
    return 6.0 * x.layers * x.heads * (x.head_dim + value) * attention_span(x, causal)


def model_flops_per_token(x: Cases, causal: Array) -> Array:
    """6 N (matrices) + attention: forward and backward without recompute."""
    return 6.0 * matrix_parameters(x) + attention_flops_per_token(x, causal)


def hardware_flops_per_token(x: Cases, causal: Array) -> Array:
    """FLOPs really done a token, recompute included: 4/3 of the layers when all is recomputed (SC21 eq. 3)."""
    body = 6.0 * (matrix_parameters(x) - x.vocab * x.hidden) + attention_flops_per_token(x, causal)
    logits = 6.0 * x.vocab * x.hidden
    core = attention_flops_per_token(x, causal)
    again = x.recompute * body / 3.0 + (1.0 - x.recompute) * x.recompute_core * core / 3.0
    return body + logits + again
