"""`headwater lineage TARGET`: from a result back to the raw files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headwater.cli.common import Debug, Json, Set, Workspace, finish, is_recipe


def command(
    target: Annotated[
        str,
        typer.Argument(
            help="A folder of an artifact, run, checkpoint or export; a fingerprint; a run's name; or a recipe.",
            show_default=False,
        ),
    ],
    workspace: Workspace = None,
    set_: Set = None,
    json_: Json = False,
    debug: Debug = False,
) -> None:
    """Show everything a result was made from, back to the raw files' hashes."""
    from headwater.cli.common import refuse
    from headwater.pipeline.schema import load
    from headwater.pipeline.status import last_result, lineage_of, lineage_text

    if is_recipe(Path(target)):
        loaded = load(target, set_ or ())
        workspace = workspace or Path(loaded.config.workspace)
        target = str(last_result(loaded, workspace))
    else:
        refuse("--set", bool(set_), "changes a recipe, and none is given")
    tree = lineage_of(target, workspace or Path("workspace"))
    finish(tree, lineage_text(tree), as_json=json_)
