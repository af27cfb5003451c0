"""What every rank of a run says of itself in files, and the one message made of them when ranks are lost.

In: a folder that all ranks and their launcher see (`RUN/logs/ranks/`). Out: who is where, in words. Files outlive the
process that wrote them, so a rank that was killed still tells how far it was:

    00003.json          the heartbeat: host, process, step, phase; rewritten at each change of phase
    00003.where.json    asked for when training stands still: the place in the code
    00003.stacks.txt    stacks of all threads, as Python's faulthandler writes them
    00003.error.json    the error that ended the rank
    verdict.json        the message, once one rank has said it

Each file names its attempt: those of an earlier start count for nothing.

    print(describe(RankFolder(run / "logs/ranks"), size=4, attempt="7f.0"))
"""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headwater.core.files import temp_path
from headwater.core.jsonl import canonical_json, json_safe, parse_json
from headwater.core.locks import process_start

HEARTBEAT_BYTES = 512
SHOWN_GROUPS = 8

LOST_PEER = 75
"""Exit code of a rank that ended because of another, or because training stood still: starting again is sensible."""


@dataclass(frozen=True)
class RankFolder:
    """The files of a run's ranks. Reading never fails: what is missing or half-written is None."""

    path: Path

    def file(self, rank: int, kind: str) -> Path:
        """`kind`: "" for the heartbeat, else "where", "error"; see the module's table."""
        return self.path / f"{rank:05d}{'.' + kind if kind else ''}.json"

    def stacks(self, rank: int) -> Path:
        return self.path / f"{rank:05d}.stacks.txt"

    @property
    def verdict(self) -> Path:
        return self.path / "verdict.json"

    def read(self, path: Path, attempt: str) -> dict[str, Any] | None:
        """A file's content if it belongs to this attempt."""
        try:
            value = parse_json(path.read_bytes())
        except (OSError, ValueError):
            return None
        return value if isinstance(value, dict) and value.get("attempt") == attempt else None

    def write(self, path: Path, value: Mapping[str, Any]) -> None:
        """Replace a file at once, without waiting for the disk: a reader on another machine sees all or nothing."""
        self.path.mkdir(parents=True, exist_ok=True)
        temp = temp_path(path)
        temp.write_bytes(canonical_json(json_safe(dict(value))))
        os.replace(temp, path)


class Heartbeat:
    """One rank's heartbeat file, kept open: a beat is one small write, some microseconds."""

    def __init__(self, folder: RankFolder, rank: int, attempt: str) -> None:
        self._facts = {"attempt": attempt, "rank": rank, "host": socket.gethostname(), "pid": os.getpid()}
        folder.path.mkdir(parents=True, exist_ok=True)
        self._descriptor = os.open(folder.file(rank, ""), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def beat(self, step: int, phase: str, count: int) -> None:
        record = {**self._facts, "step": step, "phase": phase, "count": count, "time": round(time.time(), 3)}
        os.pwrite(self._descriptor, canonical_json(record)[:HEARTBEAT_BYTES].ljust(HEARTBEAT_BYTES), 0)

    def close(self) -> None:
        os.close(self._descriptor)


def this_attempt(environment: Mapping[str, str] | None = None) -> str:
    """Names this start of all ranks, the same on every rank: the launcher's run id and its count of restarts."""
    env = os.environ if environment is None else environment
    run = env.get("TORCHELASTIC_RUN_ID") or env.get("SLURM_JOB_ID") or env.get("MASTER_PORT", "alone")
    return f"{run}.{env.get('TORCHELASTIC_RESTART_COUNT') or env.get('SLURM_RESTART_COUNT') or 0}"


def describe(folder: RankFolder, size: int, attempt: str, exits: Mapping[int, int] | None = None) -> str:
    """Which rank is where, ranks of the same state together, those to blame first. `exits`: exit codes of processes as
    the launcher saw them (negative: killed by that signal)."""
    groups: dict[tuple[int, str], list[int]] = {}
    for rank in range(size):
        groups.setdefault(_state(folder, rank, attempt, (exits or {}).get(rank)), []).append(rank)
    lines = [
        f"{'rank' if len(ranks) == 1 else 'ranks'} {spans(ranks)}: {text}"
        for (_, text), ranks in sorted(groups.items(), key=lambda item: (item[0][0], item[1]))
    ]
    if len(lines) > SHOWN_GROUPS:
        lines = [*lines[:SHOWN_GROUPS], f"and {len(lines) - SHOWN_GROUPS} more states; see {folder.path}"]
    return "\n".join(f"  {line}" for line in lines)


def culprits(folder: RankFolder, size: int, attempt: str, exits: Mapping[int, int] | None = None) -> list[int]:
    """Ranks that ended or stand by themselves; [] if all of them wait alike."""
    states = {rank: _state(folder, rank, attempt, (exits or {}).get(rank))[0] for rank in range(size)}
    worst = min(states.values(), default=_WAITING)
    return [] if worst == _WAITING else [rank for rank, kind in states.items() if kind == worst]


_KILLED, _FAILED, _SILENT, _WAITING = range(4)


def _state(folder: RankFolder, rank: int, attempt: str, code: int | None) -> tuple[int, str]:
    """(how much to blame, words)."""
    beat = folder.read(folder.file(rank, ""), attempt)
    at = f"step {beat['step']:,}, {beat['phase']}" if beat else "before its start"
    host = f" (process {beat['pid']} on {beat['host']})" if beat else ""
    error = folder.read(folder.file(rank, "error"), attempt)
    where = folder.read(folder.file(rank, "where"), attempt)
    if error is not None and not error.get("consequence"):
        return _FAILED, f"failed at {at}: {error['what']}" + (f" [{error['at']}]" if error.get("at") else "")
    if error is None and code is not None and code < 0 and code != -signal.SIGTERM:
        return _KILLED, f"was ended by {signal.Signals(-code).name} at {at}{host}"
    place = (where or error or {}).get("at")
    if place:
        return _WAITING, f"at {at}, in {place}"
    if error is not None or code == -signal.SIGTERM:
        return _WAITING, f"at {at}"
    if beat is None:
        return _SILENT, "has given no sign of life"
    if beat["host"] == socket.gethostname() and process_start(int(beat["pid"])) is None:
        return _KILLED, f"is gone since {at}{host}"
    return _SILENT, f"gives no answer, last seen at {at}{host}"


def spans(numbers: list[int]) -> str:
    """`0-2, 5`."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)
