"""Phases in the course of a run: said when they begin, and the rotary base set where a phase has its own."""

from __future__ import annotations

from headwater.train.callbacks import Callback
from headwater.train.trainer import Trainer


class PhaseCallback(Callback):
    """Acts before the first step of each stretch of steps that are read alike; comes first among the callbacks."""

    name = "phases"

    def __init__(self) -> None:
        self._usual: float | None = None

    def on_start(self, trainer: Trainer) -> None:
        if trainer.step:
            self._set_rope(trainer, trainer.step)

    def on_rewind(self, trainer: Trainer) -> None:
        if self._usual is not None:  # a later phase may have changed it
            trainer.module.set_rope_theta(self._usual)
        self.on_start(trainer)

    def before_step(self, trainer: Trainer, step: int) -> None:
        segment = trainer.plan.segment(step)
        if step != segment.first_step:
            return
        self._set_rope(trainer, step)
        if len(trainer.plan.segments) > 1:
            rope = f", rope theta {segment.rope_theta:g}" if segment.rope_theta else ""
            mixture = ", ".join(f"{name} {weight:g}" for name, weight in (segment.mixture or {}).items())
            trainer.reporter.info(
                f"step {step:,}: phase {segment.phase}, {segment.global_batch} x {segment.seq_len:,} tokens"
                f"{', mixture ' + mixture if mixture else ''}{rope}"
            )

    def _set_rope(self, trainer: Trainer, step: int) -> None:
        theta = trainer.plan.segment(step).rope_theta
        if theta is not None:
            self._usual = self._usual or trainer.module.model_config.rope_theta
            trainer.module.set_rope_theta(theta)
