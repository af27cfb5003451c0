"""The run on the console: one live line on a terminal, a plain line now and then elsewhere. All on stderr.

with ConsoleSink(reporter, total_steps=1000, every_seconds=10) as sink: sink.write({"step": 1, "loss": 8.3})
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from headwater.core.progress import Reporter


class ConsoleSink:
    """Shows records; silent when the reporter is quiet."""

    name = "console"

    def __init__(self, reporter: Reporter, total_steps: int, every_seconds: float = 10.0, done_steps: int = 0) -> None:
        self._reporter = reporter
        self._total = total_steps
        self._every = every_seconds
        self._next = 0.0
        self._started = time.monotonic()
        self._done_before = done_steps
        self._progress: Progress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> ConsoleSink:
        if not self._reporter.quiet and self._reporter.console.is_terminal:
            columns = (
                TextColumn("  train"),
                BarColumn(bar_width=24),
                TextColumn("{task.fields[line]}"),
                TimeElapsedColumn(),
            )
            self._progress = Progress(*columns, console=self._reporter.console, transient=True, refresh_per_second=4)
            self._progress.start()
            self._task = self._progress.add_task("train", total=self._total, completed=self._done_before, line="")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self, *, failed: bool = False) -> None:
        """Take the live line away, whatever became of the run."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    def write(self, record: Mapping[str, Any]) -> None:
        if self._reporter.quiet:
            return
        step = int(record["step"])
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, completed=step, line=self._line(record))
            if "val_loss" in record:
                self._reporter.info(self._line(record))
            return
        now = time.monotonic()
        if now >= self._next or step == self._total or "val_loss" in record:
            self._next = now + self._every
            self._reporter.info(self._line(record))

    def _line(self, record: Mapping[str, Any]) -> str:
        step = int(record["step"])
        smooth = record["loss_sma"]
        loss = record["loss"] if smooth is None else smooth  # no average yet: the first loss is NaN
        parts = [f"step {step:,}/{self._total:,}", f"loss {loss:.3f}"]
        if record.get("val_loss"):
            parts.append(f"val {record['val_loss']['all']:.3f}")
            if record.get("val_bits_per_byte", {}).get("all") is not None:
                parts.append(f"{record['val_bits_per_byte']['all']:.3f} bits/byte")
        parts += [f"lr {record['lr']:.2e}", f"norm {record['grad_norm']:.2f}", f"{record['throughput']:,.0f} tok/s"]
        if step < self._total:
            parts.append(f"ETA {duration(self.eta_seconds(step))}")
        return "  ".join(parts)

    def eta_seconds(self, step: int) -> float:
        """From the pace since this process started, validation and checkpoints included."""
        done = step - self._done_before
        return (time.monotonic() - self._started) / max(1, done) * (self._total - step)


def duration(seconds: float) -> str:
    """`3h 05m`, `4m 10s` or `12s`."""
    whole = round(seconds)
    if whole >= 3600:
        return f"{whole // 3600}h {whole % 3600 // 60:02d}m"
    if whole >= 60:
        return f"{whole // 60}m {whole % 60:02d}s"
    return f"{whole}s"
