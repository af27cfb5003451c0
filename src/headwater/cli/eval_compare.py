"""`headwater eval compare A B`: two models' results on the same items."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headwater.cli.common import Debug, Json, finish, require_exists
from headwater.core.errors import UserError


def command(
    first: Annotated[
        Path, typer.Argument(help="Results of A: the --out folder, or one file of records.", show_default=False)
    ],
    second: Annotated[Path, typer.Argument(help="Results of B, under the same protocol.", show_default=False)],
    tasks: Annotated[
        list[str] | None,
        typer.Option(help="Only these, with commas between [default: all in both].", show_default=False),
    ] = None,
    confidence: Annotated[float, typer.Option(help="Of the intervals.")] = 0.95,
    resamples: Annotated[int, typer.Option(help="Draws of items.")] = 2000,
    seed: Annotated[int, typer.Option(help="Of the draws.")] = 0,
    json_: Json = False,
    debug: Debug = False,
) -> None:
    """Say whether B differs from A, item by item: intervals, exact tests, and what so many items could show.

    Results of different protocols are refused: another prompt or tokenizer makes another number.
    """
    from headwater.evaluate.compare import compare, compare_text

    require_exists([first, second])
    if not 0 < confidence < 1:
        raise UserError(f"{confidence} is no confidence", where="--confidence", mend="give a number between 0 and 1")
    if resamples < 100:
        raise UserError(f"{resamples} draws are too few for an interval", where="--resamples", mend="give 100 or more")
    wanted = [name.strip() for value in tasks or () for name in value.split(",") if name.strip()]
    found = compare(first, second, tasks=wanted, confidence=confidence, resamples=resamples, seed=seed)
    finish(found, compare_text(found), as_json=json_)
