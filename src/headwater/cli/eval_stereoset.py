"""`headwater eval stereoset --predictions FILE`: StereoSet's scores of predictions that exist already."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headwater.cli.common import Debug, Json, finish, require_exists


def command(
    predictions: Annotated[
        Path,
        typer.Option(
            help='In the published format: {"intrasentence": [{"id", "score"}], "intersentence": [...]}.',
            show_default=False,
        ),
    ],
    data: Annotated[
        Path, typer.Option("--data", help="Folder with the data set's dev.json, or that file.", show_default=False)
    ],
    json_: Json = False,
    debug: Debug = False,
) -> None:
    """Score a predictions file: LMS, SS and ICAT, overall, intra- and intersentence, by domain.

    A model is scored with `headwater eval MODEL --tasks stereoset`.
    """
    from headwater.evaluate.stereoset import find_gold, score_predictions

    require_exists([predictions, data])
    found = score_predictions(predictions, find_gold(data))
    found = {**{name: found["scores"]["overall"][name] for name in ("lms", "ss", "icat")}, **found}
    lines = ["| part | LMS | SS | ICAT | triples | terms |", "|---|---:|---:|---:|---:|---:|"]
    for part, facts in found["scores"].items():
        values = " | ".join(f"{facts[name]:.2f}" for name in ("lms", "ss", "icat"))
        lines.append(f"| {part} | {values} | {facts['n']:,} | {facts['terms']:,} |")
    if found["triples_without_predictions"]:
        lines.append(f"\n{found['triples_without_predictions']:,} triples have no prediction and count in no figure.")
    finish(found, "\n".join(lines), as_json=json_)
