"""`headwater check RECIPE`: prove that a layout trains the recipe's model as one process would, before it is run.

Sub-verbs come before a path of the same name (`./cluster` is the path).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from headwater.cli.common import Debug, Json, Quiet, Set, finish, make_reporter

LAYOUT = "layout"


class VerbOrRecipe(TyperGroup):
    """A first word that is no verb is the recipe whose layout is checked."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args or args[0] not in (*self.commands, "--help", "-h"):
            args = [LAYOUT, *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=VerbOrRecipe,
    help="Prove a layout equal to one process with the recipe's own model in small (`headwater check RECIPE --layout "
    "dp=2,tp=2,pp=2,zero=3`); or check something else, by its verb.",
    pretty_exceptions_enable=False,
)


@app.command(LAYOUT)
def layout(
    recipe: Annotated[Path, typer.Argument(help="The recipe, a YAML or JSON file.", show_default=False)],
    layout_: Annotated[
        str | None,
        typer.Option(
            "--layout",
            metavar="NAME=N,...",
            help="dp, dp_replicate, dp_shard, tp, pp, cp, zero, schedule, virtual_stages, micro_batch, cp_method, "
            "precision; what is not named is 1 or the default. Without it, the recipe's own layout.",
            show_default=False,
        ),
    ] = None,
    matrix: Annotated[
        bool, typer.Option("--matrix", help="Check the standard layouts one by one, as many as the model divides by.")
    ] = False,
    timeout: Annotated[float, typer.Option(help="Seconds a layout may take before it counts as hanging.")] = 300.0,
    set_: Set = None,
    json_: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> int:
    """Run three optimizer steps in a layout (real processes on this machine's CPU) and in one process.

    Compares loss, every gradient, gradient norm and weights, and sees that no token is seen where it must not be.

    Exit code 0: they agree; 1: they do not; 2: the layout cannot be run, and why.
    """
    from headwater.pipeline.certify import check_layout, check_matrix, table, text

    reporter = make_reporter(quiet=quiet)
    if matrix:
        results = check_matrix(recipe, overrides=set_ or (), timeout=timeout, reporter=reporter)
        finish({"layouts": [item.to_json() for item in results]}, table(results), as_json=json_)
        return 0 if all(item.agrees for item in results) else 1
    certificate = check_layout(recipe, layout_, overrides=set_ or (), timeout=timeout, reporter=reporter)
    finish(certificate.to_json(), text(certificate), as_json=json_)
    return 0 if certificate.agrees else 1
