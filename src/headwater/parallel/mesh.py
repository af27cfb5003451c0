"""The ranks of a layout as a grid: which axis a rank stands where on, and whom it talks to along it.

In: a `ParallelConfig` whose ranks are all started. Out: a `Mesh`. Axes, slowest first: pp, dp_replicate, dp_shard, cp,
tp: neighbouring ranks, on one machine, share matrices, which communicate most. Compound axes: `dp` (replicate x shard:
ranks that read different samples), `fsdp` (dp_shard x cp: ranks that share parameters), `loss` (dp x cp: ranks whose
tokens differ), `world`.

    mesh = build_mesh(ParallelConfig(dp_shard=2, tp=2), torch.device("cpu")); mesh.size("tp"), mesh.coordinate("tp")

A single process has the same object without a process group: every size is 1, every group None.
"""

from __future__ import annotations

import math

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from headwater.core.errors import RecipeError
from headwater.parallel.config import ParallelConfig

AXES = ("pp", "dp_replicate", "dp_shard", "cp", "tp")
"""Order of the grid's axes."""

COMPOUND = {
    "dp": ("dp_replicate", "dp_shard"),
    "fsdp": ("dp_shard", "cp"),
    "loss": ("dp_replicate", "dp_shard", "cp"),
    "world": AXES,
}


class Mesh:
    """This rank's place in a layout. Made by `build_mesh` or `Mesh.single`."""

    def __init__(self, config: ParallelConfig, device: torch.device, device_mesh: DeviceMesh | None) -> None:
        self.config, self.device, self.device_mesh = config, device, device_mesh
        self.rank = 0 if device_mesh is None else dist.get_rank()
        self.world = config.ranks
        self._sizes = {axis: int(getattr(config, axis)) for axis in AXES}
        self._compound: dict[str, DeviceMesh] = {}
        if device_mesh is not None:
            # Flattening makes process groups, which all ranks have to do together and in one order: here.
            for name in ("dp", "fsdp", "loss"):
                wide = [axis for axis in COMPOUND[name] if self._sizes[axis] > 1]
                if len(wide) > 1:
                    self._compound[name] = device_mesh[tuple(wide)]._flatten(f"{'_x_'.join(wide)}")

    @classmethod
    def single(cls, device: torch.device, config: ParallelConfig | None = None) -> Mesh:
        """One process that talks to nobody. `config` keeps what does not concern ranks (the micro-batch)."""
        config = config or ParallelConfig()
        if config.ranks != 1:
            raise ValueError(f"{config.describe()} is not one process")
        return cls(config, device, None)

    def size(self, axis: str) -> int:
        """Ranks along an axis of `AXES` or a compound one."""
        return math.prod(self._sizes[name] for name in COMPOUND.get(axis, (axis,)))

    def coordinate(self, axis: str) -> int:
        """This rank's place along an axis, from 0."""
        return self._coordinate(self.rank, axis)

    def _coordinate(self, rank: int, axis: str) -> int:
        place = 0
        for name in COMPOUND.get(axis, (axis,)):
            after = AXES[AXES.index(name) + 1 :]
            stride = math.prod(self._sizes[other] for other in after)
            place = place * self._sizes[name] + rank // stride % self._sizes[name]
        return place

    def group(self, axis: str) -> ProcessGroup | None:
        """The ranks that differ from this one along `axis` only; None where that is this rank alone."""
        if self.size(axis) == 1:
            return None
        if axis == "world":
            return dist.group.WORLD
        return self.submesh(axis).get_group()

    def submesh(self, *axes: str) -> DeviceMesh:
        """The grid along these axes, for `fully_shard` and `parallelize_module`.

        A compound axis counts as one. Several axes keep those of size 1, which `fully_shard` needs for hybrid sharding.
        """
        if self.device_mesh is None:
            raise ValueError("one process has no grid")
        if len(axes) == 1 and axes[0] in self._compound:
            return self._compound[axes[0]]
        names = tuple(self._single_name(axis) for axis in axes)
        return self.device_mesh[names]

    def _single_name(self, axis: str) -> str:
        """The name of the one grid axis that a (compound) axis is."""
        if axis in self._compound:
            return self._compound[axis].mesh_dim_names[0]  # type: ignore[index]
        if axis not in COMPOUND:
            return axis
        wide = [name for name in COMPOUND[axis] if self._sizes[name] > 1]
        return wide[0] if wide else COMPOUND[axis][0]

    def maximum(self, value: float) -> float:
        """The largest value of all ranks, on every rank."""
        if (world := self.group("world")) is None:
            return value
        wide = torch.float32 if self.device.type == "mps" else torch.float64
        shared = torch.tensor(value, dtype=wide, device=self.device)
        dist.all_reduce(shared, dist.ReduceOp.MAX, group=world)
        return float(shared)

    def place(self, rank: int | None = None) -> str:
        """`rank 5 (pp 1, tp 1)`: axes with more than one rank."""
        rank = self.rank if rank is None else rank
        axes = ", ".join(f"{axis} {self._coordinate(rank, axis)}" for axis in AXES if self._sizes[axis] > 1)
        return f"rank {rank}" + (f" ({axes})" if axes else "")


def build_mesh(config: ParallelConfig, device: torch.device) -> Mesh:
    """The mesh of a layout, once the process group stands (`environment.start`); without one, a single process.

    RecipeError if there are not as many processes as the layout has ranks.
    """
    started = dist.get_world_size() if dist.is_initialized() else 1
    if started != config.ranks:
        raise RecipeError(
            f"the layout is {config.describe()}, and {started:,} process{'es run' if started > 1 else ' runs'}",
            where="parallel",
            mend=f"start {config.ranks:,} processes (torchrun --nproc-per-node {config.ranks}), or change the layout",
        )
    if not dist.is_initialized():
        return Mesh.single(device, config)
    sizes = tuple(int(getattr(config, axis)) for axis in AXES)
    return Mesh(config, device, init_device_mesh(device.type, sizes, mesh_dim_names=AXES))
