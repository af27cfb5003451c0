"""Checkpoints in the course of a run: when one is due, and the mark that a run is finished.

In: the trainer's state. Out: checkpoints in the store, `final.json` after the last step. Comes last among the
callbacks, so that their state is that of the same step. Ranks agree on when to save and on how a save ended.
"""

from __future__ import annotations

import time
from typing import Any

from headwater.parallel.watchdog import beat
from headwater.train.callbacks import Callback
from headwater.train.checkpoint import CheckpointStore
from headwater.train.config import CheckpointConfig
from headwater.train.metrics import MetricsCallback
from headwater.train.run_folder import checkpoint_name
from headwater.train.train_module import StepOutcome
from headwater.train.trainer import Trainer

DEFAULT_SECONDS = 120.0
"""Without `checkpoint.every`: at most this much work is lost by a kill."""


class CheckpointCallback(Callback):
    """Saves when due, at a signal and at the end."""

    name = "checkpoint"

    def __init__(
        self, config: CheckpointConfig, store: CheckpointStore, metrics: MetricsCallback, dataset: str
    ) -> None:
        self._config = config
        self._store = store
        self._metrics = metrics
        self._dataset = dataset
        self._saved_step = -1
        self._saved_at = 0.0
        self._kept_step, self._kept_at = 0, 0.0
        self._kept_bytes: int | None = None
        self._running = False
        self._validated: dict[str, Any] = {}

    def on_start(self, trainer: Trainer) -> None:
        self._saved_step = self._kept_step = trainer.step
        self._saved_at = self._kept_at = time.monotonic()

    def on_rewind(self, trainer: Trainer) -> None:
        self._report(trainer)
        self.on_start(trainer)

    def figures(self, step: int) -> dict[str, float | None]:
        """How old the last durable checkpoint is, how often they should come, and how large one is."""
        if (every := self._config.every) is not None:
            age: dict[str, float] = {"checkpoint_age_steps": step - self._kept_step, "checkpoint_every_steps": every}
        else:
            seconds = time.monotonic() - self._kept_at
            age = {"checkpoint_age_seconds": seconds, "checkpoint_every_seconds": DEFAULT_SECONDS}
        return {**age, "checkpoint_bytes": self._kept_bytes}

    def after_step(self, trainer: Trainer, outcome: StepOutcome) -> None:
        if "val_loss" in trainer.record:
            self._validated = {k: v for k, v in trainer.record.items() if k == "step" or k.startswith("val_")}
        late, done = self._agree(trainer)
        if done:
            self._report(trainer)
        every, permanent, ephemeral = self._config.every, self._config.permanent_every, self._config.ephemeral_every
        wanted = trainer.step % every == 0 if every is not None else late
        asynchronous = self._config.async_save and trainer.step < trainer.steps
        if wanted or (permanent and trainer.step % permanent == 0):
            self._save(trainer, asynchronous=asynchronous)
        elif ephemeral and trainer.step % ephemeral == 0 and trainer.step < trainer.steps:
            self._save(trainer, asynchronous=asynchronous, ephemeral=True)

    def _agree(self, trainer: Trainer) -> tuple[bool, bool]:
        """(a save is due by rank 0's clock, a running save is done on every rank), the same on every rank."""
        late = time.monotonic() - self._saved_at >= DEFAULT_SECONDS
        if trainer.ranks.size == 1:
            return late, True
        if self._config.every is not None and not self._running:
            return False, False
        late_somewhere, busy = trainer.ranks.most([int(late and trainer.ranks.first), int(not self._store.idle)])
        return bool(late_somewhere), not busy

    def on_stop(self, trainer: Trainer) -> None:
        self._finish(trainer)

    def on_end(self, trainer: Trainer) -> None:
        self._finish(trainer)
        final = {
            "checkpoint": checkpoint_name(trainer.step),
            "step": trainer.step,
            "tokens": trainer.tokens,
            "metrics": self._validated,
        }
        trainer.run.write_json("final.json", final)

    def _finish(self, trainer: Trainer) -> None:
        """The state after the last step, in the run's folder, on disk."""
        beat(phase="last checkpoint")
        if self._saved_step != trainer.step:
            self._save(trainer, asynchronous=False)
        self._store.wait()
        self._report(trainer)

    def close(self, trainer: Trainer) -> None:
        self._store.close()

    def _save(self, trainer: Trainer, *, asynchronous: bool, ephemeral: bool = False) -> None:
        started = time.perf_counter()
        tensors, state = trainer.state()
        facts = {"ledger": trainer.ledger.head, "dataset": self._dataset}
        self._store.save(
            trainer.step,
            tensors,
            state,
            facts=facts,
            asynchronous=asynchronous,
            ephemeral=ephemeral,
            before_commit=self._metrics.sync,
        )
        self._running = asynchronous
        if not ephemeral:
            self._saved_step, self._saved_at = trainer.step, time.monotonic()
        trainer.spent["checkpoint_seconds"] = time.perf_counter() - started + trainer.spent.get("checkpoint_seconds", 0)

    def _report(self, trainer: Trainer) -> None:
        self._running = False
        for report in self._store.poll():
            facts = {"ephemeral": True} if report.ephemeral else {}
            self._kept_bytes = report.bytes
            if not report.ephemeral:  # those say nothing of the durable ones, which are asked for
                self._kept_step, self._kept_at = report.step, time.monotonic()
            trainer.run.event(
                "checkpoint", step=report.step, bytes=report.bytes, seconds=round(report.seconds, 4), **facts
            )

    def state_dict(self) -> dict[str, Any]:
        return {"validated": self._validated}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._validated = dict(state["validated"])
