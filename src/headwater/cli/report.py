"""`headwater report RUN`: one HTML file of a run, or of several side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headwater.cli.common import Debug, Json, Set, Workspace, finish, run_path


def command(
    target: Annotated[
        Path, typer.Argument(help="A run's folder, a workspace (its newest run), or a recipe.", show_default=False)
    ],
    compare: Annotated[
        list[Path] | None,
        typer.Option("--compare", metavar="RUN", help="Another run beside it; may be repeated.", show_default=False),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="File to write [default: report.html in the run's folder, or here with --compare].", show_default=False
        ),
    ] = None,
    workspace: Workspace = None,
    set_: Set = None,
    json_: Json = False,
    debug: Debug = False,
) -> None:
    """Write one HTML file that holds all there is to see of a run, finished or not, and needs no network."""
    from headwater.monitor import write_report

    run = run_path(target, workspace, set_ or ())
    others = [run_path(path, None, ()) for path in compare or ()]
    path = out or (Path("report.html") if others else run / "report.html")
    write_report(run, path, compare=others)
    finish({"report": str(path), "runs": [str(one) for one in (run, *others)]}, str(path), as_json=json_)
