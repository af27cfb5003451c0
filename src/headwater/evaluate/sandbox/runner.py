"""Starting program and tests, connecting them, keeping time, and reading the verdict.

with Sandbox(Level.REDUCED) as sandbox: sandbox.check(program, tests, entry_point="add")
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from headwater.core.errors import HeadwaterError
from headwater.evaluate.sandbox.library import library_paths
from headwater.evaluate.sandbox.limits import Level, Limits

_HERE = Path(__file__).parent
_START_SECONDS = 30.0
"""For two interpreters to start on a busy machine; not part of a program's time."""
_FIRST_UID = 61_000
_UIDS = 2_000
_REPORT_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Outcome:
    """`reason` is `passed`, `timed out`, or what went wrong; `level` what confined the program."""

    passed: bool
    reason: str
    seconds: float
    level: Level


@dataclass(frozen=True, slots=True)
class Program:
    """One program and its tests. `prompt` is the benchmark's own beginning of the program, for helpers that tests use;
    `check` the function of the tests that takes the entry point (empty: loading the tests is the test)."""

    source: str
    tests: str
    entry_point: str
    prompt: str = ""
    check: str = "check"


class Sandbox:
    """Confines programs at one level. `levels.open_sandbox` chooses the level, and refuses a weaker one than wanted."""

    def __init__(self, level: Level, limits: Limits | None = None) -> None:
        self.level, self.limits = level, limits or Limits()
        self._root = Path(tempfile.mkdtemp(prefix="headwater-sandbox-"))
        self._root.chmod(0o711)
        self._library = library_paths(self._root)
        self._slots = itertools.count()

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        shutil.rmtree(self._root, ignore_errors=True)

    def check(self, source: str, tests: str, *, entry_point: str, prompt: str = "", check: str = "check") -> Outcome:
        """Run `tests` against the program `source`; only values cross between the two."""
        return self.check_program(Program(source, tests, entry_point, prompt, check))

    def check_all(self, programs: Iterable[Program], *, workers: int = 1) -> Iterator[Outcome]:
        """Outcomes in the order of the programs, `workers` at a time."""
        with ThreadPoolExecutor(max_workers=workers) as pool:
            yield from pool.map(self.check_program, programs)

    def check_program(self, program: Program) -> Outcome:
        with contextlib.ExitStack() as stack:
            return self._run(program, stack)

    def _run(self, program: Program, stack: contextlib.ExitStack) -> Outcome:
        to_program, from_judge = os.pipe()
        to_judge, from_program = os.pipe()
        channels = [to_program, from_judge, to_judge, from_program]
        try:
            held = self._start(
                "program.py", {"source": program.source}, to_program, from_program, self._scratch(stack), stack
            )
            tests = {
                "source": program.tests,
                "prompt": program.prompt,
                "entry_point": program.entry_point,
                "check": program.check,
            }
            judge = self._start("judge.py", tests, to_judge, from_judge, self._scratch(stack), stack)
        finally:
            for fd in channels:
                os.close(fd)
        for process in (held, judge):
            first = process.line(_START_SECONDS)
            if first is None or "confined" not in first:
                reason = "it did not start" if first is None else str(first.get("failed"))
                raise HeadwaterError(f"cannot confine a process at level {self.level.value}: {reason}")
        started = time.monotonic()
        verdict = judge.line(self.limits.seconds)
        seconds = time.monotonic() - started
        if verdict is None:
            timed_out = seconds >= self.limits.seconds
            return Outcome(
                False, "timed out" if timed_out else "the tests ended without a verdict", seconds, self.level
            )
        return Outcome(bool(verdict.get("passed")), str(verdict.get("reason")), seconds, self.level)

    def _scratch(self, stack: contextlib.ExitStack) -> tuple[Path, int | None]:
        """(a folder, a user id of its own where we may choose one)."""
        slot = next(self._slots) % _UIDS
        folder = Path(tempfile.mkdtemp(dir=self._root))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        uid = _FIRST_UID + slot if os.geteuid() == 0 and self.level is not Level.NONE else None
        if uid is not None:
            os.chown(folder, uid, uid)
        return folder, uid

    def _start(
        self,
        script: str,
        extra: dict[str, Any],
        read_fd: int,
        write_fd: int,
        place: tuple[Path, int | None],
        stack: contextlib.ExitStack,
    ) -> _Process:
        report_read, report_write = os.pipe()
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-X", "utf8", str(_HERE / script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(read_fd, write_fd, report_write),
            env={},
            cwd=place[0],
            start_new_session=True,
        )
        os.close(report_write)
        running = _Process(process, report_read)
        stack.callback(running.kill)
        config = {
            **asdict(self.limits),
            **extra,
            "level": self.level.value,
            "scratch": str(place[0]),
            "library": self._library,
            "uid": place[1],
            "read_fd": read_fd,
            "write_fd": write_fd,
            "report_fd": report_write,
        }
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(json.dumps(config).encode() + b"\n")
            process.stdin.close()
        return running


class _Process:
    """A started process and the descriptor it reports on."""

    def __init__(self, process: subprocess.Popen[bytes], report_fd: int) -> None:
        self._process, self._fd, self._pending = process, report_fd, b""

    def line(self, seconds: float) -> dict[str, Any] | None:
        """The next report; None if it does not come in time, or the process ended first."""
        end = time.monotonic() + seconds
        while b"\n" not in self._pending:
            left = end - time.monotonic()
            if left <= 0 or not select.select([self._fd], [], [], left)[0]:
                return None
            chunk = os.read(self._fd, _REPORT_BYTES)
            if not chunk or len(self._pending) > _REPORT_BYTES:
                return None
            self._pending += chunk
        line, _, self._pending = self._pending.partition(b"\n")
        loaded = json.loads(line)
        return loaded if isinstance(loaded, dict) else None

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        os.close(self._fd)
