"""`headwater export`: a Hugging Face folder from a recipe, a run, a checkpoint or another Hugging Face folder."""

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
        Path, typer.Argument(help="A recipe; or a run, a checkpoint, a Hugging Face folder.", show_default=False)
    ],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="New folder for the model.", show_default=False)
    ] = None,
    dtype: Annotated[
        str | None, typer.Option(help="float32, bfloat16 or float16 [default: as stored].", show_default=False)
    ] = None,
    workspace: Workspace = None,
    set_: Set = None,
    json_: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Write a model as a Hugging Face folder, for transformers, vLLM and `headwater serve`."""
    if is_recipe(target):
        from headwater.pipeline.runner import run

        refuse("--out", out is not None, "goes with a model; a recipe's results go into its workspace")
        refuse("--dtype", dtype is not None, "goes with a model; say --set export.dtype=bfloat16")
        reporter = make_reporter(quiet=quiet)
        result = run(target, workspace=workspace, until="export", overrides=set_ or (), reporter=reporter)
        finish(result.to_json(), stage_lines(result), as_json=json_)
        return

    from headwater.pipeline.export import export_model

    refuse("--workspace", workspace is not None, "goes with a recipe; a model goes into --out")
    refuse("--set", bool(set_), "changes a recipe, and none is given")
    require_exists([target])
    folder = require_out(out, "the model")
    facts = export_model(target, folder, dtype=dtype)
    lines = f"{facts['architecture']}, {facts['parameters']:,} parameters, {facts['dtype']}: {folder}"
    if facts["architecture"] != "modernbert":  # an encoder answers nobody
        lines += f"\nserve it  headwater serve {shlex.quote(str(folder))}"
    finish({"path": str(folder), **facts}, lines, as_json=json_)
