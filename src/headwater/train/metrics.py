"""Figures of every step into the record, the console and the endpoint.

In: step outcomes (of all ranks together) and what other callbacks put into `trainer.record`. Out, on rank 0: lines of
`metrics.jsonl` (the record), the console's line, Prometheus' gauges. Moving average and counters are part of the
checkpoint, so a resumed record continues exactly.
"""

from __future__ import annotations

import math
import time
from typing import Any

from headwater.monitor.averages import MovingAverage
from headwater.monitor.config import MonitorConfig
from headwater.monitor.goodput import GoodputClock
from headwater.monitor.sinks import Sinks, open_sinks
from headwater.train import devices
from headwater.train.callbacks import Callback, due
from headwater.train.collectors.host import HostFigures
from headwater.train.train_module import StepOutcome
from headwater.train.trainer import Trainer

LARGEST_EXPONENT = 700.0
"""Above this loss, e to the loss leaves the range of a float and is recorded as null."""


RARE = frozenset({"val_loss", "eval", "monitor_seconds"})
"""Figures that a step has a line for, whenever it is: those of validation, benchmarks and sampled steps."""


class MetricsCallback(Callback):
    """Writes the record and feeds the sinks. Comes after the callbacks that add figures, before the checkpoint."""

    name = "metrics"

    def __init__(self, config: MonitorConfig, steps: int) -> None:
        self._config = config
        window = min(config.smoothing, max(1, steps // 10))
        self._average, self._clipped = MovingAverage(window), MovingAverage(window)
        self._domain_tokens: dict[str, int] = {}
        self._skipped = 0
        self._sinks: Sinks | None = None
        self._broke_off = False
        self._peak: float | None = None
        self._host: HostFigures | None = None
        self._goodput: GoodputClock | None = None

    def on_start(self, trainer: Trainer) -> None:
        if not trainer.ranks.first:
            return
        run = trainer.run
        self._sinks = open_sinks(
            self._config,
            run.path,
            run.run_id,
            trainer.reporter,
            trainer.failures,
            steps=trainer.steps,
            done=trainer.step,
        )
        self._peak = devices.peak_flops(trainer.module.device, trainer.module.precision)
        self._host = HostFigures(trainer.module.device)
        self._goodput = GoodputClock(run.path)

    def on_rewind(self, trainer: Trainer) -> None:
        if self._goodput is not None:
            self._goodput.read()

    def after_step(self, trainer: Trainer, outcome: StepOutcome) -> None:
        self._broke_off = False  # an error that was dealt with
        if math.isfinite(outcome.loss):  # a skipped step of fp16 may have none
            self._average.add(outcome.loss)
        self._skipped += outcome.skipped
        if not outcome.skipped:
            self._clipped.add(float(outcome.clip_factor < 1))
            if self._goodput is not None:
                record = trainer.record
                self._goodput.add(
                    record["step_seconds"] - record["data_wait_seconds"] - record.get("monitor_seconds", 0.0)
                )
        for domain, tokens in outcome.domain_tokens.items():
            self._domain_tokens[domain] = self._domain_tokens.get(domain, 0) + tokens
        wanted = trainer.step == 1 or due(trainer.step, self._config.every, trainer.steps)
        if not wanted and not RARE & trainer.record.keys():
            return
        memory = devices.memory_figures(trainer.module.device)
        memory = dict(zip(memory, trainer.ranks.most(list(memory.values())), strict=True))
        if self._sinks is not None:  # the rank that writes
            self._sinks.write(self._line(trainer, outcome, memory))
        trainer.pending.clear()

    def _line(self, trainer: Trainer, outcome: StepOutcome, memory: dict[str, int]) -> dict[str, Any]:
        """`memory`: of each figure the largest over ranks."""
        assert self._host is not None
        assert self._goodput is not None
        seconds = trainer.record["step_seconds"]
        throughput = outcome.tokens / seconds
        waited = trainer.record.get("communication_seconds") or 0.0
        # Ranks wait for one another in the passes, above all; what is more than those took was after them.
        passes = max(0.0, outcome.forward_backward_seconds - waited)
        after = max(0.0, outcome.optimizer_seconds - max(0.0, waited - outcome.forward_backward_seconds))
        line: dict[str, Any] = {
            **trainer.record,
            **trainer.pending,
            "time": round(time.time(), 3),
            "loss": outcome.loss,
            "loss_sma": self._average.value,
            "perplexity": math.exp(outcome.loss) if outcome.loss < LARGEST_EXPONENT else None,
            "bits_per_byte": outcome.bits_per_byte,
            "grad_norm": outcome.grad_norm,
            "clip_factor": outcome.clip_factor,
            "clip_rate": self._clipped.value,
            "skipped_steps": self._skipped,
            "lr": outcome.lr,
            "throughput": throughput,
            "mfu": None,
            "mem_reserved": None,
            "alloc_retries": None,
            **memory,
            **self._host.read(),
            "productive_seconds": self._goodput.productive_seconds,
            "goodput": self._goodput.ratio(),
            "forward_backward_seconds": passes,
            "optimizer_seconds": after,
            "domain_loss": outcome.domain_loss,
            "domain_tokens": dict(self._domain_tokens),
            **{name: trainer.spent.pop(name, 0.0) for name in ("checkpoint_seconds", "validation_seconds")},
        }
        if outcome.z_loss is not None:
            line["z_loss"] = outcome.z_loss
        if outcome.loss_scale is not None:
            line["loss_scale"] = outcome.loss_scale
        if self._peak is not None:
            peak = self._peak * trainer.module.mesh.world
            line["mfu"] = trainer.module.flops_per_token(outcome.seq_len) * throughput / peak
        return line

    def sync(self) -> None:
        """Make the record survive a power cut (before a checkpoint that stands on it is committed)."""
        if self._sinks is not None:
            self._sinks.sync()

    def on_error(self, trainer: Trainer, error: Exception) -> None:
        self._broke_off = True

    def close(self, trainer: Trainer) -> None:
        if self._sinks is not None:
            self._sinks.close(failed=self._broke_off)
        self._sinks = None

    def state_dict(self) -> dict[str, Any]:
        return {
            "average": self._average.state_dict(),
            "clipped": self._clipped.state_dict(),
            "domain_tokens": self._domain_tokens,
            "skipped": self._skipped,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._average.load_state_dict(state["average"])
        self._clipped.load_state_dict(state.get("clipped", ()))
        self._domain_tokens = dict(state["domain_tokens"])
        self._skipped = int(state.get("skipped", 0))
