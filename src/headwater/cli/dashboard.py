"""`headwater dashboard WORKSPACE | RUN...`: runs in the browser, live and side by side."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from headwater.cli.common import Debug, Json, Stopped, print_json, until_stopped


def command(
    places: Annotated[
        list[Path] | None,
        typer.Argument(help="Workspaces, folders of runs, and single runs [default: ./workspace].", show_default=False),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="TCP port; a busy one moves to the next free one, 0 takes any.")
    ] = 8090,
    json_: Json = False,
    debug: Debug = False,
) -> Stopped | None:
    """Show runs as a web page of this machine: curves, events, heat maps, mixture, time; several runs compared.

    Only this machine can open it, unless `--host` says otherwise: then the address printed holds a secret that is asked
    for. Over ssh: `ssh -L 8090:127.0.0.1:8090 HOST`. Runs that begin later appear by themselves. Ctrl-C ends it. With
    `--json` the object on stdout is printed when the page can be opened.
    """
    from headwater.monitor.web import RunList
    from headwater.monitor.web.server import DashboardServer

    runs = RunList(places or [Path("workspace")])
    with DashboardServer(runs, host, port) as server:
        if port and server.port != port:
            sys.stderr.write(f"port {port} is in use; the dashboard is on {server.port}\n")
        if json_:
            print_json({"url": server.url, "runs": [reader.path.name for reader in runs.readers().values()]})
        else:
            shown = len(runs.readers())
            sys.stdout.write(f"{shown:,} {'run' if shown == 1 else 'runs'} at {server.url}  (Ctrl-C ends it)\n")
            sys.stdout.flush()
        return until_stopped(server.serve)
