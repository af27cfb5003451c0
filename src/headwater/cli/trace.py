"""`headwater trace RUN --step N | --document ID`: which text a step read, and when a text was read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headwater.cli.common import Debug, Json, Set, Workspace, finish, run_path


def command(
    target: Annotated[
        Path, typer.Argument(help="A run's folder, a workspace (its newest run), or a recipe.", show_default=False)
    ],
    step: Annotated[int | None, typer.Option(help="Name the documents of this step.", show_default=False)] = None,
    document: Annotated[
        str | None, typer.Option(help="Name the steps that read the document with this id.", show_default=False)
    ] = None,
    dataset: Annotated[
        Path | None, typer.Option(help="The run's dataset, if it lies elsewhere.", show_default=False)
    ] = None,
    workspace: Workspace = None,
    set_: Set = None,
    json_: Json = False,
    debug: Debug = False,
) -> None:
    """Name the documents of a training step, or the steps that read a document; nothing is scanned."""
    from headwater.pipeline.tracing import trace, trace_text
    from headwater.train.run_folder import RunFolder

    run = RunFolder.open(run_path(target, workspace, set_ or ()))
    facts = trace(run, step=step, document=document, dataset=dataset)
    finish(facts, trace_text(facts), as_json=json_)
