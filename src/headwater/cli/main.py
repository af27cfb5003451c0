"""`headwater VERB ...`: the list of verbs, and what happens when one fails.

Exit codes: 0 done, 2 the user's mistake, 1 ours, 130 interrupted. An error is printed as what, where and mend, on
stderr; with `--json` also as one object on stdout: `{"error": {"what", "where", "mend"}, "exit_code"}`. `--debug` shows
the traceback.
"""

from __future__ import annotations

import errno
import os
import sys
import traceback
from collections.abc import Sequence
from io import TextIOWrapper
from pathlib import Path
from typing import Any

import typer
from pydantic import ValidationError

from headwater import __version__
from headwater.cli.common import Stopped, print_json
from headwater.core.errors import HeadwaterError

INTERRUPTED = 130

THEIR_PLACE = frozenset(
    {
        *(errno.EACCES, errno.EPERM, errno.EROFS, errno.EEXIST, errno.ENOTDIR, errno.EISDIR),
        *(errno.ENAMETOOLONG, errno.ELOOP, errno.ENOSPC, errno.EDQUOT),
    }
)
"""Why a file or folder that a person named cannot be read or written, where no part has said it better."""

app = typer.Typer(
    name="headwater",
    help="From raw text to a served language model, by one recipe.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def _root(version: bool = typer.Option(False, "--version", help="Print the version.")) -> None:
    if version:
        sys.stdout.write(f"headwater {__version__}\n")
        raise typer.Exit


WHOLE, RECIPES, STAGES = "The whole way", "Recipes", "One stage: on a recipe, or on files and folders"
WATCHING = "Watching runs and machines"


def _register() -> None:
    """Verbs in the order of `headwater --help`. Their modules import a part only when the verb is called."""
    from headwater.cli import (
        alerts,
        check,
        curate_verbs,
        dashboard,
        dataset_verbs,
        doctor,
        eval_verbs,
        export,
        exporter,
        generate,
        init,
        launch,
        lineage,
        plan,
        recipe,
        report,
        run,
        serve,
        simulate,
        status,
        tokenize,
        trace,
        train,
        watch,
    )

    app.command("run", rich_help_panel=WHOLE)(run.command)
    app.command("status", rich_help_panel=WHOLE)(status.command)
    app.command("lineage", rich_help_panel=WHOLE)(lineage.command)
    app.add_typer(curate_verbs.app, name="curate", rich_help_panel=STAGES)
    app.command("tokenize", rich_help_panel=STAGES)(tokenize.command)
    app.add_typer(dataset_verbs.app, name="dataset", rich_help_panel=STAGES)
    app.command("train", rich_help_panel=STAGES)(train.command)
    app.command("watch", rich_help_panel=WATCHING)(watch.command)
    app.command("dashboard", rich_help_panel=WATCHING)(dashboard.command)
    app.command("report", rich_help_panel=WATCHING)(report.command)
    app.command("doctor", rich_help_panel=WATCHING)(doctor.command)
    app.command("trace", rich_help_panel=WATCHING)(trace.command)
    app.add_typer(eval_verbs.app, name="eval", rich_help_panel=STAGES)
    app.command("export", rich_help_panel=STAGES)(export.command)
    app.command("generate", rich_help_panel=STAGES)(generate.command)
    app.command("serve", rich_help_panel=STAGES)(serve.command)
    app.command("alerts", rich_help_panel=WATCHING)(alerts.command)
    app.command("exporter", rich_help_panel=WATCHING)(exporter.command)
    app.command("init", rich_help_panel=RECIPES)(init.command)
    app.command("plan", rich_help_panel=RECIPES)(plan.command)
    app.command("simulate", rich_help_panel=RECIPES)(simulate.command)
    app.command("launch", rich_help_panel=RECIPES)(launch.command)
    app.add_typer(check.app, name="check", rich_help_panel=RECIPES)
    app.add_typer(recipe.app, name="recipe", rich_help_panel=RECIPES)


_register()


def run_command(arguments: Sequence[str]) -> int:
    """Run one command line; everything it prints is printed; the exit code is returned."""
    options = list(arguments)
    options = options[: options.index("--")] if "--" in options else options
    as_json, debug = "--json" in options, "--debug" in options
    try:
        result = app(args=list(arguments), prog_name="headwater", standalone_mode=False)
        if result == INTERRUPTED:  # typer's answer to a KeyboardInterrupt
            raise KeyboardInterrupt
        if isinstance(result, Stopped):
            return INTERRUPTED
        return result if isinstance(result, int) else 0
    except KeyboardInterrupt:
        error = _error("interrupted; what is finished is kept", "", "run the same command again to go on")
        return _fail(error, INTERRUPTED, as_json)
    except HeadwaterError as failure:
        if debug:
            traceback.print_exc()
        if _another_speaks(failure):
            return failure.exit_code
        error = _error(failure.what, failure.where, failure.mend)
        problems = getattr(failure, "problems", None)
        if problems is not None:
            error["problems"] = [
                {"what": item.what, "where": str(item.place), "field": item.field, "mend": item.mend}
                for item in problems
            ]
        return _fail(error, failure.exit_code, as_json)
    except ValidationError as failure:  # an option's value that a section of the schema refuses
        if debug:
            traceback.print_exc()
        found = failure.errors(include_url=False)[0]
        reason = found["msg"].removeprefix("Value error, ")
        what = f"{'.'.join(map(str, found['loc']))} = {found['input']!r}: {reason}"
        return _fail(_error(what, "", "give another value: see `--help`"), 2, as_json)
    except BrokenPipeError:
        # The reader of our output left (`| head`): not an error, and nothing more can be said on stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as failure:
        if hasattr(failure, "format_message"):  # click's usage errors, whose classes typer keeps to itself
            return _fail(_usage_error(failure), 2, as_json)
        if type(failure).__name__ == "Abort":
            return _fail(_error("interrupted", "", "run the same command again"), INTERRUPTED, as_json)
        if debug:
            traceback.print_exc()
        if isinstance(failure, OSError) and failure.errno in THEIR_PLACE and failure.filename is not None:
            error = _error(
                f"cannot be read or written: {failure.strerror}",
                os.fsdecode(failure.filename2 or failure.filename),  # of a rename, the name that was asked for
                "name another place, or make this one usable: its kind, its permissions, the free space",
            )
            return _fail(error, 2, as_json)
        return _fail(_fault(failure), 1, as_json)


def _another_speaks(failure: HeadwaterError) -> bool:
    """Under torchrun or srun every process runs the command, and what all of them find wrong is said by the first."""
    from headwater.parallel.watchdog import RanksLostError
    from headwater.pipeline.ranks import following

    return following() and not isinstance(failure, RanksLostError)


def _error(what: str, where: str, mend: str) -> dict[str, Any]:
    return {"what": what, "where": where, "mend": mend}


def _usage_error(failure: Any) -> dict[str, Any]:
    context = getattr(failure, "ctx", None)
    command = context.command_path if context is not None else "headwater"
    mend = f"see `{command} --help`"
    message = failure.format_message() or "no verb is given"
    group = getattr(context, "command", None)
    word = message.split("'")[1] if message.startswith("No such command '") else ""
    if word and Path(word).exists():
        verb = "describe" if getattr(group, "name", "") == "recipe" else "run"
        return _error(f"{word!r} is a path, not a verb", command, f"name the verb first: {command} {verb} {word}")
    return _error(" ".join(message.split()), command, mend)


def _fault(failure: Exception) -> dict[str, Any]:
    """An error nobody foresaw: ours, whatever it says."""
    frames = traceback.extract_tb(failure.__traceback__)
    where = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    what = f"{type(failure).__name__}: {failure}".strip().rstrip(":")
    return _error(
        f"{what} (a fault in Headwater, not in what you gave it)", where, "run again with --debug for the traceback"
    )


def _fail(error: dict[str, Any], exit_code: int, as_json: bool) -> int:
    where = f"{error['where']}: " if error["where"] else ""
    mend = f"\n  mend: {error['mend']}" if error["mend"] else ""
    sys.stderr.write(f"error: {where}{error['what']}{mend}\n")
    if as_json:
        print_json({"error": error, "exit_code": exit_code})
    return exit_code


def main() -> None:
    """The `headwater` command."""
    # Read when torch loads its OpenMP library. By default a thread that is done spins for milliseconds until its
    # siblings are, which on a machine that others use too takes their processor time from them: beside one other busy
    # process on 2 cores a training step of 2,048 tokens took 0.4 s with this count, 0.7 s without any spinning and
    # 0.5 to 5 s with the default; alone 0.30, 0.42 and 0.30 s.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # file names need not be text
    sys.exit(run_command(sys.argv[1:]))


if __name__ == "__main__":
    main()
