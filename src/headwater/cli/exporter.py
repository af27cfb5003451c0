"""`headwater exporter`: figures of this machine and its GPUs for Prometheus."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from headwater.cli.common import Debug, Json, Quiet, Stopped, make_reporter, print_json, until_stopped


def command(
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 lets other machines read.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port; a busy one moves to the next free one.")] = 9100,
    path: Annotated[
        list[Path] | None,
        typer.Option(
            help="A file system to watch beside the local ones; may be repeated.", show_default=False, exists=True
        ),
    ] = None,
    dcgm: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="Take the figures of GPUs from this dcgm-exporter, not from the driver.",
            show_default=False,
        ),
    ] = None,
    targets: Annotated[
        Path | None,
        typer.Option(help="Folder of target files to tell Prometheus in where this is.", show_default=False),
    ] = None,
    json_: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> Stopped | None:  # fmt: skip
    """Serve CPU, memory, disk, network and GPU figures of this machine until Ctrl-C."""
    from headwater.monitor.exporter import Exporter

    reporter = make_reporter(quiet=quiet)
    exporter = Exporter(host, port, paths=path or (), dcgm=dcgm, targets=targets, warn=reporter.warn)
    try:
        if json_:
            print_json({"url": exporter.url, "port": exporter.port})
        else:
            sys.stdout.write(f"figures of this machine at {exporter.url}\n")
            sys.stdout.flush()
        return until_stopped()
    finally:
        exporter.close()
