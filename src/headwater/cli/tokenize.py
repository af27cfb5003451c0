"""`headwater tokenize`: a vocabulary, and text packed into token shards with it."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from headwater.cli.common import (
    Debug,
    Json,
    Quiet,
    Set,
    Workspace,
    default_recipe,
    finish,
    make_reporter,
    one_recipe,
    refuse,
    require_exists,
    require_out,
    stage_lines,
)


def command(
    targets: Annotated[
        list[Path],
        typer.Argument(
            help="A recipe; or text: JSON Lines, Parquet, .txt or .md files, folders of them, a curated corpus.",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Files: new folder for tokenizer/ and dataset/.", show_default=False),
    ] = None,
    tokenizer: Annotated[
        Path | None, typer.Option(help="Files: pack with this tokenizer instead of training one.", show_default=False)
    ] = None,
    split: Annotated[str, typer.Option(help="Files: the split the text becomes, or is taken from.")] = "train",
    workspace: Workspace = None,
    set_: Set = None,
    json_: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Train a tokenizer and pack text into token shards.

    On files, `--set tokenizer.vocab_size=4096` and the like change the settings.
    """
    reporter = make_reporter(quiet=quiet)
    recipe = one_recipe(targets)
    if recipe is not None:
        from headwater.pipeline.runner import run

        refuse("--out", out is not None, "goes with files; a recipe's results go into its workspace")
        refuse("--tokenizer", tokenizer is not None, "goes with files; a recipe trains its own")
        refuse("--split", split != "train", "goes with files; a recipe packs every split")
        result = run(recipe, workspace=workspace, until="dataset", overrides=set_ or (), reporter=reporter)
        finish(result.to_json(), stage_lines(result), as_json=json_)
        return

    from headwater.dataset.files import pack_files
    from headwater.tokenizer.files import train_tokenizer_files

    refuse("--workspace", workspace is not None, "goes with a recipe; files go into --out")
    folder = require_out(out, "the tokenizer and the packed text")
    require_exists(targets)
    settings = default_recipe(set_)
    facts: dict[str, object] = {}
    if tokenizer is None:
        tokenizer = folder / "tokenizer"
        reporter.stage("tokenizer", "train a vocabulary")
        facts["tokenizer"] = train_tokenizer_files(targets, tokenizer, settings.tokenizer, reporter)
    reporter.stage("dataset", "pack into token shards")
    facts["dataset"] = pack_files(
        targets, tokenizer, folder / "dataset", split=split, config=settings.dataset, reporter=reporter
    )
    facts["paths"] = {"tokenizer": str(tokenizer), "dataset": str(folder / "dataset")}
    lines = (
        f"tokenizer {tokenizer}\ndataset   {folder / 'dataset'}\n"
        f"train it  headwater train {shlex.quote(str(folder))} --out RUN"
    )
    finish(facts, lines, as_json=json_)
