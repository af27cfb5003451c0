"""What a run measures of itself beyond a step's outcome, as one callback.

In: steps of the train module, which it observes. Out, on every rank: `trainer.details`, the figures of all parameters
and heads in sampled steps, and every `RANKS_EVERY` steps all ranks' own times, for detectors; in `trainer.record` and
`trainer.pending`, the few of them that fit into a line; `tensors/` in the run's folder. Comes before the detectors and
the metrics.

    callbacks = [..., CollectorsCallback(monitor), detection, metrics]
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

from headwater.monitor.config import MonitorConfig
from headwater.monitor.tensor_files import FOLDER, TensorFiles
from headwater.monitor.tensor_series import TENSOR_METRICS
from headwater.monitor.tensor_summary import LowGradients, summary
from headwater.parallel.agreement import Ranks
from headwater.parallel.memory import SmallerPiecesError
from headwater.train.batch import Batch
from headwater.train.callbacks import Callback
from headwater.train.collectors.sample import SampleObserver
from headwater.train.collectors.waiting import Blocked
from headwater.train.observing import StepObserver
from headwater.train.outcome import StepOutcome
from headwater.train.train_module import TrainModule
from headwater.train.trainer import Trainer
from headwater.train.what_fits import REMEMBERED, WhatFits

RANKS_EVERY = 10
"""Steps over which ranks' own times are added up before they are exchanged: one small message each."""

SLOWEST = 8
"""Ranks whose score is in the record."""


class StepClock(SampleObserver):
    """Observes every step: how long it was blocked, and a sample where `due`."""

    def __init__(self, module: TrainModule, ranks: Ranks, which: Collection[str]) -> None:
        super().__init__(module, ranks, which)
        self.due = False
        self.blocked_seconds: float | None = 0.0
        self._alone = ranks.size == 1
        self._blocked: Blocked | None = None

    def before_step(self, module: TrainModule, batch: Batch) -> None:
        self.sample, self.seconds, self.whole_seconds = {}, 0.0, 0.0
        if self.due:
            super().before_step(module, batch)
        if not self._alone:
            # On a GPU the host waits for the device, whatever that does.
            self._blocked = Blocked() if module.device.type == "cpu" else None

    def before_update(self, module: TrainModule) -> None:
        if self.due:
            super().before_update(module)

    def after_update(self, module: TrainModule) -> None:
        if self.due:
            super().after_update(module)

    def after_step(self, module: TrainModule) -> None:
        if not self._alone:
            self.blocked_seconds = None if self._blocked is None else self._blocked.seconds()


class CollectorsCallback(Callback):
    """See the module. Changes nothing about the training."""

    name = "collectors"

    def __init__(self, config: MonitorConfig, memory: WhatFits | None = None) -> None:
        """`memory`: whether heads have been found to fit, and where it is written down that they do not."""
        self._config = config.collect
        self._memory = memory
        self._high = config.detectors.grad_norm_high
        self._low = LowGradients(config.detectors.grad_norm_low)
        self._clock: StepClock | None = None
        self._files: TensorFiles | None = None
        self._begin_anew()

    def on_start(self, trainer: Trainer) -> None:
        self._clock = StepClock(trainer.module, trainer.ranks, self._which(trainer))
        self._clock.no_room = lambda reason: self._without_heads(trainer, reason)
        trainer.module.observer = self._clock
        # Also where nothing is sampled any more: what is there of steps that are trained again has to go.
        if trainer.ranks.first and (self._config.every or (trainer.run.path / FOLDER).is_dir()):
            with trainer.failures.kept(FOLDER):
                self._files = TensorFiles(trainer.run.path)
        self.on_rewind(trainer)

    def _which(self, trainer: Trainer) -> Collection[str]:
        """What is sampled, the same on every rank."""
        which = set(self._config.which if self._config.every else ())
        fits = self._memory is None or trainer.ranks.from_first(self._memory.known().heads)
        if "heads" in which and not fits:
            trainer.reporter.decide("no figures of attention heads", f"no memory for them before ({REMEMBERED})")
            which.remove("heads")
        return which

    def _without_heads(self, trainer: Trainer, reason: str) -> None:
        """SmallerPiecesError on one of several ranks: the others are in the middle of talking to it."""
        if self._memory is not None:
            self._memory.no_heads(trainer.step + 1, reason)
        if trainer.ranks.size > 1:
            raise SmallerPiecesError(
                f"no memory to look at attention heads: all ranks go on from the last checkpoint without ({reason})",
                where=trainer.module.mesh.place(),
                mend="run the same command again, if no launcher does it",
            )

    def on_rewind(self, trainer: Trainer) -> None:
        self._begin_anew()
        trainer.pending.pop("straggler_score", None)
        with trainer.failures.kept(FOLDER):
            if self._files is not None:
                self._files.cut_after(trainer.step)

    def before_step(self, trainer: Trainer, step: int) -> None:
        assert self._clock is not None
        every = self._config.every
        self._clock.due = every > 0 and (step == 1 or step % every == 0)
        self._clock.turn = step // every if every else 0  # of the step alone: a run that goes on measures the same

    def after_step(self, trainer: Trainer, outcome: StepOutcome) -> None:
        clock = self._clock
        assert clock is not None
        trainer.record["communication_seconds"] = clock.blocked_seconds
        if clock.due:
            trainer.record["monitor_seconds"] = clock.whole_seconds
        if clock.sample:
            started = time.perf_counter()
            self._keep(trainer, clock.sample)
            spent = time.perf_counter() - started
            trainer.record["monitor_seconds"] += spent
            trainer.record["step_seconds"] += spent
        if trainer.ranks.size > 1:
            self._compare_ranks(trainer, clock)

    def _keep(self, trainer: Trainer, sample: dict[str, dict[str, float]]) -> None:
        trainer.details |= {TENSOR_METRICS[metric]: values for metric, values in sample.items()}
        trainer.record |= summary(sample, self._low.add(sample), high=self._high, extremes=self._config.extremes)
        with trainer.failures.kept(FOLDER):
            if self._files is not None:
                self._files.append(trainer.step, sample)

    def _compare_ranks(self, trainer: Trainer, clock: StepClock) -> None:
        """Every so many steps, who took how long for its own part of them: all but waiting for others."""
        late = trainer.record["data_wait_seconds"]
        self._late_seconds += late
        self._work_seconds += trainer.record["step_seconds"] - late - (clock.blocked_seconds or 0.0)
        self._work_seconds -= trainer.record.get("monitor_seconds", 0.0)
        self._steps += 1
        if trainer.step % RANKS_EVERY:
            return
        own = torch.tensor([self._late_seconds, self._work_seconds], dtype=torch.float64) / self._steps
        everyone = torch.empty(2 * trainer.ranks.size, dtype=torch.float64)
        dist.all_gather_single(everyone, own, group=trainer.ranks.group)
        seconds = own_seconds(everyone.view(-1, 2).tolist(), told=clock.blocked_seconds is not None)
        self._begin_anew()
        middle = median(seconds)
        trainer.details["rank_seconds"] = seconds
        slowest = sorted(range(len(seconds)), key=lambda rank: -seconds[rank])[:SLOWEST]
        trainer.pending["straggler_score"] = {str(rank): middle / max(seconds[rank], 1e-9) for rank in slowest}

    def _begin_anew(self) -> None:
        self._late_seconds, self._work_seconds, self._steps = 0.0, 0.0, 0

    def close(self, trainer: Trainer) -> None:
        trainer.module.observer = StepObserver()

    def state_dict(self) -> dict[str, Any]:
        return {"low": self._low.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._low.load_state_dict(state["low"])


def own_seconds(ranks: Sequence[Sequence[float]], *, told: bool) -> list[float]:
    """What each rank took for its own part of a step. ranks: (seconds until its batch was there, seconds after that).
    `told`: the second leave out waiting for other ranks. Where they do not, every rank has the time of the one that
    waited least: late batches and slow hosts still show."""
    least = min(work for _, work in ranks)
    return [late + (work if told else least) for late, work in ranks]
