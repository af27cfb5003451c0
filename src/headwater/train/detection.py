"""What is wrong with a run, said while it trains: every step's figures go through the detectors.

In: step outcomes, which are of all ranks together, and times and memory, of which the largest over ranks counts. Out:
warnings, and an `alert` for each in `events.jsonl` (detector, severity, step, message, evidence). Every rank sees the
same figures and comes to the same result; rank 0 writes. What the detectors know of loss and gradients is part of the
checkpoint, so a resume blinds none of them; what is usual in time and memory is learned anew, as it is another process,
perhaps another machine, and a checkpoint holds nothing that differs from day to day.

    callbacks = [..., DetectionCallback(monitor.detectors, vocab_size=50_304), metrics]
"""

from __future__ import annotations

import math
from typing import Any

import torch

from headwater.monitor.config import DetectorsConfig
from headwater.monitor.detectors import Alert, DetectorSet, machine_detectors, training_detectors
from headwater.train import devices
from headwater.train.callbacks import Callback
from headwater.train.outcome import Reading, StepOutcome
from headwater.train.trainer import Trainer

MICRO = 1_000_000
OVERFLOWS = 5
"""Skipped steps in a row that are worth a word; from 65,536 a healthy model's scale settles within three or four."""


class DetectionCallback(Callback):
    """Feeds the detectors: with loss and gradient before a step's update is made, so that whoever acts on `found` can
    hold it back, and with time and memory after it. Changes nothing about the training."""

    name = "detection"

    def __init__(self, config: DetectorsConfig, vocab_size: int | None) -> None:
        self._enabled = config.enabled
        self._training = DetectorSet(training_detectors(config))
        self._machine = DetectorSet(machine_detectors(config))
        self._uniform_loss = math.log(vocab_size) if vocab_size else None
        self._memory_limit: int | None = None
        self._anew: list[str] = []
        self._overflows = 0

    def on_start(self, trainer: Trainer) -> None:
        device = trainer.module.device
        if device.type == "cuda":
            self._memory_limit = torch.cuda.get_device_properties(device).total_memory
        if self._anew and self._enabled and trainer.ranks.first:
            trainer.reporter.warn(
                f"detectors that begin anew, as the checkpoint is another version's: {', '.join(self._anew)}"
            )

    @property
    def found(self) -> list[Alert]:
        """What is wrong with the step's loss or gradient, said or not, as it is said once."""
        return self._training.found

    def before_update(self, trainer: Trainer, reading: Reading) -> bool:
        if self._enabled:
            figures = {
                "loss": reading.loss,
                "grad_norm": reading.grad_norm,
                "non_finite": reading.tensor or None,
                "uniform_loss": self._uniform_loss,
            }
            for alert in self._training.observe(reading.step, figures):
                self._say(trainer, alert)
        return True

    def after_step(self, trainer: Trainer, outcome: StepOutcome) -> None:
        if not self._enabled:
            return
        record = trainer.record
        own = (record["step_seconds"] * MICRO, record["data_wait_seconds"] * MICRO)
        memory = devices.used_memory_bytes(trainer.module.device)
        seconds, waited, memory = trainer.ranks.most([*map(int, own), memory])
        figures: dict[str, Any] = {
            "step_seconds": seconds / MICRO,
            "data_wait_seconds": waited / MICRO,
            "step_tokens": outcome.tokens,
            "mem_allocated": memory,
            "mem_limit": self._memory_limit,
        }
        self._overflows = self._overflows + 1 if outcome.overflow else 0  # a part of fp16, which has dealt with it
        if self._overflows == OVERFLOWS:
            message = f"{OVERFLOWS} steps in a row overflowed fp16, with a loss scale of {outcome.loss_scale:g} now"
            self._say(trainer, Alert("overflow", "warning", trainer.step, message, {"loss_scale": outcome.loss_scale}))
        for alert in self._machine.observe(trainer.step, figures):
            self._say(trainer, alert)

    def on_error(self, trainer: Trainer, error: Exception) -> None:
        step = trainer.step + 1
        if isinstance(error, torch.OutOfMemoryError) and self._enabled:
            message = "the device has no memory left for the step"
            self._say(trainer, Alert("out_of_memory", "critical", step, message, {"error": str(error)}))

    def _say(self, trainer: Trainer, alert: Alert) -> None:
        if not trainer.ranks.first:
            return
        trainer.run.event(
            "alert",
            detector=alert.detector,
            severity=alert.severity,
            step=alert.step,
            onset=alert.onset,
            message=alert.message,
            evidence=alert.evidence,
        )
        trainer.reporter.warn(f"step {alert.step:,}: {alert.message} ({alert.detector})")

    def state_dict(self) -> dict[str, Any]:
        return self._training.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._anew = self._training.load_state_dict(state)
