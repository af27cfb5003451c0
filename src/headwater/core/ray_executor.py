"""The executor for a Ray cluster: the same protocol, order, errors and bytes as inline and processes.

Needs the extra `ray`, Headwater on every node, and a workspace on storage that all nodes share. A worker or node that
dies is no failure: Ray runs its items again elsewhere, which is safe, as a stage writes each shard under a temporary
name and renames it.

    with RayExecutor("10.0.0.1:6379") as executor: executor.map(count_shard, paths)
"""

from __future__ import annotations

import os
import pickle
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Self, TypeVar

from headwater.core.errors import HeadwaterError, UserError
from headwater.core.executor import WINDOW, WorkerDiedError, check_importable, shorten
from headwater.core.executor_config import LOCAL_RAY
from headwater.core.worker import answer

T = TypeVar("T")
R = TypeVar("R")

TRIES = 5
"""How often an item whose worker died is begun again."""

_QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "RAY_DEDUP_LOGS": "0"}


def _answer(data: bytes, folders: list[str]) -> bytes:
    """In a worker: what the parent can import, the worker can, where it has the same folders."""
    for folder in folders:
        if folder not in sys.path and os.path.isdir(folder):
            sys.path.append(folder)
    return answer(data)


class RayExecutor:
    """Items as Ray tasks, one processor core each.

    `address`: `local` starts a Ray of this machine's own, for as long as the executor is open; `auto` joins the cluster
    this machine is part of; `HOST:PORT` another one. A Ray that this process has already joined is used as it is.
    `workers` bounds how many items run at once; 0: as many as the cluster has cores, at the time a map begins.

    `function` must be importable by its name on every node. Raises UserError without the package `ray` or without a
    cluster at the address.
    """

    kind = "ray"

    def __init__(self, address: str = LOCAL_RAY, workers: int = 0) -> None:
        self.address = address
        self._asked = workers
        self._joined = False
        self._ray = _load()

    @property
    def workers(self) -> int:
        self._join()
        return self._asked or max(1, int(self._ray.cluster_resources().get("CPU", 1)))

    def map(self, function: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
        check_importable(function)
        return self._run(function, items) if items else iter(())

    def _run(self, function: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
        workers = self.workers
        task = self._ray.remote(max_retries=TRIES, num_cpus=1)(_answer)
        folders = [os.path.abspath(folder) for folder in sys.path]
        running: deque[tuple[Any, Any]] = deque()  # in the order of the items
        given = 0
        try:
            for number in range(len(items)):
                # With a bound on workers the window is that bound: nothing of ours waits in Ray's queue.
                while given < min(len(items), number + (self._asked or WINDOW * workers)):
                    data = pickle.dumps((function, items[given]), protocol=pickle.HIGHEST_PROTOCOL)
                    running.append((given, task.remote(data, folders)))
                    given += 1
                yield self._result(running.popleft()[1], number, items)
        finally:
            for _, reference in running:  # an error, Ctrl-C or a consumer that left
                with suppress(Exception):
                    self._ray.cancel(reference, force=True)

    def _result(self, reference: Any, number: int, items: Sequence[Any]) -> Any:
        try:
            good, value, trace = pickle.loads(self._ray.get(reference))
        except (self._ray.exceptions.WorkerCrashedError, self._ray.exceptions.RaySystemError) as error:
            raise _death(error, number, items) from error
        except self._ray.exceptions.RayTaskError as error:  # outside our code: its worker lacks Headwater, say
            raise HeadwaterError(
                f"a Ray worker could not run item {number}: {shorten(str(error.cause))}",
                where=shorten(repr(items[number])),
                mend="install the same Headwater, Python and ray on every node of the cluster",
            ) from error
        except self._ray.exceptions.RayError as error:
            raise _death(error, number, items) from error
        if good:
            return value
        if trace:
            value.add_note(f"in a Ray worker, on item {number} ({shorten(repr(items[number]))}):\n{trace}")
        raise value

    def _join(self) -> None:
        if self._ray.is_initialized():
            return
        own = self.address == LOCAL_RAY
        try:
            self._ray.init(
                address=self.address,
                log_to_driver=False,
                logging_level="ERROR",
                **({"include_dashboard": False, "num_cpus": self._asked or None} if own else {}),
            )
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise UserError(
                f"there is no Ray cluster at {self.address!r}: {shorten(str(error))}",
                where="executor.address",
                mend="start one (`ray start --head`), give its HOST:PORT, or leave the address out",
            ) from error
        self._joined = True

    def close(self) -> None:
        """Leave the cluster, if this executor joined it; the next `map` joins again."""
        if self._joined and self._ray.is_initialized():
            self._ray.shutdown()
        self._joined = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _load() -> Any:
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)  # read when ray is imported
    try:
        import ray
        import ray.exceptions
    except ImportError:
        raise UserError(
            "the executor kind 'ray' needs the package ray",
            where="executor.kind",
            mend="pip install 'headwater[ray]', or use executor kind 'process'",
        ) from None
    return ray


def _death(error: Exception, number: int, items: Sequence[Any]) -> WorkerDiedError:
    return WorkerDiedError(
        f"item {number} of {len(items)} ended {TRIES + 1} Ray workers, or its node is gone: {shorten(str(error))}",
        where=shorten(repr(items[number])),
        mend="most often a node was out of memory: use fewer workers (executor.workers) or smaller shards; "
        "finished parts are kept",
    )
