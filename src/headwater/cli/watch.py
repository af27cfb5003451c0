"""`headwater watch RUN`: a run on the terminal, live."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from headwater.cli.common import Debug, Json, Set, Stopped, Workspace, finish, refuse, run_path


def command(
    target: Annotated[
        Path, typer.Argument(help="A run's folder, a workspace (its newest run), or a recipe.", show_default=False)
    ],
    once: Annotated[bool, typer.Option("--once", help="Say it once, as plain lines.")] = False,
    every: Annotated[float, typer.Option(min=0.1, help="Seconds between looks.")] = 2.0,
    workspace: Workspace = None,
    set_: Set = None,
    json_: Json = False,
    debug: Debug = False,
) -> Stopped | None:
    """Show a run while it trains: how far it is, its figures, its loss, what happened last.

    Ends when the run is finished, or with Ctrl-C, which only ends the watching. Where the output is no terminal a line
    is printed whenever something is new. `--json` is one object, once.
    """
    from rich.console import Console

    from headwater.monitor.terminal import follow, summary_text
    from headwater.monitor.web import RunReader

    path = run_path(target, workspace, set_ or ())
    reader = RunReader(path)
    if json_ or once:
        refuse("--once", json_ and once, "is what --json does anyway")
        reader.refresh()
        events = reader.happenings()
        facts = {"run": str(path), **reader.summary(), "figures": reader.figures(), "events": events[-20:]}
        finish(facts, summary_text(reader), as_json=json_)
        return None
    try:
        follow(reader, Console(file=sys.stdout, highlight=False), every)
    except KeyboardInterrupt:
        return Stopped()
    return None
