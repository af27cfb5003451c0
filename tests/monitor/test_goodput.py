"""Goodput goes on where the run's record ends, and counts all that was no step."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from headwater.monitor.goodput import TAIL_BYTES, GoodputClock


def record(folder: Path, started: float, *counts: Any) -> Path:
    """A run that started so many seconds ago and has a line a step."""
    events = [
        {"event": "device"},
        {"event": "started", "time": time.time() - started},
        {"event": "started", "time": 9e9},
    ]
    (folder / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    rows = [{"step": step, "loss": 1.0} | ({} if count is None else {"productive_seconds": count})
            for step, count in enumerate(counts, 1)]  # fmt: skip
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_a_new_run_begins_at_nothing(tmp_path: Path) -> None:
    clock = GoodputClock(tmp_path)
    assert clock.productive_seconds == 0
    clock.add(0.5)
    assert clock.ratio() == 1  # half a second of work in less than that is a clock set back


def test_a_run_that_goes_on_counts_the_time_it_stood_still(tmp_path: Path) -> None:
    clock = GoodputClock(record(tmp_path, 1000.0, 100.0, 250.0))
    clock.add(50.0)
    assert clock.productive_seconds == 300
    assert clock.ratio() == pytest.approx(0.3, rel=0.01)


def test_steps_cut_from_the_record_no_longer_count(tmp_path: Path) -> None:
    clock = GoodputClock(record(tmp_path, 1000.0, 100.0, 250.0))
    record(tmp_path, 1000.0, 100.0)
    clock.read()
    assert clock.productive_seconds == 100


def test_torn_strange_and_very_long_records_are_read_from_their_end(tmp_path: Path) -> None:
    record(tmp_path, 1000.0, 100.0, "?", None)
    path = tmp_path / "metrics.jsonl"
    path.write_text("x" * (2 * TAIL_BYTES) + "\n" + path.read_text() + '{"step": 4, "productive_sec')
    assert GoodputClock(tmp_path).productive_seconds == 100
    path.write_bytes(b"\xff\x00" * 10)
    assert GoodputClock(tmp_path).productive_seconds == 0
