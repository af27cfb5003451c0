"""Loss and bits per byte on held-out windows of each domain, in the course of a run.

In: windows of the validation split, the same ones every time. Out: `val_loss`, `val_perplexity`, `val_bits_per_byte` by
domain and pooled ("all") in the step's record, and the same under averaged weights where the run keeps them. A quick
look at a sample of the split: the evaluation stage measures the whole of it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

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
            losses, bits = measure(module, self._windows)
        trainer.record["val_loss"] = losses
        trainer.record["val_perplexity"] = {name: math.exp(loss) for name, loss in losses.items() if loss < 700}
        trainer.record["val_bits_per_byte"] = bits
        if module.has_average:
            with module.evaluation(averaged=True):
                losses, bits = measure(module, self._windows)
            trainer.record["val_loss_averaged"] = losses
            trainer.record["val_bits_per_byte_averaged"] = bits
        trainer.spent["validation_seconds"] = time.perf_counter() - started + trainer.spent.get("validation_seconds", 0)


def measure(module: TrainModule, windows: Sequence[ValidationWindows]) -> tuple[dict[str, float], dict[str, float]]:
    """(loss in nats per token, bits per byte) by domain and pooled, under the weights as they are."""
    nats: dict[str, float] = {}
    tokens: dict[str, int] = {}
    text_bytes = {one.domain: one.batch.text_bytes for one in windows}
    for one in windows:
        beat()
        nats[one.domain], tokens[one.domain] = module.evaluate(one.batch)
    nats[POOLED], tokens[POOLED] = sum(nats.values()), sum(tokens.values())
    text_bytes[POOLED] = sum(text_bytes.values())
    losses = {name: nats[name] / tokens[name] for name in nats if tokens[name]}
    bits = {name: nats[name] / math.log(2) / text_bytes[name] for name in nats if text_bytes[name]}
    return losses, bits
