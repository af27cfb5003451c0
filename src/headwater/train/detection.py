"""What is wrong with a run, said while it trains: every step's figures go through the detectors.

In: readings and step outcomes, which are of all ranks together; times and memory, of which the largest over ranks
counts; samples of tensors, heads and ranks. Out: warnings, and an `alert` for each in `events.jsonl` (detector,
severity, step, onset, message, evidence). Every rank sees the same figures and comes to the same result; rank 0 writes.
What the detectors know of loss and gradients is part of the checkpoint, so a resume blinds none of them; what is usual
in time and memory is learned anew, as it is another process, perhaps another machine, and a checkpoint holds nothing
that differs from day to day.

    callbacks = [..., DetectionCallback(monitor.detectors, guesses), metrics]
"""

from __future__ import annotations

import errno
import shutil
from contextlib import suppress
from typing import Any

import torch

from headwater.core.errors import DiskSpaceError
from headwater.monitor.config import DetectorsConfig
from headwater.monitor.detectors import Alert, DetectorSet, machine_detectors, training_detectors
from headwater.parallel.memory import is_out_of_memory
from headwater.train import devices
from headwater.train.callbacks import Callback
from headwater.train.checkpointing import CheckpointCallback
from headwater.train.guesses import GuessLosses
from headwater.train.hang_watch import Hang, HangWatch
from headwater.train.memory_fit import NoRoomError
from headwater.train.outcome import Reading, StepOutcome
from headwater.train.trainer import Trainer
from headwater.train.weight_check import WeightCheck

MICRO = 1_000_000
OVERFLOWS = 5
"""Skipped steps in a row that are worth a word; from 65,536 a healthy model's scale settles within three or four."""
DISK_EVERY = 20
"""Steps between looks at the room on the disk, which may be far away."""
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class DetectionCallback(Callback):
    """Feeds the detectors: with loss and gradient before a step's update is made, so that whoever acts on `found` can
    hold it back, and with time, memory and samples after it. Changes nothing about the training."""

    name = "detection"

    def __init__(self, config: DetectorsConfig, guesses: GuessLosses | None = None) -> None:
        self._config = config
        self._enabled = config.enabled
        self._training = DetectorSet(training_detectors(config))
        self._machine = DetectorSet(machine_detectors(config))
        self._guesses = guesses
        self._memory_limit: int | None = None
        self._weights: WeightCheck | None = None
        self._hang: HangWatch | None = None
        self._checkpoints: CheckpointCallback | None = None
        self._anew: list[str] = []
        self._overflows = 0

    def on_start(self, trainer: Trainer) -> None:
        if not self._enabled:
            return
        device = trainer.module.device
        if device.type == "cuda":
            self._memory_limit = torch.cuda.get_device_properties(device).total_memory
        if self._config.check_weights:
            self._weights = WeightCheck(trainer.module)
        self._checkpoints = next((c for c in trainer.callbacks if isinstance(c, CheckpointCallback)), None)
        stacks = trainer.run.path / "logs" / f"stacks-{trainer.ranks.rank:05d}.txt"
        self._hang = HangWatch(
            stacks, seconds=self._config.hang_seconds, say=lambda hang: self._say_hang(trainer, hang)
        ).__enter__()
        if self._anew and trainer.ranks.first:
            trainer.reporter.warn(
                f"detectors that begin anew, as the checkpoint is another version's: {', '.join(self._anew)}"
            )

    def on_rewind(self, trainer: Trainer) -> None:
        if self._weights is not None:
            self._weights.forget()

    @property
    def found(self) -> list[Alert]:
        """What is wrong with the step's loss, gradient or weights, said or not, as it is said once."""
        return self._training.found

    def before_update(self, trainer: Trainer, reading: Reading) -> bool:
        if not self._enabled:
            return True
        segment = trainer.plan.segment(reading.step)
        figures: dict[str, Any] = {
            "loss": reading.loss,
            "grad_norm": reading.grad_norm,
            "non_finite": reading.tensor or None,
            "lr_share": _lr_share(trainer, reading.step),
            "phase": repr((segment.phase, segment.seq_len, segment.mixture, segment.rope_theta)),
        }
        if self._guesses is not None:
            figures |= {"uniform_loss": self._guesses.uniform, "unigram_loss": self._guesses.unigram}
        if self._weights is not None:
            figures |= self._look_at_weights(trainer, self._weights)
        self._look(trainer, self._training, reading.step, figures)
        return True

    def _look_at_weights(self, trainer: Trainer, weights: WeightCheck) -> dict[str, Any]:
        """The same on all ranks: a tensor that changed on any of them has changed, an update that moved any has."""
        weights.compare()
        changed, moved, known = trainer.ranks.most(
            [bool(weights.changed), bool(weights.moved), weights.moved is not None]
        )
        figures: dict[str, Any] = {"weights_moved": bool(moved) if known else None}
        if changed:
            ranks = trainer.ranks.size > 1
            figures["changed_weights"] = [
                f"{name} on rank {rank}" if ranks else name
                for rank, names in enumerate(trainer.ranks.gather(weights.changed))
                for name in names
            ]
        return figures

    def after_step(self, trainer: Trainer, outcome: StepOutcome) -> None:
        if not self._enabled:
            return
        record = trainer.record
        own = (record["step_seconds"] * MICRO, record["data_wait_seconds"] * MICRO)
        memory = devices.used_memory_bytes(trainer.module.device)
        seconds, waited, memory = trainer.ranks.most([*map(int, own), memory])
        figures: dict[str, Any] = {
            **trainer.details,
            "step_seconds": seconds / MICRO,
            "data_wait_seconds": waited / MICRO,
            "step_tokens": outcome.tokens,
            "mem_allocated": memory,
            "mem_limit": self._memory_limit,
        }
        if self._checkpoints is not None:
            figures |= self._checkpoints.figures(trainer.step)
        if trainer.step % DISK_EVERY == 0 and trainer.ranks.first:
            with suppress(OSError):
                figures["disk_free_bytes"] = shutil.disk_usage(trainer.run.path).free
        self._overflows = self._overflows + 1 if outcome.overflow else 0  # a part of fp16, which has dealt with it
        if self._overflows == OVERFLOWS:
            message = f"{OVERFLOWS} steps in a row overflowed fp16, with a loss scale of {outcome.loss_scale:g} now"
            evidence = {"loss_scale": outcome.loss_scale}
            onset = trainer.step - OVERFLOWS + 1
            self._say(trainer, Alert("overflow", "warning", trainer.step, message, evidence, onset))
        self._look(trainer, self._machine, trainer.step, figures)
        if trainer.details:
            sampled = {**trainer.details, "lr_share": _lr_share(trainer, trainer.step)}
            self._look(trainer, self._training, trainer.step, sampled)
        if self._hang is not None:
            self._hang.step(seconds / MICRO)

    def on_error(self, trainer: Trainer, error: Exception) -> None:
        if not self._enabled:
            return
        step = trainer.step + 1
        if is_out_of_memory(error) or isinstance(error, NoRoomError):
            message = "the device has no memory left for the step"
            self._say(trainer, Alert("out_of_memory", "critical", step, message, {"error": str(error)}))
        elif isinstance(error, DiskSpaceError) or (isinstance(error, OSError) and error.errno in FULL):
            message = f"the disk is full: {error}"
            self._say(trainer, Alert("disk_full", "critical", step, message, {"error": str(error)}))

    def _say_hang(self, trainer: Trainer, hang: Hang) -> None:
        """From the watching thread."""
        step = trainer.step + 1
        where = f" at {hang.at}" if hang.at else ""
        message = f"no progress for {hang.seconds:.0f} s in {hang.phase}{where}; stacks are in {hang.stacks}"
        evidence = {"seconds": hang.seconds, "phase": hang.phase, "at": hang.at, "stacks": str(hang.stacks)}
        self._say(trainer, Alert("hang", "critical", step, message, evidence))

    def _look(self, trainer: Trainer, detectors: DetectorSet, step: int, figures: dict[str, Any]) -> None:
        for alert in detectors.observe(step, figures):
            self._say(trainer, alert)

    def _say(self, trainer: Trainer, alert: Alert) -> None:
        if not trainer.ranks.first:
            return
        trainer.reporter.warn(f"step {alert.step:,}: {alert.message} ({alert.detector})")
        with suppress(OSError, DiskSpaceError):  # the disk may be what is wrong
            trainer.run.event(
                "alert",
                detector=alert.detector,
                severity=alert.severity,
                step=alert.step,
                onset=alert.onset,
                message=alert.message,
                evidence=alert.evidence,
            )

    def close(self, trainer: Trainer) -> None:
        if self._hang is not None:
            self._hang.__exit__()
            self._hang = None

    def state_dict(self) -> dict[str, Any]:
        return self._training.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._anew = self._training.load_state_dict(state)


def _lr_share(trainer: Trainer, step: int) -> float:
    """The learning rate that is meant for a step, as a share of its peak."""
    return trainer.plan.lr_factor(step) * trainer.ledger.lr_factor(step)
