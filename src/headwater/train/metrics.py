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
from headwater.monitor.console import ConsoleSink
from headwater.monitor.prometheus import PrometheusSink
from headwater.monitor.record import MetricsRecord
from headwater.train import devices
from headwater.train.callbacks import Callback, due
from headwater.train.train_module import StepOutcome
from headwater.train.trainer import Trainer

LARGEST_EXPONENT = 700.0
"""Above this loss, e to the loss leaves the range of a float and is recorded as null."""


class MetricsCallback(Callback):
    """Writes the record and feeds the sinks. Comes after the callbacks that add figures, before the checkpoint."""

    name = "metrics"

    def __init__(self, config: MonitorConfig, steps: int) -> None:
        self._config = config
        self._average = MovingAverage(min(config.smoothing, max(1, steps // 10)))
        self._domain_tokens: dict[str, int] = {}
        self._skipped = 0
        self._record: MetricsRecord | None = None
        self._console: ConsoleSink | None = None
        self._prometheus: PrometheusSink | None = None
        self._peak: float | None = None

    def on_start(self, trainer: Trainer) -> None:
        config = self._config
        if not trainer.ranks.first:
            return
        self._record = MetricsRecord(trainer.run.metrics_path)
        self._peak = devices.peak_flops(trainer.module.device, trainer.module.precision)
        if config.console:
            self._console = ConsoleSink(trainer.reporter, trainer.steps, config.console_seconds, trainer.step)
            self._console.__enter__()
        if config.prometheus.enabled:
            self._prometheus = PrometheusSink(
                config.prometheus, trainer.run.path, trainer.run.run_id, trainer.reporter.warn
            )
            trainer.reporter.info(f"metrics at {self._prometheus.url}")

    def after_step(self, trainer: Trainer, outcome: StepOutcome) -> None:
        if math.isfinite(outcome.loss):  # a skipped step of fp16 may have none
            self._average.add(outcome.loss)
        self._skipped += outcome.skipped
        for domain, tokens in outcome.domain_tokens.items():
            self._domain_tokens[domain] = self._domain_tokens.get(domain, 0) + tokens
        wanted = trainer.step == 1 or due(trainer.step, self._config.every, trainer.steps)
        if not wanted and not {"val_loss", "eval"} & trainer.record.keys():
            return
        module = trainer.module
        memory = int(module.mesh.maximum(devices.used_memory_bytes(module.device)))
        if self._record is None:  # not the rank that writes
            return
        line = self._line(trainer, outcome, memory)
        self._record.append(line)
        for sink in (self._console, self._prometheus):
            if sink is not None:
                sink.write(line)

    def _line(self, trainer: Trainer, outcome: StepOutcome, memory: int) -> dict[str, Any]:
        """`memory`: that of the rank that uses most."""
        seconds = trainer.record["step_seconds"]
        throughput = outcome.tokens / seconds
        line: dict[str, Any] = {
            **trainer.record,
            "time": round(time.time(), 3),
            "loss": outcome.loss,
            "loss_sma": self._average.value,
            "perplexity": math.exp(outcome.loss) if outcome.loss < LARGEST_EXPONENT else None,
            "bits_per_byte": outcome.bits_per_byte,
            "grad_norm": outcome.grad_norm,
            "clip_factor": outcome.clip_factor,
            "lr": outcome.lr,
            "throughput": throughput,
            "mfu": None,
            "mem_allocated": memory,
            "gpu_util": devices.gpu_utilisation(trainer.module.device),
            "forward_backward_seconds": outcome.forward_backward_seconds,
            "optimizer_seconds": outcome.optimizer_seconds,
            "domain_tokens": dict(self._domain_tokens),
            **{name: trainer.spent.pop(name, 0.0) for name in ("checkpoint_seconds", "validation_seconds")},
        }
        if outcome.z_loss is not None:
            line["z_loss"] = outcome.z_loss
        if outcome.loss_scale is not None:
            line |= {"loss_scale": outcome.loss_scale, "skipped_steps": self._skipped}
        if self._peak is not None:
            peak = self._peak * trainer.module.mesh.world
            line["mfu"] = trainer.module.flops_per_token(outcome.seq_len) * throughput / peak
        return line

    def sync(self) -> None:
        """Make the record survive a power cut (before a checkpoint that stands on it is committed)."""
        if self._record is not None:
            self._record.sync()

    def close(self, trainer: Trainer) -> None:
        if self._console is not None:
            self._console.__exit__(None, None, None)
        if self._prometheus is not None:
            self._prometheus.close()
        if self._record is not None:
            self._record.close()
        self._console = self._prometheus = self._record = None

    def state_dict(self) -> dict[str, Any]:
        return {"average": self._average.state_dict(), "domain_tokens": self._domain_tokens, "skipped": self._skipped}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._average.load_state_dict(state["average"])
        self._domain_tokens = dict(state["domain_tokens"])
        self._skipped = int(state.get("skipped", 0))
