"""This process as one rank of a run: connected with the others, and what only rank 0 writes.

In: the layout and the wish for a device. Out: the mesh, and `Ranks` that agree on small things. Rank 0 alone writes the
run's folder and speaks to the person; the others have the same objects, whose writing does nothing.

    with connected(ParallelConfig(), "auto") as (mesh, ranks): ...
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist

from headwater.core.errors import RecipeError
from headwater.parallel import environment
from headwater.parallel.agreement import Ranks
from headwater.parallel.config import ParallelConfig
from headwater.parallel.environment import World
from headwater.parallel.mesh import Mesh, build_mesh
from headwater.train import devices
from headwater.train.run_folder import RunFolder

GRACE_SECONDS = 60.0


@contextmanager
def connected(parallel: ParallelConfig, device_wish: str) -> Iterator[tuple[Mesh, Ranks]]:
    """Connect the processes that a launcher started; a single process without a launcher connects with nobody.

    RecipeError if they are not as many as the layout has ranks, or the device takes one process only; UserError if a
    process has no GPU. A connection that stood before is left standing.
    """
    world = World.from_env()
    if world.size != parallel.ranks:
        raise RecipeError(
            f"the layout is {parallel.describe()}, and {world.size:,} process{'es run' if world.size > 1 else ' runs'}",
            where="parallel",
            mend=f"start {parallel.ranks:,} process{'es' if parallel.ranks > 1 else ''} "
            f"(torchrun --nproc-per-node {parallel.ranks} on one machine), or change the layout",
        )
    kind = devices.choose_device(device_wish).type
    if kind == "mps" and world.size > 1:
        raise RecipeError(
            f"{world.size} processes cannot share an MPS device", where="train.device", mend="set train.device to cpu"
        )
    device = world.device(kind)
    ours = not dist.is_initialized()
    timeout = parallel.timeout_seconds + GRACE_SECONDS  # the watch is to speak first, which knows who is where
    environment.start(world, device, timeout_seconds=timeout)
    try:
        yield build_mesh(parallel, device), Ranks.new(timeout)
    finally:
        if ours:
            environment.stop()


class FollowerRun(RunFolder):
    """A run's folder as ranks other than the first see it: all of it can be read, and nothing is written."""

    def write_json(self, name: str, value: dict[str, Any]) -> None:
        """Rank 0 writes it."""

    def event(self, kind: str, **facts: Any) -> None:
        """Rank 0 writes it."""
