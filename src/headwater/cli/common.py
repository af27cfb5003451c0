"""What all verbs share: options, the reporter, and how a result is printed.

With `--json` a verb prints one JSON object on stdout and nothing else there; progress, decisions and warnings go to
stderr in any case.

    finish({"stages": []}, "nothing to do", as_json=json_)
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headwater.core.errors import InputError, UserError
from headwater.core.progress import Reporter

if TYPE_CHECKING:
    from headwater.pipeline.runner import RunResult
    from headwater.pipeline.schema import Recipe

RECIPE_SUFFIXES = (".yaml", ".yml")

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Say only warnings and the result.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite another result in --out.")]
Workspace = Annotated[
    Path | None,
    typer.Option(
        "--workspace",
        "-w",
        help="Folder of artifacts and runs [default: the recipe's, or ./workspace].",
        show_default=False,
    ),
]
ModelOrRecipe = Annotated[
    Path,
    typer.Argument(help="A model (export, Hugging Face folder, run, checkpoint), or a recipe.", show_default=False),
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="FIELD=VALUE", help="Override a field of the recipe; may be repeated.", show_default=False
    ),
]


class Stopped:
    """A verb's answer when Ctrl-C was the way to end it: exit code 130, and nothing to go on with."""


class _Ended(KeyboardInterrupt):
    """SIGTERM."""


def until_stopped(serve: Callable[[], object] | None = None) -> Stopped | None:
    """Serve, or wait while others do, until Ctrl-C, or SIGTERM, by which systemd and Kubernetes end what ran in order:
    exit code 0."""

    def end(*_: object) -> None:
        raise _Ended

    handlers: dict[signal.Signals, Any] = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: end}
    before = {sign: signal.signal(sign, handler) for sign, handler in handlers.items()}
    try:
        (serve or threading.Event().wait)()
    except _Ended:
        return None
    except KeyboardInterrupt:
        sys.stderr.write("stopped\n")
        return Stopped()
    finally:
        for sign, handler in before.items():
            signal.signal(sign, handler)
    return None


def make_reporter(*, quiet: bool = False) -> Reporter:
    """Speaks on stderr, so that stdout holds the result alone."""
    return Reporter(quiet=quiet)


def print_json(value: Any) -> None:
    """One JSON object on stdout, keys in the order given."""
    import orjson

    from headwater.core.jsonl import json_safe

    sys.stdout.buffer.write(
        orjson.dumps(json_safe(value), option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS) + b"\n"
    )
    sys.stdout.flush()


def finish(result: dict[str, Any], text: str, *, as_json: bool) -> None:
    """Print a verb's result: the object with `--json`, else the text."""
    if as_json:
        print_json(result)
    else:
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()


def is_recipe(path: Path) -> bool:
    """Whether a target of a stage verb is a recipe (by its suffix), not a file or folder of data."""
    return path.suffix in RECIPE_SUFFIXES and not path.is_dir()


def one_recipe(targets: Sequence[Path]) -> Path | None:
    """The recipe, if the targets are one; None if they are data. Raises UserError for a mixture of both."""
    recipes = [path for path in targets if is_recipe(path)]
    if not recipes:
        return None
    if len(targets) > 1:
        raise UserError(
            f"{recipes[0]} is a recipe and stands beside other inputs", mend="give one recipe, or files and folders"
        )
    return recipes[0]


def default_recipe(overrides: Sequence[str] | None) -> Recipe:
    """Settings for work on files: a recipe's defaults with `--set` on top."""
    from headwater.pipeline.schema import loads

    return loads("schema: 1", overrides or (), name="--set").config


def model_of(target: Path, workspace: Path | None, overrides: Sequence[str] | None, *, quiet: bool) -> Path:
    """The model's folder a verb works on: the target itself, or what a recipe exports (made first if need be)."""
    if not is_recipe(target):
        refuse("--workspace", workspace is not None, "goes with a recipe, and a model is given")
        refuse("--set", bool(overrides), "changes a recipe, and a model is given")
        require_exists([target])
        return target
    from headwater.pipeline.runner import run

    reporter = make_reporter(quiet=quiet)
    result = run(target, workspace=workspace, until="export", overrides=overrides or (), reporter=reporter)
    return result.export_folder


def run_path(target: Path, workspace: Path | None, overrides: Sequence[str]) -> Path:
    """The folder of the run to look at: the target itself, a workspace's newest run, or the run of a recipe.

    Raises InputError where there is none.
    """
    if is_recipe(target):
        from headwater.pipeline.status import run_of

        return run_of(target, overrides, workspace).path
    refuse("--set", bool(overrides), "changes a recipe, and none is given")
    refuse("--workspace", workspace is not None, "goes with a recipe; a run's folder lies in its workspace")
    require_exists([target])
    from headwater.monitor.web.runs import is_run, newest_run

    if is_run(target):
        return target
    newest = newest_run(target)
    if newest is None:
        raise InputError(
            "no training run here: run.json is missing, and so are metrics.jsonl and runs in a folder `runs`",
            where=str(target),
            mend="give the folder of a run, or a workspace",
        )
    return newest


def stage_lines(result: RunResult) -> str:
    """What a stage verb did with a recipe, a line a stage."""
    words = {"up_to_date": "up to date", "built": "done", "resumed": "finished"}
    return "\n".join(f"{stage.stage:<10} {words[stage.action]:<11} {stage.path}" for stage in result.stages)


def require_out(out: Path | None, what: str) -> Path:
    """The `--out` folder that working on files needs."""
    if out is None:
        raise UserError(f"no folder is named for {what}", where="--out", mend="add --out DIR")
    return out


def write_named(path: Path, data: bytes) -> None:
    """Write a file where a person asked for it; folders above it are made."""
    from headwater.core.files import atomic_write

    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(path, data)


def require_exists(paths: Sequence[Path]) -> None:
    """Raises InputError for the first path that does not exist."""
    for path in paths:
        if not path.exists():
            raise InputError("no such file or folder", where=str(path), mend="check the path")


def refuse(option: str, given: bool, why: str) -> None:
    """An option that has no meaning with this kind of target is refused, not ignored."""
    if given:
        raise UserError(f"{option} {why}", where=option, mend=f"leave out {option}")


def require_beside(inputs: Sequence[Path], out: Path) -> None:
    """Raises UserError for a folder of results inside a folder of inputs: the next run would read it."""
    for path in inputs:
        if path.is_dir() and out.resolve().is_relative_to(path.resolve()):
            raise UserError(
                f"the result would lie inside the input {path}, and be read with it the next time",
                where=f"--out {out}",
                mend="name a folder outside",
            )


def require_documents(
    documents: int,
    folder: Path,
    bad: Mapping[str, int],
    passed_over: Mapping[str, int],
    check: str = "the files, --text-field and --kind",
) -> None:
    """Work on files that met no document at all is not done: what was read says so, and why. Raises InputError;
    the files of the result, which hold nothing but the quarantine, are written by then."""
    if documents:
        return
    counts = [f"{reason} {count:,}" if count else reason for reason, count in {**bad, **passed_over}.items()]
    raise InputError(
        f"there is no document in the inputs ({', '.join(counts) or 'nothing at all'})",
        where=str(folder),
        mend=f"check {check}" + ("; the quarantine names file and line" if bad else ""),
    )
