"""Running a task: items in chunks through a backend, a record for each, figures with their uncertainty.

    result = run_task(spec, backend, folder=Path("data"), records=Path("out/records/piqa.jsonl"))
    result.metrics["acc"]      # Figure(value=0.61, stderr=0.013, n=1286)

Records are appended as items are done, so an interrupted task goes on where it stopped; records of another protocol
are refused.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from headwater.core.artifacts import fingerprint
from headwater.core.config import identity
from headwater.core.errors import InputError, UserError
from headwater.core.jsonl import JsonlLog, read_jsonl
from headwater.core.progress import SILENT, Reporter
from headwater.evaluate.backends import Backend
from headwater.evaluate.harm import refusal  # noqa: F401 - registers readers and a scorer
from headwater.evaluate.sandbox import open_sandbox
from headwater.evaluate.tasks import (  # noqa: F401 - they register readers and scorers
    coherence,
    formats,
    numbers,
    preferences,
)
from headwater.evaluate.tasks.answers import Record, Tools, answer
from headwater.evaluate.tasks.data import Rows, load_rows
from headwater.evaluate.tasks.figures import Figure, figures, mean
from headwater.evaluate.tasks.items import Item, Items, make_items
from headwater.evaluate.tasks.readers import expand
from headwater.evaluate.tasks.spec import TaskSpec

__all__ = ["Figure", "TaskResult", "figures", "mean", "run_task"]

CHUNK = 128
WRITTEN_CHUNK = 32
"""Items between two writes of records, of likelihoods and of generated texts: what an interruption costs at most."""


@dataclass(frozen=True, slots=True)
class TaskResult:
    """What a task found. `groups`: figures by subject; `set_aside`: (row, reason) of rows that are no questions;
    `protocol` and `fingerprint`: all that decides the number besides the weights. Records with `failed` were not
    scored."""

    task: str
    metrics: dict[str, Figure]
    groups: dict[str, dict[str, Figure]]
    set_aside: list[tuple[int, str]]
    protocol: dict[str, Any]
    fingerprint: str
    headline: str
    seconds: float
    records: list[dict[str, Any]] = field(repr=False, default_factory=list)


@dataclass(frozen=True, slots=True)
class Questions:
    """A task's data, read: items, and the part of the protocol that data decides."""

    items: Items
    data: Rows
    examples: Rows | None
    rows: int

    @property
    def protocol(self) -> dict[str, Any]:
        shots = self.examples
        return {
            "data": self.data.sha256 or self.data.source,
            "examples": (shots.sha256 or shots.source) if shots else None,
            "rows": self.rows,
        }


def questions(spec: TaskSpec, *, folder: Path | None = None, limit: int | None = None) -> Questions:
    """Read a task's rows. InputError for data that cannot be read or holds no question."""
    if spec.rows:
        data = Rows(list(spec.rows), f"task {spec.name}", None)
    else:
        data = load_rows(spec.files, folder=folder, hub=spec.hub, task=spec.name)
        data = replace(data, rows=expand(spec.reader, data.rows))
    shots = None
    if spec.fewshot.count and not spec.fewshot.rows:
        shots = load_rows(spec.fewshot.files, folder=folder, hub=spec.fewshot.hub, task=f"{spec.name} (examples)")
        shots = replace(shots, rows=expand(spec.reader, shots.rows))
    made = make_items(spec, data.rows[:limit], shots.rows if shots else ())
    if not made.items:
        reason = f"; row {made.set_aside[0][0]} {made.set_aside[0][1]}" if made.set_aside else ""
        raise InputError(f"task {spec.name}: no row is a question{reason}", where=data.source)
    return Questions(made, data, shots, len(data.rows[:limit]))


def run_task(
    spec: TaskSpec,
    backend: Backend,
    *,
    folder: Path | None = None,
    limit: int | None = None,
    records: Path | None = None,
    tools: Tools | None = None,
    reporter: Reporter = SILENT,
) -> TaskResult:
    """Score a task. folder: data in the original formats (None: the hub). limit: only the first so many rows. records:
    where each item's record is kept; an existing file is continued. tools: the sandbox of a task of code (None: the
    strongest this machine has, at least reduced) and more.

    Raises InputError for data that cannot be read or holds no question, UserError for records of another protocol or a
    sandbox that cannot be had.
    """
    started = time.monotonic()
    asked = questions(spec, folder=folder, limit=limit)
    protocol = {"task": identity(spec), **asked.protocol, "reads": backend.facts}
    print_ = fingerprint("task", spec.version, protocol, {})
    head = {"fingerprint": print_, "task": spec.name, "model": backend.model}
    with contextlib.ExitStack() as stack:
        tools = tools or Tools()
        if spec.kind == "code" and tools.sandbox is None:
            tools = replace(tools, sandbox=stack.enter_context(open_sandbox()))
        if records is not None:
            done, log = _continued(records, head)
            stack.callback(log.close)
        else:
            done, log = [], None
        items = asked.items.items
        bar = stack.enter_context(reporter.progress(spec.name, total=len(items) - len(done), unit="items"))
        for record in _answers(spec, backend, items, len(done), tools, bar.advance):
            done.append(record)
            if log is not None:
                log.append(record)
    metrics, groups = figures(done, spec.kind, spec.scorer)
    return TaskResult(
        spec.name,
        metrics,
        groups,
        asked.items.set_aside,
        protocol | {"source": asked.data.source},
        print_,
        spec.headline,
        time.monotonic() - started,
        done,
    )


def _continued(records: Path, head: dict[str, Any]) -> tuple[list[Record], JsonlLog]:
    """(records that are there already, the log open at its end). UserError if they are of another protocol."""
    rows = list(read_jsonl(records)) if records.exists() else []
    if rows and rows[0] != head:
        raise UserError(
            f"holds records of task {head['task']} under another protocol, model or data",
            where=str(records),
            mend="choose another --out, or delete the file",
        )
    log = JsonlLog(records)
    if not rows:
        log.append(head)
    return rows[1:], log


def _answers(
    spec: TaskSpec, backend: Backend, items: Sequence[Item], done: int, tools: Tools, advance: Callable[[int], None]
) -> Iterator[Record]:
    """Records of the items after the first `done`. Chunks are those of a run from the start, so that rounding, which
    depends on what is computed together, is too."""
    size = WRITTEN_CHUNK if spec.kind in ("generate", "code") else CHUNK
    for start in range(done - done % size, len(items), size):
        skipped = max(0, done - start)
        chunk = items[start : start + size]
        if skipped < len(chunk):
            yield from answer(spec, backend, chunk, tools)[skipped:]
            advance(len(chunk) - skipped)
