"""`headwater run RECIPE`: the whole way, skipping what is done."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headwater.cli.common import Debug, Json, Quiet, Set, Workspace, finish, make_reporter


def command(
    recipe: Annotated[Path, typer.Argument(help="The recipe, a YAML or JSON file.", show_default=False)],
    workspace: Workspace = None,
    only: Annotated[
        str | None, typer.Option(help="Run this stage alone; its inputs must be there.", show_default=False)
    ] = None,
    set_: Set = None,
    json_: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Run a recipe from raw text to a served model.

    Stages that are up to date are skipped, a partial one goes on where it stopped.
    """
    from headwater.pipeline.ranks import following
    from headwater.pipeline.runner import run
    from headwater.pipeline.summary import summary, summary_text

    result = run(recipe, workspace=workspace, only=only, overrides=set_ or (), reporter=make_reporter(quiet=quiet))
    if following():  # a rank whose first one speaks for all
        return
    facts = {**result.to_json(), "summary": summary(result)}
    finish(facts, summary_text(facts), as_json=json_)
