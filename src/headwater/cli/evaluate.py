"""`headwater eval`: held-out perplexity and bits per byte, by a recipe, or of a model on files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headwater.cli.common import (
    Debug,
    Json,
    ModelOrRecipe,
    Quiet,
    Set,
    Workspace,
    default_recipe,
    finish,
    is_recipe,
    make_reporter,
    refuse,
    require_exists,
)


def command(
    target: ModelOrRecipe,
    data: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Text files, folders, a corpus or a packed dataset [default: the held-out text of the run's dataset].",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Also write results.json and results.md here.", show_default=False),
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, mps.")] = "auto",
    workspace: Workspace = None,
    set_: Set = None,
    json_: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Score a model on held-out text, beside baselines where there is text to train them on.

    On files, `--set evaluate.stride=128` and the like change the settings.
    """
    reporter = make_reporter(quiet=quiet)
    if is_recipe(target):
        from headwater.pipeline.runner import run
        from headwater.pipeline.summary import evaluation_lines, summary

        refuse("DATA", bool(data), "goes with a model; a recipe is scored on its own held-out text")
        refuse("--out", out is not None, "goes with a model; a recipe's results go into its workspace")
        refuse("--device", device != "auto", "goes with a model; a recipe is scored on the best device there is")
        result = run(target, workspace=workspace, until="evaluate", overrides=set_ or (), reporter=reporter)
        facts = {**result.to_json(), "summary": summary(result)}
        finish(facts, "\n".join(evaluation_lines(facts["summary"]["evaluation"])), as_json=json_)
        return

    from headwater.evaluate import evaluate_model
    from headwater.pipeline.tracing import dataset_of_model

    refuse("--workspace", workspace is not None, "goes with a recipe, and a model is given")
    require_exists([target, *(data or ())])
    texts = data or [dataset_of_model(target)]
    found = evaluate_model(target, texts, default_recipe(set_).evaluate, device=device, reporter=reporter)
    if out is not None:
        from headwater.core.files import atomic_write

        out.mkdir(parents=True, exist_ok=True)
        atomic_write(out / "results.json", found.json_bytes())
        atomic_write(out / "results.md", found.markdown().encode("utf-8", "surrogatepass"))
    finish(found.as_json(), found.markdown(), as_json=json_)
