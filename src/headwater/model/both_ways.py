"""Attention that sees both sides, within documents: the back end chosen by where the tensors live.

In: q, k, v `[batch, seq, heads, head_dim]` (q already scaled), the borders of the documents, and a reach to each side.
Out: the shape of q.

- CPU: `interval_attention`.
- CUDA, bfloat16 or float16, with documents or a reach: varlen flash attention.
- Otherwise: `scaled_dot_product_attention`, with a boolean mask where one is needed.

    borders = Borders.of(layout); out = attend_both_ways(q * head_dim ** -0.5, k, v, borders, reach=64)
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from headwater.model.interval_attention import NO_LIMIT, interval_attention
from headwater.model.layout import BlockLayout


class Borders:
    """Where the documents of a batch begin and end. Made once a forward pass, read by every layer.

    `starts`, `ends`: int [batch, seq], the first position of each position's document and the one after its last; None
    where every row is one document.
    """

    def __init__(self, starts: Tensor | None, layout: BlockLayout | None) -> None:
        self.starts = starts
        self.ends = None if starts is None else _ends(starts)
        self.layout = layout
        self._masks: dict[int, Tensor] = {}

    @classmethod
    def of(cls, layout: BlockLayout | None) -> Borders:
        return cls(None if layout is None else layout.starts, layout)

    def mask(self, seq: int, reach: int, device: torch.device) -> Tensor:
        """bool [batch or 1, 1, query, key]: True where a query sees a key. Memory grows with seq squared."""
        if reach not in self._masks:
            places = torch.arange(seq, device=device)
            seen = torch.ones(1, seq, seq, dtype=torch.bool, device=device)
            if reach != NO_LIMIT:
                seen = ((places[:, None] - places).abs() <= reach)[None]
            if self.starts is not None and self.ends is not None:
                seen = seen & (places >= self.starts[..., None]) & (places < self.ends[..., None])
            self._masks[reach] = seen[:, None]
        return self._masks[reach]


def _ends(starts: Tensor) -> Tensor:
    """From the right, the next position at which a document begins."""
    if starts.device.type == "mps":
        return _ends(starts.cpu()).to(starts.device)  # cummin is missing on MPS in some releases
    seq = starts.shape[1]
    places = torch.arange(seq, dtype=starts.dtype, device=starts.device)
    ends = torch.full_like(starts, seq)
    ends[:, :-1] = torch.where(starts[:, 1:] == places[1:], places[1:], seq)
    return ends.flip(1).cummin(1).values.flip(1)


def attend_both_ways(q: Tensor, k: Tensor, v: Tensor, borders: Borders, reach: int = NO_LIMIT) -> Tensor:
    """Attention over the keys of the query's document within `reach` positions. Shapes above; one dtype."""
    seq = q.shape[1]
    if q.device.type in ("cpu", "meta"):
        return interval_attention(q, k, v, borders.starts, borders.ends, reach)
    whole = borders.starts is None and (reach == NO_LIMIT or reach >= seq - 1)
    if not whole and q.is_cuda and q.dtype in (torch.bfloat16, torch.float16):
        return _varlen(q, k, v, borders, reach)
    out = F.scaled_dot_product_attention(
        q.transpose(1, 2),
        k.transpose(1, 2),
        v.transpose(1, 2),
        attn_mask=None if whole else borders.mask(seq, reach, q.device),
        scale=1.0,
    )
    return out.transpose(1, 2)


def _varlen(q: Tensor, k: Tensor, v: Tensor, borders: Borders, reach: int) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn

    batch, seq = q.shape[:2]
    if borders.layout is not None:
        cuts = borders.layout.cumulative_lengths
    else:
        cuts = torch.arange(0, (batch + 1) * seq, seq, dtype=torch.int32, device=q.device)
    window = (reach, reach) if reach != NO_LIMIT else (-1, -1)
    out = varlen_attn(
        q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1), cuts, cuts, seq, seq, scale=1.0, window_size=window
    )
    assert isinstance(out, Tensor)
    return out.view(q.shape)
