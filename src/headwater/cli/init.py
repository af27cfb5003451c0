"""`headwater init [PATH]`: a commented recipe to start from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headwater.cli.common import Debug, Json, finish


def command(
    path: Annotated[Path, typer.Argument(help="Where to write it.")] = Path("recipe.yaml"),
    force: Annotated[bool, typer.Option("--force", help="Replace a file that exists.")] = False,
    json_: Json = False,
    debug: Debug = False,
) -> None:
    """Write a commented recipe: every field with its meaning, generated from the schema."""
    from headwater.pipeline.init import starting_recipe, write_recipe

    write_recipe(path, starting_recipe(), force=force)
    facts = {"path": str(path)}
    lines = (
        f"wrote {path}\n  edit collect.sources, then: headwater recipe validate {path}"
        f"\n  and run it:  headwater run {path}"
    )
    finish(facts, lines, as_json=json_)
