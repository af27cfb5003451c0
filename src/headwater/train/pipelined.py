"""The executor of a rank that holds some of the layers: a step's micro-batches go through the stages of a pipeline.

In: a batch of this data-parallel rank's rows, the same on all its pipeline ranks. Out: what `Executor` promises:
gradients complete, summed over data-parallel ranks once, and the sums of the loss where the last stage is.

    executor = PipelineExecutor(stages, mesh, micro_batch=2, message_dtype=torch.bfloat16, columns=..., hidden=...,
                                loss=...)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from headwater.core.errors import RecipeError
from headwater.model import CrossEntropy
from headwater.model.hf import Model
from headwater.parallel.context import Columns
from headwater.parallel.data import reshard
from headwater.parallel.mesh import Mesh
from headwater.parallel.pipeline import Pipeline
from headwater.parallel.stages import split
from headwater.train.accumulate import domain_count, loss_sums
from headwater.train.batch import Batch


class PipelineExecutor:
    """An `Executor` over the pp axis. `message_dtype`: of the stream between stages; `columns`: what this rank computes
    on of a micro-batch; `hidden`: a stage's output for its input; `loss`: sums over the predicted tokens, from the last
    stage's output."""

    def __init__(
        self,
        stages: Sequence[Model],
        mesh: Mesh,
        *,
        micro_batch: int,
        message_dtype: torch.dtype,
        columns: Callable[[Batch], Columns],
        hidden: Callable[[Any, Tensor, Columns], Tensor],
        loss: Callable[[Any, Tensor, Tensor], CrossEntropy],
    ) -> None:
        config, group = stages[0].config, mesh.group("pp")
        assert group is not None
        self._stages, self._device, self.micro_batch = list(stages), mesh.device, micro_batch
        self._columns, self._hidden, self._loss = columns, hidden, loss
        self._pipeline = Pipeline(
            split(config, mesh.config),
            stages,
            mesh.config,
            group,
            mesh.device,
            width=config.hidden_size,
            message_dtype=message_dtype,
            sequence_shards=mesh.size("tp"),
            tied=config.tie_word_embeddings,
        )

    def run(self, batch: Batch, divisor: float) -> Tensor:
        """See `Executor`. RecipeError for rows that do not make whole micro-batches."""
        if batch.rows % self.micro_batch:
            raise RecipeError(
                f"{batch.rows} samples a step and data-parallel rank do not divide into micro-batches of "
                f"{self.micro_batch}, and a pipeline's micro-batches all have one size",
                where="parallel.micro_batch",
                mend=f"use a divisor of {batch.rows}",
            )

        count = domain_count(batch)

        def loss(stage: nn.Module, hidden: Tensor, part: Columns) -> tuple[Tensor, Tensor]:
            result = self._loss(stage, hidden, part.targets)
            return result.total / divisor, loss_sums(result, part.domains, count)

        parts = self._parts(batch, self.micro_batch)
        return self._pipeline.forward_backward(parts, self._hidden, loss, figures=2 + count)

    def evaluate(self, batch: Batch) -> Tensor:
        """See `Executor`. Rows that do not make a whole micro-batch are filled up with rows that predict nothing."""

        def loss(stage: nn.Module, hidden: Tensor, part: Columns) -> tuple[Tensor, Tensor]:
            result = self._loss(stage, hidden, part.targets)
            assert result.correct is not None
            return result.nats, torch.stack((result.nats, result.correct.to(result.nats.dtype)))

        size = min(self.micro_batch, batch.rows)
        parts = self._parts(batch.padded(size), size)
        sums = self._pipeline.evaluate(parts, self._hidden, loss, figures=2)
        for stage in self._stages:
            reshard(stage)
        return sums

    def _parts(self, batch: Batch, size: int) -> list[Columns]:
        return [self._columns(batch.part(row, row + size, self._device)) for row in range(0, batch.rows, size)]
