"""Which positions may see which: causal within a document. One object behind every attention back end.

In: document ids `[batch, seq]` of packed windows (any integers; a new document wherever they change along a row). Out:
a `BlockLayout` that gives each back end what it reads: the first position of each position's document (blocked kernel
on CPUs), cumulative lengths (varlen flash attention on CUDA), a boolean mask (elsewhere), and positions that restart
in each document, for whoever wants them. Without documents (`None`) a window is one document. `layout.attend` is what
the model calls; a layout whose window is spread over ranks brings its own.

    layout = BlockLayout(batch.document_ids); hidden = model(tokens, layout.positions(), layout)
"""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from headwater.model.attention import attend


class BlockLayout:
    """Document borders of a batch of packed windows. Everything lives on the ids' device.

    document_ids: integers [batch, seq], of the keys. first_query: queries are the positions from here on, all of them
    by default; the rest of a window's queries may be another rank's.
    """

    longest: Tensor | None = None
    """Each row's largest position [batch, 1], for a layout whose tokens at hand are not the whole row."""

    def __init__(self, document_ids: Tensor, first_query: int = 0) -> None:
        if document_ids.dim() != 2 or document_ids.is_floating_point():
            raise ValueError(
                f"document ids must be integers [batch, seq], not {document_ids.dtype} of {document_ids.dim()} axes"
            )
        self.batch, self.seq = document_ids.shape
        if not 0 <= first_query < max(1, self.seq):
            raise ValueError(f"query {first_query} is not one of {self.seq} positions")
        self.first_query = first_query
        self.device = document_ids.device
        if self.device.type == "mps":
            document_ids = document_ids.cpu()  # cummax is missing on MPS in some releases
        places = torch.arange(self.seq, dtype=torch.int32, device=document_ids.device)
        border = torch.zeros(document_ids.shape, dtype=torch.bool, device=document_ids.device)
        border[:, 1:] = document_ids[:, 1:] != document_ids[:, :-1]
        starts = torch.where(border, places, 0).cummax(-1).values[:, first_query:].to(self.device, torch.int32)
        # One document a window needs no borders. Looking costs a synchronisation on a GPU, so only CPUs do.
        single = document_ids.device.type == "cpu" and not bool(border.any())
        self.starts: Tensor | None = None if single else starts
        """int32 [batch, queries]: the first position of each query's document; None if every window is one document."""
        if self.device.type == "cuda":
            _ = self.cumulative_lengths, self.cumulative_keys  # synchronise; here, once, rather than in the first layer

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Causal attention within documents. q [batch, queries, heads, head_dim], already multiplied by its scale; k, v
        [batch, seq, kv_heads, head_dim]. Returns the shape of q."""
        return attend(q, k, v, self)

    def positions(self) -> Tensor:
        """int64 [batch, queries]: positions that restart at 0 in each document."""
        places = torch.arange(self.first_query, self.seq, device=self.device).expand(self.batch, -1)
        return places if self.starts is None else places - self.starts

    @cached_property
    def cumulative_lengths(self) -> Tensor:
        """int32 [n + 1]: where documents begin in the batch laid out as one row of batch x queries tokens, then its
        end.

        The end is repeated up to a power of two (documents of no tokens), so that compiled code sees few shapes.
        """
        queries = self.seq - self.first_query
        if self.starts is None:
            begins = torch.arange(0, self.batch * queries, queries, dtype=torch.int32, device=self.device)
        elif self.first_query == 0:
            first = self.starts == torch.arange(self.seq, dtype=torch.int32, device=self.device)
            begins = first.flatten().nonzero().flatten().to(torch.int32)
        else:
            row, column = self._segments
            begins = (row * queries + (column - 1).clamp(min=0)).to(torch.int32)
        return _pad(begins, self.batch * queries)

    @cached_property
    def cumulative_keys(self) -> Tensor:
        """int32, as `cumulative_lengths`, for the keys. With all queries at hand they are the same; otherwise the keys
        that no query of a row sees are a document of no queries in front of it."""
        if self.first_query == 0:
            return self.cumulative_lengths
        if self.starts is None:
            begins = torch.arange(0, self.batch * self.seq, self.seq, dtype=torch.int32, device=self.device)
        else:
            row, column = self._segments
            first = torch.where(column > 0, self.starts[row, (column - 1).clamp(min=0)], 0)
            begins = (row * self.seq + first).to(torch.int32)
        return _pad(begins, self.batch * self.seq)

    @cached_property
    def _segments(self) -> tuple[Tensor, Tensor]:
        """Row, and 1 + the first query of each document in it; 0 for the keys nobody sees."""
        assert self.starts is not None
        places = torch.arange(self.first_query, self.seq, dtype=torch.int32, device=self.device)
        first = self.starts == places
        first[:, 0] = True
        marks = torch.cat((torch.ones_like(first[:, :1]), first), -1)
        row, column = marks.nonzero(as_tuple=True)
        return row, column

    @cached_property
    def mask(self) -> Tensor:
        """bool [batch, 1, query, key]: True where a query sees a key. Memory grows with seq squared."""
        places = torch.arange(self.seq, dtype=torch.int32, device=self.device)
        causal = places[None, :] <= places[self.first_query :, None]
        if self.starts is None:
            return causal.expand(self.batch, 1, -1, -1)
        return ((places >= self.starts[..., None]) & causal)[:, None]


def _pad(begins: Tensor, total: int) -> Tensor:
    size = 1 << int(begins.numel()).bit_length()
    return torch.cat((begins, begins.new_full((size + 1 - begins.numel(),), total)))
