"""Real gloo ranks for tests: `run_ranks(4, function, *args)` forks four, connects them, and returns their results.

The parent imports what is slow (torch's distributed tensors, dynamo) before it forks; a rank has one thread. An
exception in a rank is raised in the parent with the rank's number and traceback; no rank outlives the call.
"""

from __future__ import annotations

import os
import pickle
import select
import signal
import socket
import time
import traceback
from collections.abc import Callable
from typing import Any

import torch
import torch._dynamo
import torch.distributed.tensor
import torch.distributed.tensor.parallel
from torch.distributed.fsdp import fully_shard  # noqa: F401

from headwater.parallel.environment import World, start


class RankError(AssertionError):
    """A rank failed or hung; the message has its traceback."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run_ranks(ranks: int, function: Callable[..., Any], *args: Any, timeout: float = 60.0) -> list[Any]:
    """`function(*args)` in `ranks` forked processes that form a gloo world; results (pickled) by rank."""
    port = free_port()
    children: dict[int, tuple[int, int]] = {}  # pipe -> (rank, pid)
    for rank in range(ranks):
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reading)
            _rank(rank, ranks, port, timeout, writing, function, args)
        os.close(writing)
        children[reading] = (rank, pid)
    received: dict[int, bytes] = dict.fromkeys(children, b"")
    results: dict[int, Any] = {}
    failed: dict[int, str] = {}
    open_pipes, deadline = set(children), time.monotonic() + timeout
    try:
        while open_pipes:
            ready, _, _ = select.select(list(open_pipes), [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                missing = sorted(children[pipe][0] for pipe in open_pipes)
                failed[missing[0]] = f"ranks {missing} were not done after {timeout:g} s"
                break
            for pipe in ready:
                data = os.read(pipe, 1 << 20)
                received[pipe] += data
                if data:
                    continue
                open_pipes.discard(pipe)
                rank = children[pipe][0]
                good, value = pickle.loads(received[pipe]) if received[pipe] else (False, "died without a word")
                (results if good else failed)[rank] = value
            if failed:  # the others wait for the failed one: give them a moment to say their own errors, no more
                deadline = min(deadline, time.monotonic() + 2.0)
    finally:
        for pipe, (_, pid) in children.items():
            os.close(pipe)
            if pipe in open_pipes:
                os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    if failed:
        raise RankError("\n".join(f"rank {rank}: {text}" for rank, text in sorted(failed.items())))
    return [results[rank] for rank in range(ranks)]


def _rank(
    rank: int, ranks: int, port: int, timeout: float, writing: int, function: Callable[..., Any], args: tuple[Any, ...]
) -> None:
    try:
        torch.set_num_threads(1)
        os.environ.update(
            RANK=str(rank),
            WORLD_SIZE=str(ranks),
            LOCAL_RANK=str(rank),
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(port),
            TORCH_DISTRIBUTED_DEBUG=os.environ.get("TORCH_DISTRIBUTED_DEBUG", "OFF"),
        )
        start(World.from_env(), torch.device("cpu"), timeout_seconds=timeout)
        answer = pickle.dumps((True, function(*args)))
    except BaseException:
        answer = pickle.dumps((False, traceback.format_exc()))
    try:
        view = memoryview(answer)
        while view:
            view = view[os.write(writing, view) :]
    finally:
        os._exit(0)  # no destructors: they would wait for ranks that are gone
