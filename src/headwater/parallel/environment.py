"""Who this process is among the run's processes, as torchrun says it, and the start and end of their connection.

In: the environment variables of torchrun (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT). Out: a `World`, and
a process group that can carry tensors of the device (NCCL on CUDA, gloo on CPUs) and always CPU tensors as well.

    world = World.from_env(); start(world, torch.device("cpu")); ...; stop()

`torchrun --nproc-per-node 4 script.py` sets the variables; without them a process is a world of its own.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from headwater.core.errors import InputError, UserError
from headwater.parallel.rank_files import this_attempt

TIMEOUT_SECONDS = 600.0
"""How long a collective waits for the other ranks before it fails."""

_NAMES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True, slots=True)
class World:
    """This process among all, and among those of its machine. `launched`: started by a launcher, so that there is
    someone to connect to."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    launched: bool = False

    @classmethod
    def from_env(cls, environment: Mapping[str, str] | None = None) -> World:
        """What torchrun set; a world of one process where it set nothing. InputError if only a part is there."""
        env = os.environ if environment is None else environment
        if not {"RANK", "WORLD_SIZE"} & env.keys():
            return cls()
        if missing := [name for name in _NAMES if name not in env]:
            raise InputError(
                f"the environment of a launcher is incomplete: {', '.join(missing)} not set",
                where="environment",
                mend="start with torchrun or `headwater train`, or unset RANK and WORLD_SIZE",
            )
        try:
            rank, size = int(env["RANK"]), int(env["WORLD_SIZE"])
            local, locals_ = int(env.get("LOCAL_RANK", rank)), int(env.get("LOCAL_WORLD_SIZE", size))
            if not 0 <= rank < size or not 0 <= local < locals_:
                raise ValueError(f"rank {rank} of {size}, on its machine {local} of {locals_}")
        except ValueError as error:
            raise InputError(
                f"the launcher's variables make no sense: {error}",
                where="RANK, WORLD_SIZE, LOCAL_RANK",
                mend="start with torchrun or `headwater train`",
            ) from error
        return cls(rank, size, local, locals_, launched=True)

    def device(self, kind: str) -> torch.device:
        """The device of this process: its own GPU on CUDA. UserError if the machine has fewer than processes."""
        if kind != "cuda":
            return torch.device(kind)
        if self.local_rank >= torch.cuda.device_count():
            raise UserError(
                f"process {self.local_rank} of this machine has no GPU: there are {torch.cuda.device_count()}",
                where=f"rank {self.rank}",
                mend="start one process a GPU (torchrun --nproc-per-node)",
            )
        return torch.device("cuda", self.local_rank)


def start(
    world: World, device: torch.device, *, timeout_seconds: float = TIMEOUT_SECONDS, backend: str | None = None
) -> None:
    """Connect with the other processes; nothing to do where there are none or it is done already.

    `backend`: "fake" makes a world without communication, for dry runs of huge layouts in one process.
    """
    if dist.is_initialized() or not (world.launched or backend == "fake"):
        return
    timeout = timedelta(seconds=timeout_seconds)
    if backend == "fake":
        from torch.testing._internal.distributed.fake_pg import FakeStore

        dist.init_process_group("fake", rank=world.rank, world_size=world.size, store=FakeStore())
        return
    # A launcher's store may outlive a start of the ranks (torchrun with a fixed port): addresses of ranks that are gone
    # must not be found in it.
    store, rank, size = next(rendezvous("env://", world.rank, world.size, timeout=timeout))
    store.set_timeout(timeout)
    store = dist.PrefixStore(this_attempt(), store)
    if device.type == "cuda":
        torch.cuda.set_device(device)
        dist.init_process_group(
            "cpu:gloo,cuda:nccl", timeout=timeout, device_id=device, store=store, rank=rank, world_size=size
        )
        return
    dist.init_process_group(backend or "gloo", timeout=timeout, store=store, rank=rank, world_size=size)


def stop() -> None:
    """Leave the process group, if there is one."""
    if dist.is_initialized():
        dist.destroy_process_group()
