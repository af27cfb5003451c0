"""`headwater train`: a model from a recipe, or from a packed dataset and its tokenizer."""

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
    is_recipe,
    make_reporter,
    refuse,
    require_exists,
    require_out,
    stage_lines,
)


def command(
    target: Annotated[
        Path,
        typer.Argument(
            help="A recipe; or a dataset's folder, or the folder `headwater tokenize` wrote.", show_default=False
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Files: the run's folder; one that exists goes on.", show_default=False),
    ] = None,
    tokenizer: Annotated[
        Path | None, typer.Option(help="Files: the tokenizer the dataset was packed with.", show_default=False)
    ] = None,
    workspace: Workspace = None,
    set_: Set = None,
    json_: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Train a model, or go on training it.

    A layout of several ranks is started on this machine, or joined under torchrun and srun. On files,
    `--set model.hidden_size=256 --set train.tokens=1e7` and the like change the settings.
    """
    from headwater.pipeline.ranks import following

    reporter = make_reporter(quiet=quiet or following())
    if is_recipe(target):
        from headwater.pipeline.runner import run

        refuse("--out", out is not None, "goes with files; a recipe's runs go into its workspace")
        refuse("--tokenizer", tokenizer is not None, "goes with files; a recipe trains its own")
        result = run(target, workspace=workspace, until="train", overrides=set_ or (), reporter=reporter)
        if not following():
            finish(result.to_json(), stage_lines(result), as_json=json_)
        return

    from headwater.pipeline.training import train_files

    refuse("--workspace", workspace is not None, "goes with a recipe; files go into --out")
    require_exists([target])
    whole = (target / "dataset").is_dir()
    dataset = target / "dataset" if whole else target
    if tokenizer is None and whole and (target / "tokenizer").is_dir():
        tokenizer = target / "tokenizer"
    folder = require_out(out, "the run")
    done = train_files(default_recipe(set_), dataset, tokenizer, folder, reporter)
    if following():
        return
    facts = {"run": str(done.path), **done.final_record}
    lines = f"run       {done.path}\nexport it headwater export {shlex.quote(str(done.path))} --out MODEL"
    finish(facts, lines, as_json=json_)
