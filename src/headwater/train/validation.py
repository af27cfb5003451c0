"""Loss, accuracy and bits per byte on held-out windows of each domain, in the course of a run.

In: windows of the validation split, the same ones every time. Out: `val_loss`, `val_perplexity`, `val_accuracy`,
`val_bits_per_byte` by domain and pooled ("all") in the step's record, and loss and bits under averaged weights where
the run keeps them. Of a masked model: loss and accuracy of the masked tokens, with the same masks every time; it has no
perplexity and no bits per byte. A quick look at a sample of the split: the evaluation stage measures the whole of it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

from headwater.parallel.watchdog import beat
from headwater.train.callbacks import Callback, due
from headwater.train.config import ValidationConfig
from headwater.train.data import ValidationWindows
from headwater.train.train_module import StepOutcome, TrainModule
from headwater.train.trainer import Trainer

DEFAULT_TIMES = 10
POOLED = "all"


class ValidationCallback(Callback):
    """Validates every so many steps and at the end. Comes before the metrics callback."""

    name = "validation"

    def __init__(self, config: ValidationConfig, windows: Sequence[ValidationWindows]) -> None:
        self._config = config
        self._windows = windows

    def after_step(self, trainer: Trainer, outcome: StepOutcome) -> None:
        every = self._config.every if self._config.every is not None else max(1, trainer.steps // DEFAULT_TIMES)
        if not self._windows or not due(trainer.step, every, trainer.steps):
            return
        started = time.perf_counter()
        module = trainer.module
        with module.evaluation(averaged=False):
            measured = measure(module, self._windows)
        trainer.record["val_loss"] = measured.losses
        trainer.record["val_accuracy"] = measured.accuracies
        if measured.bits:
            trainer.record["val_perplexity"] = {n: math.exp(loss) for n, loss in measured.losses.items() if loss < 700}
            trainer.record["val_bits_per_byte"] = measured.bits
        if module.has_average:
            with module.evaluation(averaged=True):
                measured = measure(module, self._windows)
            trainer.record["val_loss_averaged"] = measured.losses
            if measured.bits:
                trainer.record["val_bits_per_byte_averaged"] = measured.bits
        trainer.spent["validation_seconds"] = time.perf_counter() - started + trainer.spent.get("validation_seconds", 0)


@dataclass(frozen=True, slots=True)
class Measured:
    """Figures by domain and pooled: loss in nats a predicted token, share of right predictions, bits per byte ({} of a
    masked model)."""

    losses: dict[str, float]
    accuracies: dict[str, float]
    bits: dict[str, float]


def measure(module: TrainModule, windows: Sequence[ValidationWindows]) -> Measured:
    """All windows under the weights as they are."""
    nats: dict[str, float] = {}
    tokens: dict[str, int] = {}
    right: dict[str, int] = {}
    text_bytes = {one.domain: one.batch.text_bytes for one in windows}
    for one in windows:
        beat()
        nats[one.domain], tokens[one.domain], right[one.domain] = module.evaluate(one.batch)
    nats[POOLED], tokens[POOLED], right[POOLED] = sum(nats.values()), sum(tokens.values()), sum(right.values())
    text_bytes[POOLED] = sum(text_bytes.values())
    losses = {name: nats[name] / tokens[name] for name in nats if tokens[name]}
    bits = {name: nats[name] / math.log(2) / text_bytes[name] for name in nats if text_bytes[name]}
    return Measured(losses, {name: right[name] / tokens[name] for name in losses}, bits)
