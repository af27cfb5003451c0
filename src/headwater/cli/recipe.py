"""`headwater recipe validate|describe|explain`: look at a recipe without running it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headwater.cli.common import Debug, Json, Set, finish

app = typer.Typer(
    help="Check a recipe, see what it amounts to, look up what a field means.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

Recipe = Annotated[Path, typer.Argument(help="The recipe, a YAML or JSON file.", show_default=False)]


@app.command("validate")
def validate(recipe: Recipe, set_: Set = None, json_: Json = False, debug: Debug = False) -> None:
    """Check every key and value of a recipe; list all mistakes at once."""
    from headwater.pipeline.checks import missing_to_run
    from headwater.pipeline.schema import load

    loaded = load(recipe, set_ or ())
    missing = missing_to_run(loaded)
    facts = {
        "valid": True,
        "recipe": loaded.source,
        "name": loaded.config.name,
        "missing_to_run": [
            {"field": item.field, "where": str(item.place), "what": item.what, "mend": item.mend} for item in missing
        ],
    }
    lines = [f"{loaded.source} is valid"]
    lines += [f"  to run it here: {item.what}\n    mend: {item.mend}" for item in missing]
    finish(facts, "\n".join(lines), as_json=json_)


@app.command("describe")
def describe(recipe: Recipe, set_: Set = None, json_: Json = False, debug: Debug = False) -> None:
    """Say what a recipe amounts to: parameters, tokens, batch, steps, layout, and what it lacks to run here."""
    from headwater.pipeline import describe as part
    from headwater.pipeline.schema import load

    facts = part.describe(load(recipe, set_ or ()))
    finish(facts, part.describe_text(facts), as_json=json_)


@app.command("explain")
def explain(
    field: Annotated[
        str | None,
        typer.Argument(
            help="A field, such as train.optimizer.lr or only lr; without one, all of them.", show_default=False
        ),
    ] = None,
    json_: Json = False,
    debug: Debug = False,
) -> None:
    """Say what a field means: type, unit, default, whether it changes the result, other names, who reads it."""
    from headwater.pipeline.explain import describe_entry, entries, find_entries, list_entries
    from headwater.pipeline.schema import Recipe as Schema
    from headwater.pipeline.stages import section_uses

    known = entries(Schema, section_uses())
    found = known if field is None else find_entries(field, known)
    text = list_entries(found) if field is None else "\n\n".join(describe_entry(entry) for entry in found)
    finish({"fields": [entry.to_json() for entry in found]}, text, as_json=json_)
