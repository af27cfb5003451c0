"""Run a function over items, here, in worker processes or on a Ray cluster; results in the order of the items.

Output never depends on the back end or the number of workers. A worker that is killed (most often by the system, out
of memory) gives an error that names the item; Ctrl-C or a kill of this process leaves no worker behind.

    with make_executor("process", workers=2) as executor:
        for counts in executor.map(count_shard, paths): ...

Workers are fresh interpreters (`headwater.core.worker`), so they inherit neither torch's threads nor open files, and
each computes with one thread. They start on the first `map`, in about 0.1 s, and stay for the next one.
"""

from __future__ import annotations

import math
import multiprocessing.connection
import os
import pickle
import signal
import socket
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Protocol, Self, TypeVar

from headwater.core.errors import HeadwaterError
from headwater.core.executor_config import LOCAL_RAY

T = TypeVar("T")
R = TypeVar("R")

WINDOW = 4
"""Results held back for order, at most, for each worker: bounds memory when an early item is slow."""

_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS", "NUMBA_NUM_THREADS")
_CLOSE_SECONDS = 5.0

# Not `-m`: that would put the current folder in front, where a stray random.py shadows the standard library.
_START = "import sys; sys.path[:] = sys.argv[2:]; from headwater.core.worker import main; main(int(sys.argv[1]))"


class Executor(Protocol):
    """One protocol, several back ends."""

    @property
    def kind(self) -> str: ...

    @property
    def workers(self) -> int: ...

    def map(self, function: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
        """Results in the order of `items`, lazily. An exception of `function` is raised at its item's turn, so it is
        the same with any number of workers; what comes after it may or may not have run."""
        ...

    def close(self) -> None:
        """Let workers go; the next `map` starts new ones."""
        ...


class OpenExecutor(Executor, Protocol):
    """An executor as a context manager, which closes it."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class WorkerDiedError(HeadwaterError):
    """A worker process ended in the middle of an item."""


def available_cpus() -> int:
    """Cores this process may use: its affinity, and its control group's quota rounded up."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with suppress(OSError, ValueError):
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        if quota != "max":
            cores = min(cores, math.ceil(int(quota) / int(period)))
    return max(1, cores)


def make_executor(
    kind: Literal["inline", "process", "ray"], workers: int = 0, address: str | None = None
) -> OpenExecutor:
    """`workers` = 0 means one for each available core; inline has one, whatever is asked. `address` is a Ray cluster's;
    None: a Ray of this machine's own. Raises UserError for `ray` without the package ray."""
    if workers < 0:
        raise ValueError(f"workers is {workers}; give 0 (one for each core) or more")
    if kind == "inline":
        return InlineExecutor()
    if kind == "process":
        return ProcessExecutor(workers or available_cpus())
    if kind == "ray":
        from headwater.core.ray_executor import RayExecutor

        return RayExecutor(address or LOCAL_RAY, workers)
    raise ValueError(f"executor kind {kind!r} is not one of 'inline', 'process', 'ray'")


class InlineExecutor:
    """Everything in the calling process, one item after the other."""

    kind = "inline"
    workers = 1

    def map(self, function: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
        return (function(item) for item in items)

    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class _Worker:
    """One worker process and the line to it. It exits by itself when the line closes, so none outlives its parent."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        try:
            environment = {**os.environ, **dict.fromkeys(_ONE_THREAD, "1"), "TOKENIZERS_PARALLELISM": "false"}
            self.process = subprocess.Popen(
                [sys.executable, "-c", _START, str(theirs.fileno()), *map(os.path.abspath, sys.path)],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env=environment,
                process_group=0,  # the terminal's Ctrl-C is for the parent, which stops its workers
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        self.line = Connection(ours.detach())
        self.item: int | None = None

    def kill(self) -> None:
        self.line.close()
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        self.line.close()
        try:
            self.process.wait(_CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def _close_all(workers: list[_Worker]) -> None:
    while workers:
        workers.pop().close()


class ProcessExecutor:
    """A pool of worker processes on this machine.

    `function` must be importable by its name (defined at the top level of a module, not in a script or a lambda);
    items and results are pickled. A `map` inside the loop over another `map` gets workers of its own if none is idle.
    """

    kind = "process"

    def __init__(self, workers: int) -> None:
        if workers < 1:
            raise ValueError(f"a pool needs at least one worker, not {workers}")
        self.workers = workers
        self._idle: list[_Worker] = []
        self._finalizer = weakref.finalize(self, _close_all, self._idle)

    def map(self, function: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
        check_importable(function)
        return self._run(function, items) if items else iter(())

    def _run(self, function: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
        team: list[_Worker] = []
        ready: dict[int, tuple[bool, Any]] = {}  # item number -> (good, result or exception)
        given = taken = 0
        failed = False
        try:
            while taken < len(items):
                while (
                    not failed
                    and given < min(len(items), taken + WINDOW * self.workers)
                    and (worker := self._free(team)) is not None
                ):
                    worker.item = given
                    _send(worker, function, items[given])
                    given += 1
                if taken in ready:
                    good, value = ready.pop(taken)
                    if not good:
                        raise value
                    taken += 1
                    yield value
                    continue
                for number, good, value in _wait([worker for worker in team if worker.item is not None], items):
                    ready[number] = (good, value)
                    failed = failed or not good
        finally:
            for worker in team:
                if worker.item is None:
                    self._idle.append(worker)
                else:
                    worker.kill()  # an error, Ctrl-C or a consumer that left: nobody waits for this any more

    def _free(self, team: list[_Worker]) -> _Worker | None:
        """A worker without an item: of this map's, else one idle in the pool, else a new one, up to `workers`."""
        for worker in team:
            if worker.item is None:
                return worker
        if len(team) >= self.workers:
            return None
        while self._idle:
            worker = self._idle.pop()
            if worker.process.poll() is None:
                team.append(worker)
                return worker
            worker.kill()
        team.append(_Worker())
        return team[-1]

    def close(self) -> None:
        _close_all(self._idle)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def check_importable(function: Callable[..., Any]) -> None:
    """HeadwaterError for a function of the script itself."""
    if getattr(function, "__module__", None) == "__main__":
        raise HeadwaterError(
            f"{function!r} is defined in the script itself, which worker processes cannot import",
            mend="move it to a module of its own, or use executor kind 'inline'",
        )


def _send(worker: _Worker, function: Callable[..., Any], item: Any) -> None:
    try:
        data = pickle.dumps((function, item), protocol=pickle.HIGHEST_PROTOCOL)
    except Exception:
        worker.item = None
        raise
    with suppress(BrokenPipeError, ConnectionResetError):  # it died idle or at once: found when its answer is awaited
        worker.line.send_bytes(data)


def _wait(busy: list[_Worker], items: Sequence[Any]) -> Iterator[tuple[int, bool, Any]]:
    """Block until at least one busy worker answers or dies."""
    lines: dict[Any, _Worker] = {worker.line: worker for worker in busy}
    for line in multiprocessing.connection.wait(list(lines)):
        worker = lines[line]
        number = worker.item
        assert number is not None
        try:
            data = worker.line.recv_bytes()
        except (EOFError, OSError):
            worker.process.wait()
            yield number, False, _death(worker.process, number, items)
            continue
        good, value, trace = pickle.loads(data)
        if not good and trace:
            value.add_note(f"in a worker process, on item {number} ({shorten(repr(items[number]))}):\n{trace}")
        worker.item = None
        yield number, good, value


def _death(process: subprocess.Popen[bytes], number: int, items: Sequence[Any]) -> WorkerDiedError:
    code = process.returncode
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
    mend = "run again; finished parts are kept"
    if code == -signal.SIGKILL:
        mend = "most often the system was out of memory: use fewer workers (executor.workers) or smaller shards"
    return WorkerDiedError(
        f"worker process {process.pid} {how} while on item {number} of {len(items)}",
        where=shorten(repr(items[number])),
        mend=mend,
    )


def shorten(text: str) -> str:
    """At most 200 characters."""
    return text if len(text) <= 200 else text[:197] + "..."
