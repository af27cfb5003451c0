"""`headwater status [RECIPE]`: what is done, partial, stale or missing."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headwater.cli.common import Debug, Json, Set, Workspace, finish


def command(
    recipe: Annotated[
        Path | None, typer.Argument(help="A recipe; without one, everything in the workspace.", show_default=False)
    ] = None,
    workspace: Workspace = None,
    set_: Set = None,
    json_: Json = False,
    debug: Debug = False,
) -> None:
    """Show how far each stage is: done, running, partial, stale, missing or waiting."""
    from headwater.cli.common import refuse
    from headwater.pipeline.schema import load
    from headwater.pipeline.status import overview, overview_text, status, status_text

    if recipe is None:
        refuse("--set", bool(set_), "changes a recipe, and none is given")
        facts = overview(workspace or Path("workspace"))
        finish(facts, overview_text(facts), as_json=json_)
        return
    loaded = load(recipe, set_ or ())
    facts = status(loaded, workspace or Path(loaded.config.workspace))
    options = [part for override in set_ or () for part in ("--set", override)]
    options += ["--workspace", str(workspace)] if workspace is not None else []
    finish(facts, status_text(facts, options), as_json=json_)
