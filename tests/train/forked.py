"""Trainings of several ranks as forked processes: cheap to start, real to kill.

with ForkedTraining(world, run_dir, ParallelConfig(dp_shard=4), CONFIG) as training:
    training.kill(2); training.wait()          # exit codes by rank
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import sys
import time
import traceback
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from headwater.core.errors import HeadwaterError
from headwater.parallel.config import ParallelConfig
from headwater.parallel.environment import World as Place
from headwater.parallel.rank_process import LAUNCHED, watched_rank
from headwater.train.run import train
from tests.train.conftest import TINY, World

MODEL = {**TINY, "num_key_value_heads": 2}


class ForkedTraining:
    """`layout.ranks` processes that train in `run_dir`, each with stderr in `run_dir-RANK.log`. `datasets`: what a rank
    finds in place of the world's."""

    def __init__(
        self,
        world: World,
        run_dir: Path,
        layout: ParallelConfig,
        config: dict[str, Any],
        datasets: dict[int, Path] | None = None,
    ) -> None:
        import torch._dynamo
        import torch.distributed.fsdp
        import torch.distributed.pipelining
        import torch.distributed.tensor.parallel  # noqa: F401

        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        self.pids: dict[int, int] = {}
        for rank in range(layout.ranks):
            pid = os.fork()
            if pid == 0:
                own = replace(world, dataset=(datasets or {}).get(rank, world.dataset))
                _rank(rank, port, own, run_dir, layout, config)
            self.pids[rank] = pid

    def kill(self, *ranks: int, number: int = signal.SIGKILL) -> None:
        for rank in ranks:
            os.kill(self.pids[rank], number)

    def wait(self, seconds: float = 100.0) -> dict[int, int]:
        """Exit codes by rank (negative: the signal that ended it); kills what runs longer."""
        codes: dict[int, int] = {}
        deadline = time.monotonic() + seconds
        while len(codes) < len(self.pids):
            for rank, pid in self.pids.items():
                if rank not in codes:
                    done, status = os.waitpid(pid, os.WNOHANG)
                    if done:
                        codes[rank] = os.waitstatus_to_exitcode(status)
            if time.monotonic() > deadline:
                self.kill(*(set(self.pids) - set(codes)))
                deadline = float("inf")
            time.sleep(0.01)
        self.pids = {}
        return codes

    def __enter__(self) -> ForkedTraining:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.pids:
            self.wait(0.0)


def _rank(rank: int, port: int, world: World, run_dir: Path, layout: ParallelConfig, config: dict[str, Any]) -> None:
    code = 1
    gc.freeze()  # garbage of this test process may own threads that no fork has
    try:
        log = os.open(run_dir.with_name(f"{run_dir.name}-{rank}.log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(log, 2)
        torch.set_num_threads(1)
        os.environ.update(
            RANK=str(rank),
            WORLD_SIZE=str(layout.ranks),
            LOCAL_RANK=str(rank),
            LOCAL_WORLD_SIZE=str(layout.ranks),
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(port),
        )
        os.environ[LAUNCHED] = str(os.getppid())
        place = Place.from_env()
        with watched_rank(run_dir / "logs", place, timeout_seconds=layout.timeout_seconds):
            train(
                dataset=world.dataset,
                tokenizer=world.tokenizer,
                run_dir=run_dir,
                model=MODEL,
                config=config,
                parallel=layout,
                seed=3,
            )
        code = 0
    except KeyboardInterrupt:
        code = 130
    except HeadwaterError as error:
        code = error.exit_code
        traceback.print_exc(file=sys.__stderr__)
    except BaseException:
        traceback.print_exc(file=sys.__stderr__)
    finally:
        os._exit(code)
