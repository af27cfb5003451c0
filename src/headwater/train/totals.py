"""What a step reads, counted over all data-parallel ranks before its forward pass.

totals = count(batch, mesh); totals.predicted
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from headwater.model.loss import IGNORE
from headwater.parallel.mesh import Mesh
from headwater.train.accumulate import wide_dtype
from headwater.train.batch import Batch


@dataclass(frozen=True, slots=True)
class Totals:
    """Counts of a batch over all data-parallel ranks. `predicted`: targets that count; `domain_predicted`: those by
    domain, in the order of the batch's `domain_tokens`; {} if rows do not tell theirs."""

    predicted: int
    tokens: int
    text_bytes: float
    domain_tokens: dict[str, int]
    domain_predicted: dict[str, int]

    def domain_loss(self, nats: Sequence[float]) -> dict[str, float]:
        """Mean nats by domain, of the sums in their order; a domain without a predicted token has none."""
        both = zip(self.domain_predicted.items(), nats, strict=True)
        return {name: total / number for (name, number), total in both if number}


def count(batch: Batch, mesh: Mesh) -> Totals:
    """Counts of this rank's rows and the others'. Collective; ranks that share a data-parallel place read the same."""
    domains = list(batch.domain_tokens)
    counts = [batch.predicted_tokens, batch.tokens.numel(), batch.text_bytes, *batch.domain_tokens.values()]
    if batch.domains is not None:
        rows = (batch.targets != IGNORE).sum(1)
        counts += torch.zeros(len(domains), dtype=torch.int64).index_add_(0, batch.domains, rows).tolist()
    if (group := mesh.group("dp")) is not None:
        summed = torch.tensor(counts, dtype=wide_dtype(mesh.device), device=mesh.device)
        dist.all_reduce(summed, group=group)
        counts = summed.tolist()
    predicted, tokens, text_bytes, *by_domain = counts
    of_domain = [int(number) for number in by_domain]
    read = {name: number for name, number in zip(domains, of_domain[: len(domains)], strict=True) if number}
    scored = {} if batch.domains is None else dict(zip(domains, of_domain[len(domains) :], strict=True))
    return Totals(int(predicted), int(tokens), text_bytes, read, scored)
