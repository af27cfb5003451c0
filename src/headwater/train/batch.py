"""The rows of a step as tensors.

part = batch.part(0, 8, torch.device("cpu"))
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from headwater.model.loss import IGNORE


@dataclass(frozen=True)
class Batch:
    """Rows of one step that this data-parallel rank reads: all of them where there is only one.

    `tokens`, `targets` int64 [B, S], a target that is not predicted being IGNORE; `positions` int32 and `documents`
    int32 [B, S], or None where a row is one document; `domain_tokens` tokens read by domain, the same domains on every
    rank; `text_bytes` how many bytes of text the predicted tokens stand for (0 if not known);
    `cache_hit_ratio` the share of the rows that came from the shard cache, None without one; `domains` int64 [B] each
    row's place among the keys of `domain_tokens`, None if that is not known.
    """

    tokens: Tensor
    targets: Tensor
    positions: Tensor | None = None
    documents: Tensor | None = None
    domain_tokens: dict[str, int] = field(default_factory=dict)
    text_bytes: float = 0.0
    cache_hit_ratio: float | None = None
    domains: Tensor | None = None

    @property
    def rows(self) -> int:
        return self.tokens.shape[0]

    @property
    def predicted_tokens(self) -> int:
        """Targets that count."""
        return int((self.targets != IGNORE).sum())

    def part(self, start: int, stop: int, device: torch.device) -> Batch:
        """Rows start..stop (exclusive) on `device`; counts stay with the whole."""

        def cut(tensor: Tensor | None) -> Tensor | None:
            return None if tensor is None else tensor[start:stop].to(device, non_blocking=True)

        return Batch(
            self.tokens[start:stop].to(device, non_blocking=True),
            self.targets[start:stop].to(device, non_blocking=True),
            cut(self.positions),
            cut(self.documents),
            domains=cut(self.domains),
        )

    def share(self, rank: int, ranks: int) -> Batch:
        """The rows of one of `ranks`: as many for each, so that all make the same forward passes.

        Where they do not divide, the last rank's missing rows are copies that predict nothing.
        """
        if ranks == 1:
            return self
        size = -(-self.rows // ranks)
        return self._chosen(torch.arange(rank * size, (rank + 1) * size))

    def padded(self, multiple: int) -> Batch:
        """The rows, filled up to a multiple with copies that predict nothing."""
        missing = -self.rows % multiple
        return self._chosen(torch.arange(self.rows + missing)) if missing else self

    def _chosen(self, wanted: Tensor) -> Batch:
        """Rows by number; one beyond the last is a copy of the last that predicts nothing."""
        index = wanted.clamp(max=self.rows - 1)
        targets = self.targets[index].masked_fill((wanted >= self.rows)[:, None], IGNORE)
        return replace(
            self,
            tokens=self.tokens[index],
            targets=targets,
            positions=None if self.positions is None else self.positions[index],
            documents=None if self.documents is None else self.documents[index],
            domains=None if self.domains is None else self.domains[index],
        )
