"""Attention over whole windows: one function, the back end chosen by where the tensors live.

In: q `[batch, seq, heads, head_dim]` already multiplied by its scale, k and v `[batch, seq, kv_heads, head_dim]`, a
`BlockLayout` or None (each window one document). Out: `[batch, seq, heads, head_dim]`. A layout may say that the
queries are the last of the keys' positions only.

- CPU: `blocked_attention` (FlexAttention has no backward pass there and varlen no kernel at all, torch 2.13).
- CUDA, bfloat16 or float16, with documents: varlen flash attention.
- Otherwise: `scaled_dot_product_attention`, causal, or with the layout's boolean mask.

    out = attend(q * head_dim ** -0.5, k, v, layout)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from headwater.model.blocked_attention import blocked_attention

if TYPE_CHECKING:
    from headwater.model.layout import BlockLayout


def attend(q: Tensor, k: Tensor, v: Tensor, layout: BlockLayout | None) -> Tensor:
    """Causal attention within documents. Shapes above; q, k and v of one dtype, heads a multiple of kv_heads."""
    starts = None if layout is None else layout.starts
    if q.device.type in ("cpu", "meta"):
        return blocked_attention(q, k, v, starts)
    if layout is not None and starts is not None and q.is_cuda and q.dtype in (torch.bfloat16, torch.float16):
        return _varlen(q, k, v, layout)
    mask = layout.mask if layout is not None and (starts is not None or layout.first_query) else None
    return scaled_dot_product(q, k, v, mask)


def scaled_dot_product(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """PyTorch's attention on our axes. mask: bool, broadcastable to [batch, heads, query, key]; None: causal."""
    out = F.scaled_dot_product_attention(
        q.transpose(1, 2),
        k.transpose(1, 2),
        v.transpose(1, 2),
        attn_mask=mask,
        is_causal=mask is None,
        scale=1.0,
        enable_gqa=q.shape[2] != k.shape[2],
    )
    return out.transpose(1, 2)


def _varlen(q: Tensor, k: Tensor, v: Tensor, layout: BlockLayout) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn

    out = varlen_attn(
        q.flatten(0, 1),
        k.flatten(0, 1),
        v.flatten(0, 1),
        layout.cumulative_lengths,
        layout.cumulative_keys,
        layout.seq,  # an upper bound of the documents' lengths: the same number for every batch
        layout.seq,
        scale=1.0,
        window_size=(-1, 0),  # causal; a document's last query is its last key, where it has fewer queries than keys
        enable_gqa=q.shape[2] != k.shape[2],
    )
    assert isinstance(out, Tensor)
    return out.view(q.shape)
