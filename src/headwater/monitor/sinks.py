"""Where the figures of a run go, and what happens when one of those places fails: the run goes on.

In: records (dictionaries by metric key). Out: the record `metrics.jsonl` always; the console, the Prometheus endpoint,
TensorBoard and Weights & Biases as the recipe says. For a place that cannot take a line (a full disk, a server that is
down) see `headwater.monitor.failures`.

    sinks = open_sinks(config, run_dir, run_id, reporter, failures, steps=1000, done=0)
    sinks.write({"step": 1, "loss": 8.3})
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from headwater.core.errors import DiskSpaceError, UserError
from headwater.core.progress import Reporter
from headwater.monitor.config import MonitorConfig
from headwater.monitor.console import ConsoleSink
from headwater.monitor.failures import Failures
from headwater.monitor.prometheus import PrometheusSink
from headwater.monitor.record import MetricsRecord
from headwater.monitor.sinks_tensorboard import FOLDER, TensorBoardSink
from headwater.monitor.sinks_wandb import WandbSink

RECORD = "metrics.jsonl"


class Sink(Protocol):
    """A place for records."""

    name: str

    def write(self, record: Mapping[str, Any]) -> None: ...

    def close(self, *, failed: bool = False) -> None: ...


class Sinks:
    """The record and other sinks as one."""

    def __init__(self, record: MetricsRecord, failures: Failures) -> None:
        self.failures = failures
        self.failures.expect(RECORD)
        self._record = record
        self._sinks: list[Sink] = []

    def add(self, make: Callable[[], Sink], name: str) -> Sink | None:
        """Open one more. What the person has to mend in the recipe (a `UserError`) is raised; anything else is warned
        of, and the run does without that sink."""
        try:
            sink = make()
        except Exception as error:
            if isinstance(error, UserError) and not isinstance(error, DiskSpaceError):
                raise
            self.failures.add(name, error)
            return None
        self.failures.expect(name)
        self._sinks.append(sink)
        return sink

    def write(self, record: Mapping[str, Any]) -> None:
        for name, write in ((RECORD, self._record.append), *((sink.name, sink.write) for sink in self._sinks)):
            try:
                write(record)
            except Exception as error:
                self.failures.add(name, error)

    def sync(self) -> None:
        """Make the record survive a power cut (before a checkpoint that stands on it is committed)."""
        self._record.sync()

    def close(self, *, failed: bool = False) -> None:
        """Close all, the one opened last first. `failed`: the run broke off."""
        while self._sinks:
            sink = self._sinks.pop()
            try:
                sink.close(failed=failed)
            except Exception as error:
                self.failures.add(sink.name, error)
        self._record.close()


def open_sinks(
    config: MonitorConfig, run_dir: Path, run_id: str, reporter: Reporter, failures: Failures, *, steps: int, done: int
) -> Sinks:
    """The record, and the sinks that the recipe asks for. `done` of `steps` are behind the run. UserError where an
    address cannot be served or a package is missing."""
    sinks = Sinks(MetricsRecord(run_dir / RECORD), failures)
    try:
        if config.console:
            sinks.add(lambda: ConsoleSink(reporter, steps, config.console_seconds, done).__enter__(), ConsoleSink.name)
        if config.prometheus.enabled:
            served = sinks.add(
                lambda: PrometheusSink(config.prometheus, run_dir, run_id, reporter.warn, failures.counts),
                PrometheusSink.name,
            )
            if isinstance(served, PrometheusSink):
                reporter.info(f"metrics at {served.url}")
        if config.tensorboard:
            sinks.add(lambda: TensorBoardSink(run_dir / FOLDER, done), TensorBoardSink.name)
        if config.wandb.enabled:
            sinks.add(lambda: WandbSink(config.wandb, run_dir, run_id), WandbSink.name)
    except BaseException:
        sinks.close(failed=True)
        raise
    return sinks
