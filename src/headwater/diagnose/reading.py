"""A run's record as it was found: torn lines, missing fields, two writers and clock jumps are said, not stumbled over.

In: `metrics.jsonl`, whatever is in it. Out: one row a step, in order, and notes in plain words on what is odd.

    record = read_record(Path("run/metrics.jsonl")); record.rows[-1]["loss"], record.notes
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from headwater.core.errors import InputError
from headwater.core.jsonl import parse_json
from headwater.monitor.registry import METRICS

NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
KNOWN = METRICS.keys() - {"step", "time", "tokens"}
"""A line with none of these figures is no line of a record, even with a step in it."""
NEEDED = ("loss", "grad_norm", "step_seconds", "data_wait_seconds", "mem_allocated", "tokens", "time")


@dataclass(frozen=True, slots=True)
class Record:
    """`rows` by rising step, with numbers as floats where they are "NaN" or infinite; `notes` for people."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def read_record(path: Path) -> Record:
    """The rows and what is odd about them; a missing file has no rows. InputError if it cannot be read at all."""
    notes: list[str] = []
    rows: dict[int, dict[str, Any]] = {}
    broken: list[int] = []
    strange: list[int] = []
    back: list[tuple[int, int, int]] = []
    last = 0
    for number, line in enumerate(_lines(path, notes), start=1):
        row = _row(line)
        if row is None:
            if line.strip():
                broken.append(number)
            continue
        if "event" in row or not KNOWN & row.keys():
            strange.append(number)
            continue
        step = int(row["step"])
        if rows and step <= last:
            back.append((number, step, last))
        last = step
        rows[step] = row
    if broken:
        notes.append(f"{_lines_named(broken)} of the record cannot be read and {_are(broken)} left out")
    if strange:
        notes.append(f"{_lines_named(strange)} of the record {_are(strange)} of another kind of file, and left out")
    if back:
        number, step, before = back[0]
        notes.append(
            f"steps go back {len(back):,} time{'s' if len(back) > 1 else ''} (line {number:,}: step {step:,} after "
            f"{before:,}): two processes wrote this record, or files were joined; the last line of each step counts"
        )
    ordered = [rows[step] for step in sorted(rows)]
    notes += _missing(ordered)
    if not back:
        notes += _clock(ordered)
    return Record(ordered, notes)


def _lines(path: Path, notes: list[str]) -> list[bytes]:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise InputError(f"cannot read: {error.strerror}", where=str(path)) from error
    lines = data.split(b"\n")
    torn = lines.pop()
    if torn.strip():
        if _row(torn) is None:
            notes.append("the last line is torn: a process was stopped while it wrote, or is writing now")
        else:
            lines.append(torn)
    return lines


def _row(line: bytes) -> dict[str, Any] | None:
    """A line with a step, or None."""
    try:
        row = parse_json(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(row, dict):
        return None
    step = row.get("step")
    if isinstance(step, bool) or not isinstance(step, int | float) or not abs(step) < 1e15 or step != int(step):
        return None
    return {key: NOT_FINITE.get(value, value) if isinstance(value, str) else value for key, value in row.items()}


def _missing(rows: list[dict[str, Any]]) -> list[str]:
    notes = []
    for key in NEEDED:
        lacking = sum(not isinstance(row.get(key), int | float) for row in rows)
        if lacking:
            consequence = "what it would show is not looked for" if lacking == len(rows) else "those are passed over"
            notes.append(f"{key} is missing in {lacking:,} of {len(rows):,} lines; {consequence}")
    return notes


def _clock(rows: list[dict[str, Any]]) -> list[str]:
    """Clocks that were set back, and long gaps."""
    timed = [(int(row["step"]), row["time"]) for row in rows if isinstance(row.get("time"), int | float)]
    pairs = [(b, later - earlier) for (_, earlier), (b, later) in pairwise(timed)]
    notes = []
    for step, seconds in (pair for pair in pairs if pair[1] < -1):
        notes.append(f"the clock went back by {-seconds:,.0f} s before step {step:,}; times are taken from the steps")
        break
    usual = median(seconds for _, seconds in pairs) if pairs else 0.0
    gaps = [(step, seconds) for step, seconds in pairs if seconds > max(600.0, 50 * usual)]
    if gaps:
        step, seconds = max(gaps, key=lambda gap: gap[1])
        notes.append(
            f"{seconds:,.0f} s passed before step {step:,}: the run paused, was resumed later, or the clock was set"
        )
    return notes


def _lines_named(numbers: list[int]) -> str:
    shown = ", ".join(f"{number:,}" for number in numbers[:5])
    more = f" and {len(numbers) - 5:,} more" if len(numbers) > 5 else ""
    return f"line{'s' if len(numbers) > 1 else ''} {shown}{more}"


def _are(numbers: list[int]) -> str:
    return "are" if len(numbers) > 1 else "is"
