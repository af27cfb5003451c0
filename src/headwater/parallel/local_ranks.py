"""Real ranks on this machine's CPU: forked processes that form a gloo world and run one function.

In: a function. Out: what it returned on every rank. This process imports what is slow (torch's distributed tensors,
dynamo) once, before it forks; a rank has one thread. An exception of a rank is raised here with the rank's number; no
rank outlives the call. Forking keeps what this process has in memory: arguments need not be picklable, results must be.

    run_local_ranks(4, function, argument) == [result_of_rank_0, ...]

4 ranks of a tiny model that take 3 steps cost 1.4 s this way on 2 cores, 3.6 s without the imports before forking.
"""

from __future__ import annotations

import faulthandler
import gc
import logging
import os
import pickle
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

import torch

from headwater.core.errors import HeadwaterError, UserError
from headwater.parallel.environment import World, start

STACKS_BEFORE_SECONDS = 5.0
"""A rank that is not done this long before its time is up writes the stacks of its threads to standard error."""


class RankError(HeadwaterError):
    """A rank failed or hung; the message has its traceback."""


def run_local_ranks(ranks: int, function: Callable[..., Any], *args: Any, timeout: float = 60.0) -> list[Any]:
    """`function(*args)` in `ranks` forked processes that form a gloo world; results by rank.

    RankError if a rank fails or `timeout` seconds pass; the UserError itself where a rank raised one.
    """
    if not hasattr(os, "fork"):
        raise UserError("this system cannot fork processes", mend="use Linux or macOS")
    import torch._dynamo
    import torch.distributed.fsdp
    import torch.distributed.pipelining
    import torch.distributed.tensor.parallel  # noqa: F401

    port = _free_port()
    children: dict[int, tuple[int, int]] = {}  # pipe -> (rank, pid)
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        for rank in range(ranks):
            reading, writing = os.pipe()
            pid = os.fork()
            if pid == 0:
                os.close(reading)
                _rank(rank, ranks, port, timeout, writing, function, args)
            os.close(writing)
            children[reading] = (rank, pid)
        received, silent = _collect(children, timeout)
    except BaseException:
        _end(children, children)
        raise
    _end(children, silent)
    results: dict[int, Any] = {}
    failed: dict[int, Any] = {}
    for pipe, (rank, _) in children.items():
        if pipe in silent:
            failed[rank] = f"not done after {timeout:g} s" if not received[pipe] else "said half a word"
            continue
        good, value = pickle.loads(received[pipe]) if received[pipe] else (False, "died without a word")
        (results if good else failed)[rank] = value
    _raise(failed)
    return [results[rank] for rank in range(ranks)]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _collect(children: dict[int, tuple[int, int]], timeout: float) -> tuple[dict[int, bytes], set[int]]:
    """What came through each pipe, and the pipes whose rank was not done in time."""
    received: dict[int, bytes] = dict.fromkeys(children, b"")
    waiting, deadline, failed = set(children), time.monotonic() + timeout, False
    while waiting:
        ready, _, _ = select.select(list(waiting), [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            break
        for pipe in ready:
            data = os.read(pipe, 1 << 20)
            received[pipe] += data
            if data:
                continue
            waiting.discard(pipe)
            failed = failed or not received[pipe] or not pickle.loads(received[pipe])[0]
        if failed:  # the others wait for the failed one: a moment to say their own errors, no more
            deadline = min(deadline, time.monotonic() + 2.0)
    return received, waiting


def _end(children: dict[int, tuple[int, int]], running: dict[int, tuple[int, int]] | set[int]) -> None:
    """Close every pipe, kill the ranks that still run, and wait for all."""
    for pipe, (_, pid) in children.items():
        os.close(pipe)
        if pipe in running:
            os.kill(pid, signal.SIGKILL)
    for _, pid in children.values():
        os.waitpid(pid, 0)


def _raise(failed: dict[int, Any]) -> None:
    if not failed:
        return
    for error in failed.values():
        if isinstance(error, UserError):
            raise error
    # A rank with an error of its own comes before those that only lost it or were still waiting.
    lines = [f"rank {rank}: {value}" for rank, value in sorted(failed.items())]
    raise RankError("\n".join(lines))


def _rank(
    rank: int, ranks: int, port: int, timeout: float, writing: int, function: Callable[..., Any], args: tuple[Any, ...]
) -> NoReturn:
    # What the forking process left for its garbage collector may own threads (a store, a process group) that no fork
    # has: destroying it here would wait for them for ever, or abort. The rank never collects what it was born with.
    gc.freeze()
    try:
        torch.set_num_threads(1)
        # What torch thinks of the number of collectives, once a rank: nothing a reader of results can use.
        logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)
        os.environ.update(
            RANK=str(rank), WORLD_SIZE=str(ranks), LOCAL_RANK=str(rank), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port)
        )
        if timeout > 2 * STACKS_BEFORE_SECONDS:  # a rank that hangs says where, before it is ended
            faulthandler.dump_traceback_later(timeout - STACKS_BEFORE_SECONDS)
        start(World.from_env(), torch.device("cpu"), timeout_seconds=timeout)
        answer = pickle.dumps((True, function(*args)))
    except UserError as error:
        answer = pickle.dumps((False, error))
    except BaseException:
        answer = pickle.dumps((False, traceback.format_exc()))
    try:
        view = memoryview(answer)
        while view:
            view = view[os.write(writing, view) :]
    finally:
        os._exit(0)  # no destructors: they would wait for ranks that are gone
