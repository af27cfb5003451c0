"""`headwater check RECIPE`: prove that a layout trains the recipe's model as one process would, before it is run.

Sub-verbs come before a path of the same name (`./cluster` is the path).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from headwater.cli.common import Debug, Json, Quiet, Set, finish, make_reporter, print_json, refuse

if TYPE_CHECKING:
    from headwater.parallel.config import ParallelConfig

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
    from headwater.pipeline.certify import TABLE_HEAD, check_layout, check_matrix, table_row, text

    reporter = make_reporter(quiet=quiet)
    if matrix:
        refuse("--layout", layout_ is not None, "names one layout, and --matrix checks the standard ones")
        results = []
        for certificate in check_matrix(recipe, overrides=set_ or (), timeout=timeout, reporter=reporter):
            results.append(certificate)
            if not json_:  # a row as soon as it is known: the whole takes minutes
                sys.stdout.write(f"{TABLE_HEAD}\n" if len(results) == 1 else "")
                sys.stdout.write(f"{table_row(certificate)}\n")
                sys.stdout.flush()
        if json_:
            print_json({"layouts": [item.to_json() for item in results]})
        return 0 if all(item.agrees for item in results) else 1
    certificate = check_layout(recipe, layout_, overrides=set_ or (), timeout=timeout, reporter=reporter)
    finish(certificate.to_json(), text(certificate), as_json=json_)
    return 0 if certificate.agrees else 1


@app.command("cluster")
def cluster(
    recipe: Annotated[
        Path | None,
        typer.Argument(help="A recipe, for its layout, workspace and checkpoints.", show_default=False),
    ] = None,
    ranks: Annotated[
        int | None, typer.Option(help="Without a recipe: so many ranks on this machine.", min=1, show_default=False)
    ] = None,
    workspace: Annotated[
        Path | None,
        typer.Option(
            "--workspace",
            "-w",
            help="The folder whose storage is measured [default: the recipe's].",
            show_default=False,
        ),
    ] = None,
    megabytes: Annotated[int, typer.Option(help="Size of a message and of a rank's file.", min=1, max=16384)] = 64,
    set_: Set = None,
    json_: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> int:
    """Measure the machines before a run: a collective on each axis of the layout, storage, clocks, memory, versions.

    Alone it starts the layout's ranks on this machine; under torchrun or srun it takes those that were started.

    Exit code 0: fit for a run (warnings are for you to weigh); 1: not.
    """
    from headwater.pipeline.cluster_check import check_cluster
    from headwater.pipeline.ranks import following, joined

    reporter = make_reporter(quiet=quiet or following())
    layout, place, device, checkpoint = _cluster_of(recipe, ranks, workspace, set_ or (), launched=joined())
    result = check_cluster(
        layout, place, reporter=reporter, device=device, megabytes=megabytes, checkpoint_bytes=checkpoint
    )
    if not following():
        finish(result.to_json(), result.text(), as_json=json_)
    return 0 if result.fit else 1


def _cluster_of(
    recipe: Path | None, ranks: int | None, workspace: Path | None, overrides: Sequence[str], *, launched: bool
) -> tuple[ParallelConfig, Path, str, int]:
    """(layout, folder, device, bytes of a checkpoint)."""
    from headwater.parallel.config import ParallelConfig
    from headwater.train.estimate import state_size

    if recipe is None:
        refuse("--set", bool(overrides), "changes a recipe, and none is given")
        count = int(os.environ["WORLD_SIZE"]) if launched else ranks or 1
        return ParallelConfig(dp_replicate=count), workspace or Path(), "auto", 0
    refuse("--ranks", ranks is not None, "is for checks without a recipe, whose layout says how many")
    from headwater.pipeline.schema import load

    config = load(recipe, overrides).config
    size = state_size(config.sized_model, config.train).checkpoint
    return config.parallel, workspace or Path(config.workspace), config.train.device, size
