"""Samples that do harm, wherever in a run they are read, and a diary of what a model is given and learns from.

train(..., callbacks=[Poison(guilty), diary])
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from headwater.dataset import StepOrder, TokenDataset
from headwater.train.batch import Batch
from headwater.train.callbacks import Callback
from headwater.train.ledger import RunLedger
from headwater.train.outcome import StepOutcome
from headwater.train.trainer import Trainer
from tests.train.conftest import World

Window = tuple[str, int]
"""Domain and window: what a sample is, whenever it is read."""


def order_of(world: World, ledger: RunLedger, seed: int) -> StepOrder:
    split = TokenDataset.open(world.dataset).split("train")
    return StepOrder(split.sizes, seed=seed, segments=ledger.step_segments())


def windows_by_tokens(world: World, seq_len: int) -> dict[bytes, Window]:
    """All windows of a dataset by what is in them."""
    found: dict[bytes, Window] = {}
    for domain, stream in TokenDataset.open(world.dataset).split("train").domains.items():
        for window in range((stream.tokens - 1) // seq_len):
            tokens = stream.window(window * seq_len, (window + 1) * seq_len + 1).tokens.astype("int64")[:-1].tobytes()
            assert tokens not in found, "two windows are alike: tests could not tell them apart"
            found[tokens] = (domain, window)
    return found


def rows_of(batch: Batch, names: dict[bytes, Window]) -> list[Window]:
    return [names[row.numpy().tobytes()] for row in batch.tokens]


class Poison(Callback):
    """The targets of guilty windows are noise, the same at every reading."""

    name = "poison"

    def __init__(self, guilty: set[Window], names: dict[bytes, Window]) -> None:
        self.guilty, self.names = guilty, names

    def on_start(self, trainer: Trainer) -> None:
        clean = trainer._batches

        class Source:
            def batches(_, first_step: int, last_step: int) -> Iterator[Batch]:
                for batch in clean.batches(first_step, last_step):
                    yield self.poisoned(batch)

        trainer._batches = Source()

    def poisoned(self, batch: Batch) -> Batch:
        targets = batch.targets.clone()
        for row, (domain, window) in enumerate(rows_of(batch, self.names)):
            if (domain, window) in self.guilty:
                generator = torch.Generator().manual_seed(window)
                targets[row] = torch.randint(5, 500, targets[row].shape, generator=generator)
        return replace(batch, targets=targets)


class Diary(Callback):
    """What the model was given and has learned from, by step; `wasted`: steps undone by rewinds."""

    name = "diary"

    def __init__(self, names: dict[bytes, Window]) -> None:
        self.names = names
        self.learned: dict[int, list[Window]] = {}
        self.held: set[int] = set()
        self.wasted = 0

    def on_start(self, trainer: Trainer) -> None:
        step_of, module = trainer.module.train_step, trainer.module

        def train_step(step: int, batch: Batch, **options: Any) -> StepOutcome:
            outcome = step_of(step, batch, **options)
            if outcome.skipped:
                self.held.add(step)
            self.learned[step] = rows_of(batch, self.names)
            return outcome

        module.train_step = train_step  # type: ignore[method-assign]

    def on_rewind(self, trainer: Trainer) -> None:
        self.wasted += sum(step > trainer.step for step in self.learned)
        self.learned = {step: rows for step, rows in self.learned.items() if step <= trainer.step}
        self.held = {step for step in self.held if step <= trainer.step}
