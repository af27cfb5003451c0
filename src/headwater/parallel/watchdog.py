"""Watches the progress of a rank: when training stands still or a peer is lost, one message says which rank is where.

In: beats of the training loop (`beat(step, phase)`), a folder that all ranks see. Out: nothing while all goes well. A
rank without a beat for `timeout_seconds` writes where it is, waits a moment for the others to do the same, and the
lowest of those that can speak says it for all; then all end, so that whoever started them can start them again.

    with Watch(RankFolder(run / "logs/ranks"), rank=0, size=4, timeout_seconds=600, say=reporter.warn):
        beat(17, "data"); ...

The watching thread needs Python's lock for a moment only; a rank that never gives it back shows in its stacks, which
the speaker asks for by SIGUSR2 (read by faulthandler without that lock) where it shares the machine.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import FrameType, TracebackType

from headwater.core.errors import HeadwaterError
from headwater.parallel.memory import SmallerPiecesError
from headwater.parallel.rank_files import LOST_PEER, Heartbeat, RankFolder, culprits, describe, spans, this_attempt

PACKAGE = f"{os.sep}headwater{os.sep}"
GRACE_SECONDS = 3.0
LOST_GRACE_SECONDS = 5.0
"""After a loss the others notice at once, and launchers do not wait long before they kill."""

_NOT_A_PLACE = {"watchdog.py", "rank_process.py", "contextlib.py"}

_current: Watch | None = None
_last_beat = (time.monotonic(), "start")


class RanksLostError(HeadwaterError):
    """Ranks ended, failed or stood still; `what` says which is where."""


def beat(step: int | None = None, phase: str | None = None) -> None:
    """Say that this process goes on: at every change of phase, and inside of long ones."""
    global _last_beat
    _last_beat = time.monotonic(), phase or _last_beat[1]
    if _current is not None:
        _current.beat(step, phase)


def last_beat() -> tuple[float, str]:
    """(`time.monotonic()` of the last beat of this process, its phase)."""
    return _last_beat


class Watch:
    """The watch of this process. One at a time."""

    def __init__(
        self,
        folder: RankFolder,
        *,
        rank: int,
        size: int,
        timeout_seconds: float,
        say: Callable[[RanksLostError], None],
        leave: Callable[[int], None] = os._exit,
    ) -> None:
        self.folder = folder
        self.rank, self.size = rank, size
        self.attempt = this_attempt()
        self.timeout_seconds = timeout_seconds
        self._say, self._leave = say, leave
        self._step, self._phase, self._count = 0, "start", 0
        self._beaten = time.monotonic()
        self._stop = threading.Event()
        self._main = threading.get_ident()

    def __enter__(self) -> Watch:
        global _current
        if _current is not None:
            raise RuntimeError("this process is watched already")
        self._heart = Heartbeat(self.folder, self.rank, self.attempt)
        self._stacks = open(self.folder.stacks(self.rank), "w")
        faulthandler.enable(self._stacks)
        faulthandler.register(signal.SIGUSR2, self._stacks, all_threads=True, chain=False)
        self.beat(0, "start")
        _current = self
        self._thread = threading.Thread(target=self._watch, name="rank-watch", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        global _current
        _current = None
        self._stop.set()
        self._thread.join()
        faulthandler.unregister(signal.SIGUSR2)
        faulthandler.enable(sys.__stderr__) if sys.__stderr__ is not None else faulthandler.disable()
        self._heart.close()
        self._stacks.close()

    def beat(self, step: int | None = None, phase: str | None = None) -> None:
        self._step = self._step if step is None else step
        self._phase = self._phase if phase is None else phase
        self._count += 1
        self._beaten = time.monotonic()
        self._heart.beat(self._step, self._phase, self._count)

    # When something is wrong.

    def failed(self, error: BaseException) -> None:
        """Write down the error that ends this rank. One that only tells of a lost peer counts as a consequence."""
        facts = next((item for item in behind(error) if isinstance(item, HeadwaterError)), None)
        said = " ".join(str(error).split())[:300]
        what = facts.what if facts else f"{type(error).__name__}: {said}"
        record = {
            "attempt": self.attempt,
            "kind": type(error).__name__,
            "what": what.rstrip(": "),
            "where": facts.where if facts else "",
            "mend": facts.mend if facts else "",
            "exit_code": facts.exit_code if facts else 1,
            "expected": facts is not None,
            "asks_for_less": isinstance(facts, SmallerPiecesError),
            "consequence": is_consequence(error),
            "at": place_of_traceback(error.__traceback__),
        }
        self.folder.write(self.folder.file(self.rank, "error"), record)
        traceback.print_exception(error, file=self._stacks)
        self._stacks.flush()

    def lost(self) -> RanksLostError | None:
        """The one message about the loss of ranks, for this rank to say; None if another says it. Waits a moment for
        what the others write of themselves."""
        deadline = time.monotonic() + LOST_GRACE_SECONDS
        while time.monotonic() < deadline and len(self._answers()) < self.size:
            time.sleep(0.05)
        if min(self._answers(), default=self.rank) != self.rank:
            return None
        self._wake_silent()
        error = lost_error(self.folder, self.size, self.attempt, stalled=0.0)
        self.folder.write(self.folder.verdict, {"attempt": self.attempt, "what": error.what, "mend": error.mend})
        return error

    @property
    def _grace(self) -> float:
        return max(GRACE_SECONDS, min(30.0, self.timeout_seconds / 10))

    def _answers(self) -> list[int]:
        """Ranks that have written where they are or why they ended."""
        return [
            rank
            for rank in range(self.size)
            if any(self.folder.read(self.folder.file(rank, kind), self.attempt) for kind in ("where", "error"))
        ]

    def _wake_silent(self) -> None:
        """Ask ranks of this machine that do not answer for their stacks."""
        for rank in set(range(self.size)) - set(self._answers()):
            known = self.folder.read(self.folder.file(rank, ""), self.attempt)
            if known is not None and known.get("host") == socket.gethostname():
                with suppress(OSError):
                    os.kill(int(known["pid"]), signal.SIGUSR2)

    def _watch(self) -> None:
        interval = min(5.0, max(0.05, self.timeout_seconds / 20))
        while not self._stop.wait(interval):
            if time.monotonic() - self._beaten < self.timeout_seconds:
                continue
            self._stand_still()
            if time.monotonic() - self._beaten >= self.timeout_seconds and not self._stop.is_set():
                self._leave(LOST_PEER)

    def _stand_still(self) -> None:
        """Say where this rank is; the lowest rank that can says it for all, the others wait until it has."""
        frame = sys._current_frames().get(self._main)
        record = {"attempt": self.attempt, "at": place_of_frame(frame), "step": self._step, "phase": self._phase}
        self.folder.write(self.folder.file(self.rank, "where"), record)
        faulthandler.dump_traceback(self._stacks, all_threads=True)
        deadline = time.monotonic() + self._grace
        while time.monotonic() < deadline and len(self._answers()) < self.size:
            if self._stop.wait(0.05):
                return
        if min(self._answers(), default=self.rank) == self.rank:
            self._wake_silent()
            error = lost_error(self.folder, self.size, self.attempt, stalled=self.timeout_seconds)
            self.folder.write(self.folder.verdict, {"attempt": self.attempt, "what": error.what, "mend": error.mend})
            self._say(error)
            return
        while time.monotonic() < deadline + self._grace:
            if self.folder.read(self.folder.verdict, self.attempt) or self._stop.wait(0.05):
                return


def lost_error(
    folder: RankFolder, size: int, attempt: str, *, stalled: float, exits: dict[int, int] | None = None
) -> RanksLostError:
    """The message: who is to blame, where every rank is, what to do. `stalled`: seconds without progress, or 0."""
    blamed = culprits(folder, size, attempt, exits)
    signals = {-code for rank in blamed if (code := (exits or {}).get(rank, 0)) < 0}
    if stalled:
        head = f"no rank has made progress for {stalled:g} s"
        mend = (
            f"stacks of all threads are in {folder.path}; a step, a validation or a save that may take longer needs a "
            "larger parallel.timeout_seconds"
        )
    else:
        head = f"{'rank' if len(blamed) == 1 else 'ranks'} {spans(blamed)} of {size:,} ended" if blamed else "ranks end"
        mend = f"what each rank said is in {folder.path.parent}"
    if signal.SIGKILL in signals:
        mend = f"the system kills what takes too much memory (`dmesg` tells); {mend}"
    elif signal.SIGABRT in signals or any(_mismatch(folder, rank, attempt) for rank in blamed):
        mend = (
            "collectives that differ between ranks in kind, shape or order end like this: run again with "
            f"TORCH_DISTRIBUTED_DEBUG=DETAIL, which names them; {mend}"
        )
    return RanksLostError(f"{head}\n{describe(folder, size, attempt, exits)}", mend=mend)


def _mismatch(folder: RankFolder, rank: int, attempt: str) -> bool:
    error = folder.read(folder.file(rank, "error"), attempt) or {}
    return "collective" in str(error.get("what", "")).lower()


_CONSEQUENCES = (
    "connection closed by peer",
    "connection reset by peer",
    "connection refused",
    "broken pipe",
    "timed out waiting",
    "socket closed",
    "connectfullmesh failed",
    "remote process exited",
    "failed to recv",
    "failed to send",
    "ncclremoteerror",
    "watchdog",
)


def behind(error: BaseException) -> Iterator[BaseException]:
    """An error and those it was raised from or while handling, the latest first."""
    seen: BaseException | None = error
    while seen is not None:
        yield seen
        seen = seen.__cause__ or (None if seen.__suppress_context__ else seen.__context__)


def is_consequence(error: BaseException) -> bool:
    """Whether an error began with the loss of another rank: what torch's back ends raise then has no class of its own,
    and pipelines wrap it. An error of this rank's own comes first even if closing down after it failed too."""
    import torch.distributed as dist

    *later, first = behind(error)
    if any(isinstance(item, HeadwaterError) for item in (*later, first)):
        return False
    lost = isinstance(first, dist.DistNetworkError) or any(words in str(first).lower() for words in _CONSEQUENCES)
    return isinstance(first, RuntimeError) and lost


def place_of_frame(frame: FrameType | None) -> str:
    """`train/trainer.py:97 in _step, calling all_reduce`: the innermost line of this project, and the collective."""
    frames: list[tuple[str, int, str]] = []
    while frame is not None:
        frames.append((frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
        frame = frame.f_back
    return _place(frames)


def place_of_traceback(trace: TracebackType | None) -> str:
    return _place([(f.filename, f.lineno or 0, f.name) for f in reversed(traceback.extract_tb(trace))])


def _place(innermost_first: list[tuple[str, int, str]]) -> str:
    """The innermost line that is this project's, else one that is no library's."""
    calls, elsewhere = "", ""
    for filename, line, name in innermost_first:
        if Path(filename).name in _NOT_A_PLACE:
            continue
        if PACKAGE in filename and "site-packages" not in filename.rpartition(PACKAGE)[0]:
            elsewhere = f"{filename.rpartition(PACKAGE)[2]}:{line} in {name}"
            break
        if f"{os.sep}lib{os.sep}python" not in filename and not filename.startswith("<"):
            elsewhere = elsewhere or f"{Path(filename).name}:{line} in {name}"
        elif not elsewhere and name != "wrapper" and (not calls or Path(filename).name == "distributed_c10d.py"):
            calls = name
    return elsewhere + (f", calling {calls}" if elsewhere and calls else "")
