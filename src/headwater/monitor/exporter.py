"""The machine's exporter: CPU, memory, disks, file systems and network always, GPUs where there are any.

In: the machine, read at each scrape. Out: `http://HOST:9100/metrics` for Prometheus, with the names of
`MACHINE_METRICS`. A source that fails leaves its figures out and is told by `machine_source_up`.

    headwater exporter --host 0.0.0.0
"""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwater.monitor.endpoints import MetricsServer, publish_target, withdraw_target
from headwater.monitor.exporter_gpu import Dcgm, GpuFigures, Nvml
from headwater.monitor.live_metrics import MACHINE_METRICS
from headwater.monitor.prometheus import family

if TYPE_CHECKING:
    from prometheus_client import core

PORT = 9100
BLOCK_DEVICES = Path("/sys/block")
HELD_IN_MEMORY = ("loop", "ram", "zram")


class Exporter:
    """Serves the machine's figures until `close`. UserError if nothing can be served at the address."""

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = PORT,
        *,
        paths: Sequence[Path] = (),
        dcgm: str | None = None,
        targets: Path | None = None,
        warn: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`paths`: file systems to watch beside the local ones, for example a network file system with checkpoints.
        `dcgm`: the address of a dcgm-exporter to take figures of GPUs from; without it they come from the driver.
        `targets`: a folder of target files for Prometheus."""
        collector = MachineCollector(paths, dcgm)
        self._server = MetricsServer([collector], host, port, where="--port", warn=warn)
        self.port, self.url = self._server.port, self._server.url
        self._target: Path | None = None
        if targets is not None:
            self._target = publish_target(
                targets, "exporter", socket.gethostname(), self._server.target, known_by=str(self.port)
            )

    def close(self) -> None:
        if self._target is not None:
            withdraw_target(self._target)
        self._server.close()


class MachineCollector:
    """What a scrape of the machine gets."""

    def __init__(self, paths: Sequence[Path] = (), dcgm: str | None = None) -> None:
        self._paths = [path.absolute() for path in paths]
        self._dcgm = Dcgm(dcgm) if dcgm is not None else None
        self._nvml = Nvml()
        self._lock = threading.Lock()  # readings of GPUs stand on the one before

    def collect(self) -> Iterator[core.Metric]:
        with self._lock:
            figures, up = self._read()
        figures["source_up"] = {name: float(value) for name, value in up.items()}
        for metric in MACHINE_METRICS:
            if metric.key in figures:
                yield from family(metric, figures[metric.key])

    def _read(self) -> tuple[dict[str, Any], dict[str, bool]]:
        figures: dict[str, Any] = {}
        up: dict[str, bool] = {}
        sources: dict[str, Callable[[], Mapping[str, Any]]] = {
            "cpu": _cpu,
            "memory": _memory,
            "disk": _disks,
            "filesystem": lambda: _file_systems(self._paths),
            "network": _network,
            "gpu": self._gpus,
        }
        for name, source in sources.items():
            try:
                found = source()
            except Exception:  # a machine that hides one thing still has the others; which one is told
                found = {}
            figures.update(found)
            up[name] = bool(found)
        return figures, up

    def _gpus(self) -> dict[str, Any]:
        figures: GpuFigures = {}
        if self._dcgm is not None:
            figures = self._dcgm.read()
        elif self._nvml.available:
            figures = self._nvml.read()
        return {key: _nested(values) for key, values in figures.items()}


def _nested(values: Mapping[tuple[str, ...], float]) -> dict[str, Any]:
    """{(a, b): 1.0} as {a: {b: 1.0}}."""
    made: dict[str, Any] = {}
    for names, value in values.items():
        place = made
        for name in names[:-1]:
            place = place.setdefault(name, {})
        place[names[-1]] = value
    return made


def _cpu() -> dict[str, Any]:
    import psutil

    times = psutil.cpu_times()._asdict()
    # Linux counts the time of guests in user and nice as well: without them the modes add up to all the time.
    modes = {mode: seconds for mode, seconds in times.items() if not mode.startswith("guest")}
    usable = len(os.sched_getaffinity(0)) if sys.platform == "linux" else psutil.cpu_count()
    return {"cpu_seconds": modes, "cpus": usable, "load": os.getloadavg()[0]}


def _memory() -> dict[str, Any]:
    import psutil

    memory = psutil.virtual_memory()
    found = {"memory_total": memory.total, "memory_available": memory.available}
    with suppress(OSError, RuntimeError):  # containers may hide it
        found["swap_used"] = psutil.swap_memory().used
    return found


def _disks() -> dict[str, Any]:
    import psutil

    whole = {path.name for path in BLOCK_DEVICES.iterdir()} if BLOCK_DEVICES.is_dir() else None
    counters = {
        name: counts
        for name, counts in (psutil.disk_io_counters(perdisk=True) or {}).items()
        if (whole is None or name in whole) and not name.startswith(HELD_IN_MEMORY)
    }
    return {
        "disk_read": {name: counts.read_bytes for name, counts in counters.items()},
        "disk_written": {name: counts.write_bytes for name, counts in counters.items()},
    } if counters else {}  # fmt: skip


def _file_systems(paths: Sequence[Path]) -> dict[str, Any]:
    """Local ones once each, under the shortest path; network file systems, which may hang, only where asked for."""
    import psutil

    places: dict[str, str] = {}
    for part in psutil.disk_partitions(all=False):
        if Path(part.mountpoint).is_dir():
            places[part.device] = min(places.get(part.device, part.mountpoint), part.mountpoint, key=len)
    size, free = {}, {}
    for place in dict.fromkeys(["/", *places.values(), *map(str, paths)]):
        with suppress(OSError):
            usage = psutil.disk_usage(place)
            size[place], free[place] = usage.total, usage.free
    return {"filesystem_size": size, "filesystem_free": free}


def _network() -> dict[str, Any]:
    import psutil

    counters = psutil.net_io_counters(pernic=True)
    return {
        "network_received": {name: counts.bytes_recv for name, counts in counters.items()},
        "network_sent": {name: counts.bytes_sent for name, counts in counters.items()},
        "network_errors": {
            name: counts.errin + counts.errout + counts.dropin + counts.dropout for name, counts in counters.items()
        },
    }
