"""Running a task: items in chunks through a backend, a record for each, figures with their uncertainty.

    result = run_task(spec, backend, folder=Path("data"), records=Path("out/records/piqa.jsonl"))
    result.metrics["acc"]      # Figure(value=0.61, stderr=0.013, n=1286)

Records are appended as items are done, so an interrupted task goes on where it stopped; records of another protocol
are refused.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headwater.core.artifacts import fingerprint
from headwater.core.config import identity
from headwater.core.errors import InputError, UserError
from headwater.core.jsonl import JsonlLog, read_jsonl
from headwater.core.progress import SILENT, Reporter
from headwater.evaluate.backends import Backend
from headwater.evaluate.tasks.data import load_rows
from headwater.evaluate.tasks.items import Item, make_items
from headwater.evaluate.tasks.scorers import SCORERS, score_likelihood
from headwater.evaluate.tasks.spec import TaskSpec

CHUNK = 256
"""Items between two writes of records: what an interruption costs at most."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A mean over items with its standard error (sample deviation / sqrt(n)); None where one item says nothing."""

    value: float
    stderr: float | None
    n: int


@dataclass(frozen=True, slots=True)
class TaskResult:
    """What a task found. `groups`: figures by subject; `set_aside`: (row, reason) of rows that are no questions;
    `protocol` and `fingerprint`: all that decides the number besides the weights."""

    task: str
    metrics: dict[str, Figure]
    groups: dict[str, dict[str, Figure]]
    set_aside: list[tuple[int, str]]
    protocol: dict[str, Any]
    fingerprint: str
    headline: str
    seconds: float
    records: list[dict[str, Any]] = field(repr=False, default_factory=list)


def run_task(
    spec: TaskSpec,
    backend: Backend,
    *,
    folder: Path | None = None,
    limit: int | None = None,
    records: Path | None = None,
    reporter: Reporter = SILENT,
) -> TaskResult:
    """Score a task. folder: data in the original formats (None: the hub). limit: only the first so many rows. records:
    where each item's record is kept; an existing file is continued.

    Raises InputError for data that cannot be read or holds no question, UserError for records of another protocol.
    """
    started = time.monotonic()
    data = load_rows(spec.files, folder=folder, hub=spec.hub, task=spec.name)
    shots = None
    if spec.fewshot.count:
        shots = load_rows(spec.fewshot.files, folder=folder, hub=spec.fewshot.hub, task=f"{spec.name} (examples)")
    made = make_items(spec, data.rows[:limit], shots.rows if shots else ())
    if not made.items:
        reason = f"; row {made.set_aside[0][0]} {made.set_aside[0][1]}" if made.set_aside else ""
        raise InputError(f"task {spec.name}: no row is a question{reason}", where=data.source)
    protocol = {
        "task": identity(spec),
        "data": data.sha256 or data.source,
        "examples": (shots.sha256 or shots.source) if shots else None,
        "rows": len(data.rows) if limit is None else min(limit, len(data.rows)),
        "model": backend.facts,
    }
    print_ = fingerprint("task", spec.version, protocol, {})
    done = _continued(records, print_, spec.name)
    log = JsonlLog(records) if records is not None else None
    if log is not None and not done:
        log.append({"fingerprint": print_, "task": spec.name})
    left = [item for place, item in enumerate(made.items) if place >= len(done)]
    with reporter.progress(spec.name, total=len(left), unit="items") as bar:
        for record in _answers(spec, backend, left, bar.advance):
            done.append(record)
            if log is not None:
                log.append(record)
    if log is not None:
        log.close()
    metrics, groups = figures(done)
    if spec.kind == "cloze":
        metrics["perplexity"] = _perplexity(metrics.pop("nats"))
    return TaskResult(
        spec.name,
        metrics,
        groups,
        made.set_aside,
        protocol | {"source": data.source},
        print_,
        spec.headline,
        time.monotonic() - started,
        done,
    )


def _continued(records: Path | None, print_: str, task: str) -> list[dict[str, Any]]:
    if records is None or not records.exists():
        return []
    rows = list(read_jsonl(records))
    if not rows:
        return []
    if rows[0].get("fingerprint") != print_:
        raise UserError(
            f"holds records of task {task} under another protocol, model or data",
            where=str(records),
            mend="choose another --out, or delete the file",
        )
    return rows[1:]


def _answers(
    spec: TaskSpec, backend: Backend, items: Sequence[Item], advance: Callable[[int], None]
) -> Iterator[dict[str, Any]]:
    for start in range(0, len(items), CHUNK):
        chunk = items[start : start + CHUNK]
        if spec.kind == "generate":
            texts = backend.complete(
                [item.context for item in chunk], stop=spec.stop, max_tokens=spec.max_tokens, on_progress=advance
            )
            for item, written in zip(chunk, texts, strict=True):
                kept = {"texts": written, "empty": sum(not text.strip() for text in written)}
                yield _record(item, SCORERS[spec.scorer](item, written), kept)
            continue
        pairs = [(item.context, choice) for item in chunk for choice in item.choices]
        found = iter(backend.likelihoods(pairs))
        for item in chunk:
            metrics, kept = score_likelihood(item, [next(found) for _ in item.choices])
            yield _record(item, metrics, kept)
        advance(len(chunk))


def _record(item: Item, metrics: Mapping[str, float], kept: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "id": item.id,
        "group": item.group,
        "context": item.context,
        "choices": list(item.choices),
        "gold": item.gold,
        "metrics": dict(metrics),
        **kept,
    }


def figures(records: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Figure], dict[str, dict[str, Figure]]]:
    """(figures over all records, figures by group)."""
    groups: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for record in records:
        if record["group"]:
            groups[record["group"]].append(record)
    return _means(records), {name: _means(members) for name, members in sorted(groups.items())}


def _means(records: Sequence[Mapping[str, Any]]) -> dict[str, Figure]:
    values: dict[str, list[float]] = defaultdict(list)
    for record in records:
        for name, value in record["metrics"].items():
            values[name].append(value)
    return {name: mean(found) for name, found in values.items()}


def mean(values: Sequence[float]) -> Figure:
    """Mean and standard error."""
    n = len(values)
    average = math.fsum(values) / n
    if n < 2:
        return Figure(average, None, n)
    variance = math.fsum((value - average) ** 2 for value in values) / (n - 1)
    return Figure(average, math.sqrt(variance / n), n)


def _perplexity(nats: Figure) -> Figure:
    """exp of the mean nats an item, with the error carried over (delta method)."""
    value = math.exp(min(nats.value, 700.0))
    return Figure(value, None if nats.stderr is None else value * nats.stderr, nats.n)
