"""Goodput: the share of all the time since a run first started that went into steps which count.

In: the run's own record, `events.jsonl` (when it first started) and `metrics.jsonl` (productive seconds up to its last
line, which is cut back to the checkpoint when steps are trained again), and then the steps of this process. Out: one
ratio. Start-up, waiting for data, checkpoints, validation, lost work and the time in which nothing ran all lower it.

    clock = GoodputClock(run_dir); clock.add(0.4); clock.productive_seconds, clock.ratio()
"""

from __future__ import annotations

import math
import os
import time
from pathlib import Path

from headwater.core.jsonl import parse_json, read_jsonl

TAIL_BYTES = 1 << 18
"""Read of the record for its last count; its lines have some kilobytes at most."""


class GoodputClock:
    """Goes on where the record ends. A clock that was set back does not lead to a ratio above 1."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = Path(run_dir)
        self._began = time.time()
        self.productive_seconds = 0.0
        self.read()

    def read(self) -> None:
        """Take up the record as it is now: at the start, and after it has been cut back."""
        self._began = min(time.time(), _first_start(self._run_dir / "events.jsonl"))
        self.productive_seconds = _last_count(self._run_dir / "metrics.jsonl")

    def add(self, seconds: float) -> None:
        """A step that counts took so long."""
        self.productive_seconds += seconds

    def ratio(self) -> float:
        """0 to 1, up to now."""
        return self.productive_seconds / max(time.time() - self._began, self.productive_seconds, 1e-9)


def _first_start(path: Path) -> float:
    """When the run first started; infinite for one that has not."""
    for event in read_jsonl(path, on_broken=lambda *_: None) if path.exists() else ():
        if isinstance(event, dict) and event.get("event") == "started" and isinstance(event.get("time"), int | float):
            return float(event["time"])
    return math.inf


def _last_count(path: Path) -> float:
    """Productive seconds in the newest line that has them, among those at the record's end, which may be long."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
            lines = file.read().splitlines()
    except FileNotFoundError:
        return 0.0
    for line in reversed(lines):
        try:
            return float(parse_json(line)["productive_seconds"])
        except (ValueError, KeyError, TypeError):  # cut by the beginning of the tail, or torn
            continue
    return 0.0
