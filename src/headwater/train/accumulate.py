"""Forward and backward over a batch, micro-batch by micro-batch, by a rank that holds all layers.

In: a stage, a batch of this rank's rows, the global number of predicted tokens. Out: gradients of the mean over those
tokens, summed over data-parallel ranks in the last backward pass, or in each where ranks keep shares of gradients only
(`parallel.gradient_reduction`); and this rank's sums of nats and z-loss, and of the nats of each domain.

    executor = Accumulator(stage, forward, mesh, micro_batch=8)
    nats, penalty, *by_domain = executor.run(batch, predicted)

A pipeline, whose rank holds some of the layers, is another `Executor`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from headwater.model import CrossEntropy
from headwater.model.hf import Model
from headwater.parallel.data import before_micro_batch, reshard
from headwater.parallel.mesh import Mesh
from headwater.train.batch import Batch

Forward = Callable[[Model, Batch], CrossEntropy]
"""A stage and a micro-batch on its device: sums over the predicted tokens."""


class Executor(Protocol):
    """How the micro-batches of a step are run. Sums are float64 (float32 on MPS), this rank's own: 0 where the loss
    is made by another pipeline stage, and the same on all tensor-parallel ranks. `micro_batch`: rows of one forward
    pass, which may change from step to step."""

    micro_batch: int

    def run(self, batch: Batch, divisor: float) -> Tensor:
        """Forward and backward of the loss's sum over `divisor`; gradients are complete afterwards. [nats, weighted
        z-loss, nats of the rows of each domain (none if the batch does not tell them)]."""

    def evaluate(self, batch: Batch) -> Tensor:
        """Forward only: [nats, right predictions]. The model keeps no state of it."""


class Accumulator:
    """See the module."""

    def __init__(self, stage: Model, forward: Forward, mesh: Mesh, *, micro_batch: int) -> None:
        self._stage, self._forward, self._mesh, self.micro_batch = stage, forward, mesh, micro_batch

    def run(self, batch: Batch, divisor: float) -> Tensor:
        device = self._mesh.device
        sums = torch.zeros(2 + domain_count(batch), dtype=wide_dtype(device), device=device)
        for start in range(0, batch.rows, self.micro_batch):
            last = start + self.micro_batch >= batch.rows
            before_micro_batch(
                self._stage,
                last=last,
                sync=last or self._mesh.config.reduces_every_micro_batch,
                zero=self._mesh.config.zero,
            )
            part = batch.part(start, start + self.micro_batch, device)
            result = self._forward(self._stage, part)
            (result.total / divisor).backward()
            sums += loss_sums(result, part.domains, domain_count(batch))
        return sums

    @torch.no_grad()
    def evaluate(self, batch: Batch) -> Tensor:
        device = self._mesh.device
        sums = torch.zeros(2, dtype=wide_dtype(device), device=device)
        for start in range(0, batch.rows, self.micro_batch):
            result = self._forward(self._stage, batch.part(start, start + self.micro_batch, device))
            assert result.correct is not None
            sums += torch.stack((result.nats, result.correct.to(result.nats.dtype)))
        reshard(self._stage)
        return sums


def domain_count(batch: Batch) -> int:
    """Domains whose losses are added up apart."""
    return 0 if batch.domains is None else len(batch.domain_tokens)


def loss_sums(result: CrossEntropy, domains: Tensor | None, count: int) -> Tensor:
    """The sums of a micro-batch as `Executor.run` gives them; `domains` [rows] of `count`."""
    both = torch.stack((result.nats, result.total.detach() - result.nats))
    if domains is None or not count:
        return both
    assert result.per_token is not None, "losses by domain need those of the rows"
    rows = result.per_token.sum(1, dtype=both.dtype)
    return torch.cat((both, both.new_zeros(count).index_add_(0, domains, rows)))


def wide_dtype(device: torch.device) -> torch.dtype:
    """For sums over many micro-batches."""
    return torch.float32 if device.type == "mps" else torch.float64
