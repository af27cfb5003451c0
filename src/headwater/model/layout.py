"""Which positions may see which: causal within a document. One object behind every attention back end.

In: document ids `[batch, seq]` of packed windows (any integers; a new document wherever they change along a row). Out:
a `BlockLayout` that gives each back end what it reads: the first position of each position's document (blocked kernel
on CPUs), cumulative lengths (varlen flash attention on CUDA), a boolean mask (elsewhere), and positions that restart
in each document, for whoever wants them. Without documents (`None`) a window is one document.

    layout = BlockLayout(batch.document_ids); hidden = model(tokens, layout.positions(), layout)
"""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor


class BlockLayout:
    """Document borders of a batch of packed windows. Shapes are `[batch, seq]`; everything lives on the ids' device."""

    def __init__(self, document_ids: Tensor) -> None:
        if document_ids.dim() != 2 or document_ids.is_floating_point():
            raise ValueError(
                f"document ids must be integers [batch, seq], not {document_ids.dtype} of {document_ids.dim()} axes"
            )
        self.batch, self.seq = document_ids.shape
        self.device = document_ids.device
        if self.device.type == "mps":
            document_ids = document_ids.cpu()  # cummax is missing on MPS in some releases
        places = torch.arange(self.seq, dtype=torch.int32, device=document_ids.device)
        border = torch.zeros(document_ids.shape, dtype=torch.bool, device=document_ids.device)
        border[:, 1:] = document_ids[:, 1:] != document_ids[:, :-1]
        starts = torch.where(border, places, 0).cummax(-1).values.to(self.device, torch.int32)
        # One document a window needs no borders. Looking costs a synchronisation on a GPU, so only CPUs do.
        single = document_ids.device.type == "cpu" and not bool(border.any())
        self.starts: Tensor | None = None if single else starts
        """int32: the first position of each position's document; None if every window is one document."""
        if self.device.type == "cuda":
            _ = self.cumulative_lengths  # synchronises; here, once, rather than in the first layer

    def positions(self) -> Tensor:
        """int64 [batch, seq]: positions that restart at 0 in each document."""
        places = torch.arange(self.seq, device=self.device).expand(self.batch, -1)
        return places if self.starts is None else places - self.starts

    @cached_property
    def cumulative_lengths(self) -> Tensor:
        """int32 [n + 1]: where documents begin in the batch laid out as one row of batch x seq tokens, then its end.

        The end is repeated up to a power of two (documents of no tokens), so that compiled code sees few shapes.
        """
        total = self.batch * self.seq
        if self.starts is None:
            begins = torch.arange(0, total, self.seq, dtype=torch.int32, device=self.device)
        else:
            first = self.starts == torch.arange(self.seq, dtype=torch.int32, device=self.device)
            begins = first.flatten().nonzero().flatten().to(torch.int32)
        size = 1 << int(begins.numel()).bit_length()
        return torch.cat((begins, begins.new_full((size + 1 - begins.numel(),), total)))

    @cached_property
    def mask(self) -> Tensor:
        """bool [batch, 1, query, key]: True where a query sees a key. Memory grows with seq squared."""
        places = torch.arange(self.seq, dtype=torch.int32, device=self.device)
        causal = places[None, :] <= places[:, None]
        if self.starts is None:
            return causal.expand(self.batch, 1, -1, -1)
        return ((places >= self.starts[..., None]) & causal)[:, None]
