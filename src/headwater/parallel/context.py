"""Context parallelism: a group of ranks shares every window, each with its own columns of it.

In: whole rows of a batch (every rank of the group reads the same ones). Out: this rank's columns, with the positions
they have in the window, and a layout whose `attend` makes the ranks' attention equal to that of the whole window.
Document borders are known of the whole window on every rank (they are small), so the masks are the same as in one
process: causal within a document, wherever its tokens are.

Two ways (`choose_method`):

- `ulysses` (arXiv 2309.14509): an all-to-all exchanges columns for heads, each rank attends over the whole window for
  its share of the heads, a second all-to-all brings the columns back. Columns are contiguous.
- `all_gather`: keys and values of all columns come to every rank, which attends for its own queries. So that a causal
  mask leaves every rank the same work, a window is cut into 2 x cp pieces and rank r takes pieces r and 2 cp - 1 - r
  (Llama 3, arXiv 2407.21783, section 3.3.2).

    columns = take_columns(context_of(mesh, model.config), tokens, targets, positions, documents)
    hidden = model(columns.tokens, columns.positions, columns.layout)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from headwater.core.errors import RecipeError
from headwater.model import BlockLayout, ModelConfig
from headwater.parallel.context_method import Method, method_of
from headwater.parallel.mesh import Mesh

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


@dataclass(frozen=True)
class Columns:
    """What one rank computes on: its columns of a batch's rows, [rows, seq / cp], and how they attend (None: each row
    is one document, and all of it is here); `domains` [rows] are numbers the loss is added up by."""

    tokens: Tensor
    targets: Tensor
    positions: Tensor
    layout: BlockLayout | None
    domains: Tensor | None = None


@dataclass(frozen=True)
class ContextParallel:
    """This rank's place in a group that shares windows. Without a group it can cut columns, but not attend."""

    method: Method
    group: ProcessGroup | None
    rank: int
    size: int

    def pieces(self, seq_len: int) -> list[tuple[int, int]]:
        """(first, end) of this rank's columns of a window of `seq_len` tokens, in order."""
        count = self.size if self.method == "ulysses" else 2 * self.size
        if seq_len % count:
            raise ValueError(f"{seq_len} columns do not divide into {count} pieces")
        size = seq_len // count
        mine = [self.rank] if self.method == "ulysses" else [self.rank, 2 * self.size - 1 - self.rank]
        return [(piece * size, (piece + 1) * size) for piece in mine]

    def cut(self, whole: Tensor) -> Tensor:
        """This rank's columns [rows, seq / cp, ...] of [rows, seq, ...]."""
        return torch.cat([whole[:, first:end] for first, end in self.pieces(whole.shape[1])], 1)

    def layout(self, tokens: Tensor, positions: Tensor | None, documents: Tensor | None) -> ContextLayout:
        """How this rank's columns attend. Whole rows [rows, seq]; without documents a window is one document, without
        positions they count from its beginning."""
        if documents is None:
            documents = torch.zeros(tokens.shape, dtype=torch.int32, device=tokens.device)
        return ContextLayout(documents, self, positions)


def take_columns(
    context: ContextParallel | None, tokens: Tensor, targets: Tensor, positions: Tensor | None, documents: Tensor | None
) -> Columns:
    """This rank's columns of whole rows [rows, seq]; all of them without context parallelism."""
    places = torch.arange(tokens.shape[1], device=tokens.device).unsqueeze(0) if positions is None else positions
    if context is None:
        return Columns(tokens, targets, places, None if documents is None else BlockLayout(documents))
    layout = context.layout(tokens, positions, documents)
    return Columns(context.cut(tokens), context.cut(targets), context.cut(places), layout)


def context_of(mesh: Mesh, model: ModelConfig) -> ContextParallel | None:
    """This rank's place on the cp axis; None where it is 1. RecipeError if the model or the method does not fit."""
    group = mesh.group("cp")
    if group is None:
        return None
    return ContextParallel(_method(mesh, model)[0], group, mesh.coordinate("cp"), mesh.size("cp"))


def context_decision(mesh: Mesh, model: ModelConfig) -> tuple[str, str] | None:
    """(what, why) to tell about how windows are shared; None where they are not."""
    if mesh.size("cp") == 1:
        return None
    method, why = _method(mesh, model)
    way = {"ulysses": "ulysses", "all_gather": "gathered keys and values"}[method]
    return f"windows shared by {mesh.size('cp')} ranks each, by {way}", why


def _method(mesh: Mesh, model: ModelConfig) -> tuple[Method, str]:
    try:
        return method_of(mesh.config, model)
    except ValueError as error:
        what, _, mend = str(error).partition("\n  mend: ")
        raise RecipeError(what, where="parallel.cp_method", mend=mend) from error


class ContextLayout(BlockLayout):
    """Document borders of whole windows, and attention of this rank's columns within them.

    documents: integers [rows, seq] of the whole windows. positions: integers [rows, seq], if they are not 0, 1, 2 ...
    """

    def __init__(self, documents: Tensor, context: ContextParallel, positions: Tensor | None = None) -> None:
        super().__init__(documents)
        self.context = context
        if positions is None:
            self.longest = torch.full((self.batch, 1), self.seq - 1, device=self.device)
        else:
            self.longest = positions.amax(-1, keepdim=True)
        self._tails: list[BlockLayout] = []
        if context.method == "all_gather":
            self._tails = [BlockLayout(documents[:, :end], first) for first, end in context.pieces(self.seq)]

    def positions(self) -> Tensor:
        """int64 [rows, seq / cp]: positions of this rank's columns, restarting at 0 in each document."""
        return self.context.cut(super().positions())

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """As `BlockLayout.attend`, for this rank's columns: q [rows, seq / cp, heads, head_dim], k, v with kv_heads."""
        if self.context.method == "ulysses":
            whole_q, whole_k, whole_v = _columns_to_heads(q, k, v, self.context)
            return _heads_to_columns(super().attend(whole_q, whole_k, whole_v), self.context)
        whole_k, whole_v = _gather(k, v, self.context)
        parts = [
            tail.attend(part, whole_k[:, : tail.seq], whole_v[:, : tail.seq])
            for tail, part in zip(self._tails, q.chunk(2, 1), strict=True)
        ]
        return torch.cat(parts, 1)


def _columns_to_heads(q: Tensor, k: Tensor, v: Tensor, context: ContextParallel) -> tuple[Tensor, Tensor, Tensor]:
    """All heads of a rank's columns -> the rank's share of the heads, of all columns; one exchange for all three."""
    size = context.size
    rows, columns, _, dim = q.shape
    shares = [x.shape[2] // size for x in (q, k, v)]
    # [rows, columns, heads, dim] -> [to rank, rows, columns, its heads of q, k and v, dim]
    parts = [x.unflatten(2, (size, -1)).movedim(2, 0) for x in (q, k, v)]
    received = _exchange(torch.cat(parts, 3), context)
    whole = received.transpose(0, 1).reshape(rows, size * columns, sum(shares), dim)
    whole_q, whole_k, whole_v = whole.split(shares, 2)
    return whole_q, whole_k, whole_v


def _heads_to_columns(out: Tensor, context: ContextParallel) -> Tensor:
    """[rows, seq, share of heads, dim] -> [rows, seq / cp, heads, dim]."""
    received = _exchange(out.unflatten(1, (context.size, -1)).transpose(0, 1), context)
    return received.permute(1, 2, 0, 3, 4).flatten(2, 3)  # ranks hold the heads in order


def _exchange(parts: Tensor, context: ContextParallel) -> Tensor:
    """All-to-all: part i of `parts` [cp, ...] goes to rank i; the result's part i came from rank i."""
    from torch.distributed import _functional_collectives as collectives

    assert context.group is not None, "attention needs the group"
    received = collectives.all_to_all_single_autograd(parts.contiguous(), None, None, context.group)
    return received.view(parts.shape)


def _gather(k: Tensor, v: Tensor, context: ContextParallel) -> tuple[Tensor, Tensor]:
    """Keys and values of the whole window, in order. The gradient's way back is a reduce-scatter."""
    from torch.distributed import _functional_collectives as collectives

    assert context.group is not None, "attention needs the group"
    both = torch.stack((k, v)).unflatten(2, (2, -1))  # [k or v, rows, early or late, piece, heads, dim]
    gathered = collectives.all_gather_single_autograd(both.contiguous(), 0, context.group)
    by_rank = gathered.view(context.size, *both.shape)
    early, late = by_rank.unbind(3)  # [cp, k or v, rows, piece, heads, dim]
    whole = torch.cat((early, late.flip(0)), 0).permute(1, 2, 0, 3, 4, 5).flatten(2, 3)
    return whole[0], whole[1]
