"""Starts the ranks of a layout on this machine with torch's elastic agent, and answers for them.

In: a command, a number of ranks, a folder for logs. Out: the ranks' work done, or one error that says what became of
which rank. Rank 0 has the console; the streams of the others go to `logs/rank-00001.log`. Signals are passed on. A rank
that is killed, or stands still, makes all start again, up to `max_restarts` times; an error that would only come again
does not.

    launch_local([sys.executable, "-m", "headwater.pipeline.rank", "job.json"], ranks=4, logs=run / "logs",
                 max_restarts=3, reporter=reporter)

Ranks meet through a store that listens on the loopback interface alone.
"""

from __future__ import annotations

import functools
import logging
import os
import signal
import socket
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

from torch.distributed import TCPStore
from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing.api import LogsDest, LogsSpecs
from torch.distributed.elastic.rendezvous.api import RendezvousHandler, RendezvousInfo, RendezvousStoreInfo

from headwater.core.errors import HeadwaterError, UserError
from headwater.core.progress import Reporter
from headwater.parallel.rank_files import LOST_PEER, RankFolder
from headwater.parallel.rank_process import LAUNCHED, RANKS
from headwater.parallel.watchdog import RanksLostError, lost_error

HOST = "127.0.0.1"
INTERRUPTED = 130
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
_ASKED = (INTERRUPTED, -signal.SIGTERM, -signal.SIGINT)
POLL_SECONDS = 0.1
GRACE_SECONDS = 10.0
"""How long ranks have to end when one has ended, before they are killed."""


class RanksInterrupted(KeyboardInterrupt):
    """The ranks were asked to stop, have saved their state, and go on from it when run again."""


def launch_local(
    command: Sequence[str],
    *,
    ranks: int,
    logs: Path,
    max_restarts: int,
    reporter: Reporter,
    environment: Mapping[str, str] | None = None,
) -> None:
    """Run `command` in `ranks` processes until all have ended well.

    Raises the HeadwaterError that a rank ended with, RanksLostError if ranks were lost and no restart is left or
    sensible, and RanksInterrupted after a signal.
    """
    logs.mkdir(parents=True, exist_ok=True)
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)  # all that matters is said here
    threads = os.environ.get("OMP_NUM_THREADS") or str(max(1, len(os.sched_getaffinity(0)) // ranks))
    settings = {
        LAUNCHED: str(os.getpid()),
        "OMP_NUM_THREADS": threads,
        "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", "lo"),
        **(environment or {}),
    }
    handler = _Loopback()
    spec = WorkerSpec(
        role="rank",
        local_world_size=ranks,
        entrypoint=command[0],
        args=tuple(command[1:]),
        rdzv_handler=handler,
        max_restarts=max_restarts,
        monitor_interval=POLL_SECONDS,
    )
    agent = _Agent(spec, _Logs(logs), RankFolder(logs / RANKS), reporter)
    with _environment(settings), _signals(agent):
        try:
            result = agent.run()
        finally:
            handler.shutdown()
    if result.is_failed():
        raise agent.error(result)


class _Agent(LocalElasticAgent):
    """torch's agent, which starts again only what a restart can mend, and says why."""

    def __init__(self, spec: WorkerSpec, logs: LogsSpecs, folder: RankFolder, reporter: Reporter) -> None:
        super().__init__(spec, logs, start_method="spawn")
        self._folder, self._reporter = folder, reporter
        self._asked: signal.Signals | None = None
        self._last_step = -1

    @property
    def _attempt(self) -> str:
        spec = self._worker_group.spec
        return f"{spec.rdzv_handler.get_run_id()}.{spec.max_restarts - self._remaining_restarts}"

    def pass_on(self, number: int) -> None:
        """Hand a signal to every rank; a second SIGINT ends them at once."""
        again = self._asked is not None and number == signal.SIGINT
        self._asked = signal.Signals(number)
        for pid in self._pcontext.pids().values() if self._pcontext is not None else ():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL if again else number)

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        pids = super()._start_workers(worker_group)
        assert self._pcontext is not None
        self._pcontext.close = functools.partial(  # type: ignore[method-assign]
            self._pcontext.close, death_sig=signal.SIGTERM, timeout=int(GRACE_SECONDS)
        )
        return pids

    def _shutdown(self, death_sig: signal.Signals = signal.SIGTERM, timeout: int = int(GRACE_SECONDS)) -> None:
        if self._pcontext is not None:
            self._pcontext.close(death_sig=death_sig, timeout=timeout)

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        result = super()._monitor_workers(worker_group)
        if result.state is WorkerState.FAILED:
            self._decide(result)
        return result

    def _decide(self, result: RunResult) -> None:
        """After a failure: start again, or leave no restart."""
        codes = _codes(result)
        self.failed_attempt = self._attempt
        reached = self._reached()
        lost = all(code < 0 or code == LOST_PEER for code in codes.values())
        stuck = not any(code == -signal.SIGKILL for code in codes.values()) and reached <= self._last_step
        stuck = stuck and not any(error["asks_for_less"] for error in self._errors().values())
        self._last_step = max(reached, self._last_step)
        if self._asked is not None or not lost or stuck or set(codes.values()) <= set(_ASKED):
            self._remaining_restarts = 0
            return
        if self._remaining_restarts > 0:
            spec = self._worker_group.spec
            number = spec.max_restarts - self._remaining_restarts + 1
            error = self._lost(codes)
            self._reporter.warn(f"{error.what}\n  starting all ranks again ({number} of {spec.max_restarts})")

    def _reached(self) -> int:
        beats = (
            self._folder.read(self._folder.file(worker.global_rank, ""), self._attempt)
            for worker in self._worker_group.workers
        )
        return max((int(beat["step"]) for beat in beats if beat is not None), default=0)

    def _errors(self) -> dict[int, dict[str, Any]]:
        """By rank, what those wrote down that ended with an error in the attempt that failed."""
        files = {rank: self._folder.file(rank, "error") for rank in range(len(self._worker_group.workers))}
        read = {rank: self._folder.read(file, self.failed_attempt) for rank, file in files.items()}
        return {rank: error for rank, error in read.items() if error is not None}

    def _lost(self, codes: dict[int, int]) -> RanksLostError:
        attempt = self.failed_attempt
        verdict = self._folder.read(self._folder.verdict, attempt)
        if verdict is not None:
            return RanksLostError(verdict["what"], mend=verdict["mend"])
        return lost_error(self._folder, len(self._worker_group.workers), attempt, stalled=0.0, exits=codes)

    def error(self, result: RunResult) -> BaseException:
        """What to raise for ranks that failed for good."""
        codes = _codes(result)
        if errors := {rank: error for rank, error in self._errors().items() if error["expected"]}:
            rank, first = min(errors.items())
            alone = len(errors) == 1 and len(self._worker_group.workers) > 1 and rank > 0
            where = ", ".join(part for part in (f"rank {rank}" if alone else "", first["where"]) if part)
            kind = UserError if first["exit_code"] == 2 else HeadwaterError
            raised = kind(first["what"], where=where, mend=first["mend"])
            raised.exit_code = first["exit_code"]
            return raised
        if self._asked is not None or set(codes.values()) & set(_ASKED[:1]) or set(codes.values()) <= set(_ASKED):
            return RanksInterrupted((self._asked or signal.SIGTERM).name)
        return self._lost(codes)


def _codes(result: RunResult) -> dict[int, int]:
    return {rank: failure.exitcode for rank, failure in result.failures.items()}


class _Loopback(RendezvousHandler):
    """All ranks are this machine's: one store on the loopback interface, a new one for every start."""

    def __init__(self) -> None:
        self._run_id = uuid.uuid4().hex[:12]
        self._store: TCPStore | None = None

    def get_backend(self) -> str:
        return "loopback"

    @property
    def use_agent_store(self) -> bool:
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        listener = socket.create_server((HOST, 0), backlog=1024)
        port = listener.getsockname()[1]
        self._store = TCPStore(
            HOST, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach(), multi_tenant=False
        )
        return RendezvousInfo(self._store, 0, 1, RendezvousStoreInfo(HOST, port))

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None:
        """There is nobody else who could join."""

    def num_nodes_waiting(self) -> int:
        return 0

    def get_run_id(self) -> str:
        return self._run_id

    def shutdown(self) -> bool:
        self._store = None
        return True


class _Logs(LogsSpecs):
    """Rank 0's stderr is the console; all else goes to a file a rank, a restart adds files of its own."""

    def __init__(self, folder: Path) -> None:
        super().__init__(str(folder))
        self._folder = folder

    @property
    def root_log_dir(self) -> str:
        return str(self._folder)

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        destination = LogsDest()
        for local_rank, env in envs.items():
            count = int(env["TORCHELASTIC_RESTART_COUNT"])
            name = f"rank-{int(env['RANK']):05d}" + (f".restart-{count}" if count else "")
            destination.stdouts[local_rank] = str(self._folder / f"{name}.out.log")
            destination.stderrs[local_rank] = "" if env["RANK"] == "0" else str(self._folder / f"{name}.log")
            destination.tee_stdouts[local_rank] = destination.tee_stderrs[local_rank] = ""
            destination.error_files[local_rank] = ""
        return destination


@contextmanager
def _environment(settings: Mapping[str, str]) -> Iterator[None]:
    """The agent hands its own environment to ranks."""
    settings = {**settings, "TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGQUIT"}  # the others are passed on here
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})


@contextmanager
def _signals(agent: _Agent) -> Iterator[None]:
    """Pass signals on to the ranks, which agree to stop. Only the main thread can have handlers."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def pass_on(number: int, frame: FrameType | None) -> None:
        agent.pass_on(number)

    before: dict[int, Any] = {number: signal.signal(number, pass_on) for number in STOP_SIGNALS}
    before[signal.SIGQUIT] = signal.getsignal(signal.SIGQUIT)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
