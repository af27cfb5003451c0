"""What a cluster does under this run's ranks: links, storage, clocks, memory, versions. Measured, not judged.

In: a mesh (or one process), a folder that all ranks shall share. Out: a `Probe` a rank, gathered on every rank.

    probes = probe(mesh, Ranks.new(), Path("workspace"), megabytes=64)
"""

from __future__ import annotations

import os
import platform
import socket
import statistics
import time
import uuid
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

import torch
import torch.distributed as dist

from headwater.core.files import free_bytes
from headwater.parallel.agreement import Ranks
from headwater.parallel.mesh import AXES, Mesh

LATENCY_ROUNDS = 30
BANDWIDTH_ROUNDS = 5
CLOCK_ROUNDS = 10
PACKAGES = ("headwater", "torch", "numpy")


@dataclass(frozen=True)
class Link:
    """An all-reduce along one axis: seconds for a single number, and bytes/s that each rank sends and receives for a
    large tensor (NCCL's bus bandwidth, 2 (n - 1) / n x bytes / seconds)."""

    ranks: int
    latency_seconds: float
    bandwidth: float


@dataclass(frozen=True)
class Storage:
    """The shared folder from this rank: bytes/s written and synced, bytes/s read back past the page cache where the
    system allows, seconds to sync 4 kB."""

    write_bandwidth: float
    read_bandwidth: float
    fsync_seconds: float


@dataclass(frozen=True)
class Probe:
    """What one rank saw. `clock_seconds` is its clock minus rank 0's."""

    rank: int
    host: str
    links: dict[str, Link]
    storage: Storage
    clock_seconds: float
    free_memory_bytes: int
    free_disk_bytes: int
    versions: dict[str, str] = field(default_factory=dict)


def probe(mesh: Mesh, ranks: Ranks, folder: Path, *, megabytes: int) -> list[Probe]:
    """Measure on all ranks at once, as a run would use them; the probes by rank, on every rank.

    Raises UserError if the folder is not one for all ranks, and what writing to it raises.
    """
    ranks.check_shared(folder, "--workspace")
    size = megabytes << 20
    links = {axis: _link(mesh, group, size) for axis in (*AXES, "world") if (group := mesh.group(axis)) is not None}
    if len(links) == 2:  # one axis is the world
        links.pop("world")
    storage = ranks.together(lambda: _storage(folder, size))[ranks.rank]
    return ranks.gather(
        Probe(
            rank=ranks.rank,
            host=socket.gethostname(),
            links=links,
            storage=storage,
            clock_seconds=_clock(ranks),
            free_memory_bytes=_free_memory(mesh.device),
            free_disk_bytes=free_bytes(folder),
            versions=_versions(mesh.device),
        )
    )


def _link(mesh: Mesh, group: dist.ProcessGroup, size: int) -> Link:
    count = dist.get_world_size(group)
    small = torch.zeros(1, device=mesh.device)
    large = torch.zeros(size // 4, device=mesh.device)
    latency = statistics.median(_timed(small, group, mesh.device) for _ in range(LATENCY_ROUNDS))
    _timed(large, group, mesh.device)
    seconds = statistics.median(_timed(large, group, mesh.device) for _ in range(BANDWIDTH_ROUNDS))
    return Link(count, latency, 2 * (count - 1) / count * size / seconds)


def _timed(tensor: torch.Tensor, group: dist.ProcessGroup, device: torch.device) -> float:
    started = time.perf_counter()
    dist.all_reduce(tensor, group=group)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - started


def _storage(folder: Path, size: int) -> Storage:
    path = folder / f".tmp-probe-{uuid.uuid4().hex[:12]}"
    block = os.urandom(1 << 20)
    try:
        started = time.perf_counter()
        with open(path, "xb") as file:
            for _ in range(size >> 20):
                file.write(block)
            file.flush()
            os.fsync(file.fileno())
        written = time.perf_counter() - started
        with open(path, "rb") as file:
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            started = time.perf_counter()
            while file.read(1 << 20):
                pass
            read = time.perf_counter() - started
        with open(path, "r+b") as file:
            file.write(block[:4096])
            file.flush()
            started = time.perf_counter()
            os.fsync(file.fileno())
            synced = time.perf_counter() - started
    finally:
        with suppress(OSError):
            path.unlink()
    return Storage(size / written, size / read, synced)


def _clock(ranks: Ranks) -> float:
    """This clock minus rank 0's: the least difference of several exchanges, each off by what its message took."""
    differences = []
    for _ in range(CLOCK_ROUNDS):
        ranks.most([0])  # all leave it at nearly the same moment
        times = ranks.gather(time.time())
        differences.append(times[ranks.rank] - times[0])
    return min(differences, key=abs)


def _free_memory(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    with suppress(OSError, ValueError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return 0


def _versions(device: torch.device) -> dict[str, str]:
    found = {name: version(name) for name in PACKAGES} | {"python": platform.python_version()}
    if device.type == "cuda":
        found["cuda"] = str(torch.version.cuda)
        found["gpu"] = torch.cuda.get_device_name(device)
        nccl = torch.cuda.nccl.version()
        found["nccl"] = ".".join(map(str, nccl)) if isinstance(nccl, tuple) else str(nccl)
    return found
