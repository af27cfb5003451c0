"""Where figures can be scraped: an HTTP endpoint on a free port, and the target files by which Prometheus finds it.

In: collectors, an address. Out: `http://HOST:PORT/metrics` until `close`; a busy port moves to the next free one. A
target file is one JSON file a process in a folder that several runs share (Prometheus' `file_sd_configs`); files of
processes that are gone are removed by whoever publishes next.

    server = MetricsServer([collector], "127.0.0.1", 8000, where="monitor.prometheus", warn=print)
    target = publish_target(Path("runs/prometheus-targets"), "run", "run-1", server.target)
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from headwater.core.errors import UserError
from headwater.core.files import atomic_write
from headwater.core.jsonl import parse_json, pretty_json
from headwater.core.locks import machine_id, process_start

if TYPE_CHECKING:
    from prometheus_client.registry import Collector

PORTS_TRIED = 50
META = "__meta_headwater_"
"""Prefix of the labels that say whose a target is; Prometheus drops `__meta_` labels after discovery."""

Kind = Literal["run", "exporter"]

EVERYWHERE = ("", "0.0.0.0", "::")


class MetricsServer:
    """Serves collectors until `close`. `port` is the one it got, `url` where it answers, `target` what a scraper on
    another machine calls it."""

    def __init__(
        self, collectors: Sequence[Collector], host: str, port: int, *, where: str, warn: Callable[[str], None]
    ) -> None:
        from prometheus_client import CollectorRegistry

        registry = CollectorRegistry()
        for collector in collectors:
            registry.register(collector)
        self.port = self._serve(registry, host, port, where)
        if self.port != port:
            warn(f"port {port} is in use; metrics are served on {_joined(host, self.port)}")
        self.url = f"http://{_joined('127.0.0.1' if host in EVERYWHERE else host, self.port)}/metrics"
        self.target = _joined(socket.gethostname() if host in EVERYWHERE else host, self.port)

    def _serve(self, registry: Collector, host: str, wished: int, where: str) -> int:
        from prometheus_client import start_http_server

        for port in range(wished, min(wished + PORTS_TRIED, 65536)):
            try:
                self._server, self._thread = start_http_server(port, host, registry=registry)
                return port
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise UserError(
                        f"cannot serve metrics on {_joined(host, port)}: {error.strerror}",
                        where=where,
                        mend="choose another host or port",
                    ) from error
        raise UserError(
            f"no free port among {wished}..{min(wished + PORTS_TRIED, 65536) - 1}",
            where=where,
            mend="choose another port",
        )

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(timeout=5)


def _joined(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def publish_target(folder: Path, kind: Kind, name: str, target: str, *, known_by: str = "") -> Path:
    """Write the target file of this process, after removing those of processes of this machine that are gone.

    `known_by` tells it from others of that kind and name: of one kind, name and `known_by` there is one file, whichever
    machine wrote it before. DiskSpaceError, OSError as writing does.
    """
    folder.mkdir(parents=True, exist_ok=True)
    sweep_targets(folder)
    readable = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")[:80] or "unnamed"
    mark = hashlib.sha256(f"{name}\0{known_by}".encode("utf-8", "surrogateescape")).hexdigest()[:8]
    path = folder / f"{kind}-{readable}-{mark}.json"
    labels = {f"{META}{key}": value for key, value in {"kind": kind, "name": name, **_this_process()}.items()}
    atomic_write(path, pretty_json([{"targets": [target], "labels": labels}]))
    return path


def withdraw_target(path: Path) -> None:
    """Remove a target file, unless another process has put its own in its place."""
    if _this_process().items() <= _owner(path).items():
        path.unlink(missing_ok=True)


def sweep_targets(folder: Path) -> list[Path]:
    """Remove target files of processes of this machine that are gone (killed before they could); which those were.

    Files of other machines, and files that Headwater did not write, stay.
    """
    machine, removed = machine_id(), []
    for path in sorted(folder.glob("*.json")):
        owner = _owner(path)
        if owner.get("machine") != machine or not owner.get("pid", "").isdigit():
            continue
        if process_start(int(owner["pid"])) != owner.get("start"):
            with suppress(OSError):
                path.unlink()
                removed.append(path)
    return removed


def _this_process() -> dict[str, str]:
    return {"machine": machine_id(), "pid": str(os.getpid()), "start": process_start(os.getpid()) or ""}


def _owner(path: Path) -> dict[str, str]:
    """Whose target file it is; {} for one that is not ours or cannot be read."""
    try:
        labels = parse_json(path.read_bytes())[0]["labels"]
        return {key.removeprefix(META): str(value) for key, value in labels.items() if key.startswith(META)}
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return {}
