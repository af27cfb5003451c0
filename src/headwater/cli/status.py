"""`headwater status [RECIPE]`: what is done, partial, stale or missing."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from headwater.cli.common import Debug, Json, Set, Workspace, finish, make_reporter, refuse
from headwater.core.errors import UserError


def command(
    recipe: Annotated[
        Path | None, typer.Argument(help="A recipe; without one, everything in the workspace.", show_default=False)
    ] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Read every result and checkpoint, and say what has changed on the disk.")
    ] = False,
    workspace: Workspace = None,
    set_: Set = None,
    json_: Json = False,
    debug: Debug = False,
) -> int:
    """Show how far each stage is: done, running, partial, stale, missing or waiting.

    With --verify contents are held against their SHA-256, and the exit code is 1 where something is damaged.
    """
    from headwater.pipeline.schema import load
    from headwater.pipeline.status import overview, overview_text, status, status_text

    reporter = make_reporter() if verify else None
    if recipe is None:
        refuse("--set", bool(set_), "changes a recipe, and none is given")
        if workspace is not None and workspace.exists() and not workspace.is_dir():
            raise UserError(
                "a file, not a workspace", where=str(workspace), mend="name the folder of artifacts and runs"
            )
        facts = overview(workspace or Path("workspace"), reporter)
        finish(facts, overview_text(facts), as_json=json_)
        return _code([*facts["artifacts"], *facts["runs"]], verify)
    loaded = load(recipe, set_ or ())
    facts = status(loaded, workspace or Path(loaded.config.workspace), reporter)
    options = [part for override in set_ or () for part in ("--set", override)]
    options += ["--workspace", str(workspace)] if workspace is not None else []
    finish(facts, status_text(facts, options), as_json=json_)
    return _code(facts["stages"], verify)


def _code(items: list[dict[str, Any]], verify: bool) -> int:
    return int(verify and any(item["state"] == "damaged" for item in items))
