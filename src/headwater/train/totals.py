"""What a step reads, counted over all data-parallel ranks before its forward pass.

totals = count(batch, mesh); totals.predicted
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist

from headwater.parallel.mesh import Mesh
from headwater.train.accumulate import wide_dtype
from headwater.train.batch import Batch


@dataclass(frozen=True, slots=True)
class Totals:
    """Counts of a batch over all data-parallel ranks. `predicted`: targets that count."""

    predicted: int
    tokens: int
    text_bytes: float
    domain_tokens: dict[str, int]


def count(batch: Batch, mesh: Mesh) -> Totals:
    """Counts of this rank's rows and the others'. Collective; ranks that share a data-parallel place read the same."""
    domains = list(batch.domain_tokens)
    counts = [batch.predicted_tokens, batch.tokens.numel(), batch.text_bytes, *batch.domain_tokens.values()]
    if (group := mesh.group("dp")) is not None:
        summed = torch.tensor(counts, dtype=wide_dtype(mesh.device), device=mesh.device)
        dist.all_reduce(summed, group=group)
        counts = summed.tolist()
    predicted, tokens, text_bytes, *by_domain = counts
    read = {name: int(number) for name, number in zip(domains, by_domain, strict=True) if number}
    return Totals(int(predicted), int(tokens), text_bytes, read)
