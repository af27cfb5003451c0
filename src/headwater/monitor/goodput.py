"""Goodput: the share of all the time since a run first started that went into steps which count.

In: the run's own record, `events.jsonl` (when it first started) and `metrics.jsonl` (productive seconds up to its last
line, which is cut back to the checkpoint when steps are trained again), and then the steps of this process. Out: one
ratio. Start-up, waiting for data, checkpoints, validation, lost work and the time in which nothing ran all lower it.

    clock = GoodputClock(run_dir); clock.add(0.4); clock.productive_seconds, clock.ratio()
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from headwater.core.jsonl import read_jsonl
from headwater.monitor.record import read_metrics


class GoodputClock:
    """Goes on where the record ends. A clock that was set back does not lead to a ratio above 1."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = Path(run_dir)
        self._began = time.time()
        self.productive_seconds = 0.0
        self.read()

    def read(self) -> None:
        """Take up the record as it is now: at the start, and after it has been cut back."""
        began = [
            float(event["time"])
            for event in _events(self._run_dir / "events.jsonl")
            if event.get("event") == "started" and isinstance(event.get("time"), int | float)
        ]
        self._began = min([time.time(), *began])
        self.productive_seconds = 0.0
        for row in read_metrics(self._run_dir / "metrics.jsonl"):
            seconds = row.get("productive_seconds")
            if isinstance(seconds, int | float):
                self.productive_seconds = float(seconds)

    def add(self, seconds: float) -> None:
        """A step that counts took so long."""
        self.productive_seconds += seconds

    def ratio(self) -> float:
        """0 to 1, up to now."""
        return self.productive_seconds / max(time.time() - self._began, self.productive_seconds, 1e-9)


def _events(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    return [event for event in read_jsonl(path, on_broken=lambda *_: None) if isinstance(event, dict)]
