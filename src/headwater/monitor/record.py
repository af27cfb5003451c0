"""The record of a run: `metrics.jsonl`, one object a step, complete after a kill.

In: dictionaries by metric key, each with its `step`. Out: the same, line by line. When a run goes on from an earlier
checkpoint, the lines after it are cut off before training repeats those steps, so no step is recorded twice.

    with MetricsRecord(path) as record: record.append({"step": 1, "loss": 8.3})
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from headwater.core.jsonl import JsonlLog, json_safe, parse_json, read_jsonl


class MetricsRecord:
    """Writer of one `metrics.jsonl`; each append is one write, which a killed process does not lose."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._log = JsonlLog(path)

    def append(self, record: Mapping[str, Any]) -> None:
        """Write a line. NaN and infinities become the strings "NaN", "Infinity", "-Infinity"."""
        self._log.append(json_safe(dict(record)))

    def sync(self) -> None:
        """Make all lines so far survive a power cut; called before a checkpoint that stands on them is committed."""
        self._log.sync()

    def close(self) -> None:
        self._log.close()

    def __enter__(self) -> MetricsRecord:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def cut_after(path: Path, step: int) -> int:
    """Cut the lines from the first with a later step than `step` on; returns how many lines that were.

    Steps rise from line to line, so one cut of the file's end is enough, and a kill leaves either the old file or the
    new one. A torn last line goes too.
    """
    if not path.exists():
        return 0
    keep = dropped = 0
    with open(path, "rb") as file:
        for line in file:
            if not dropped and _step_of(line) <= step:
                keep += len(line)
                continue
            dropped += 1
    if dropped:
        with open(path, "rb+") as file:
            file.truncate(keep)
            os.fsync(file.fileno())
    return dropped


def _step_of(line: bytes) -> float:
    """The step of a line; infinite for one that cannot be read, so that it and what follows is cut."""
    if not line.endswith(b"\n"):
        return float("inf")
    try:
        return float(parse_json(line)["step"])
    except (ValueError, KeyError, TypeError):
        return float("inf")


def read_metrics(path: Path) -> Iterator[dict[str, Any]]:
    """Lines of the record in order; a torn or unreadable line is left out, a missing file has none."""
    if path.exists():
        yield from (row for row in read_jsonl(path, on_broken=lambda *_: None) if isinstance(row, dict))
