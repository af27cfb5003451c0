"""Two models on the same items: what `headwater eval compare A B` says.

In: two result folders (`records/TASK.jsonl`), or two record files. Out: for every task both have, each metric's two
means, their difference with interval, an exact test where items are right or wrong, and the smallest difference that so
many items could have shown. Results of different protocols are refused: their difference would say nothing.

    print(compare_text(compare(Path("scores/a"), Path("scores/b"))))
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from math import isfinite, isnan
from pathlib import Path
from typing import Any

import numpy as np

from headwater.core.errors import InputError, UserError
from headwater.core.jsonl import json_fault, parse_json, read_jsonl
from headwater.evaluate.statistics import (
    CONFIDENCE,
    RESAMPLES,
    bootstrap_of,
    holm,
    mcnemar,
    minimum_detectable_difference,
    paired_bootstrap,
)

SUMS = {"tokens": "token", "whitespace_words": "word", "units": "unit", "bytes": "byte"}
"""What nats are divided by, of the sums a record of a whole text has."""

_AGAIN = "delete the file and score the task again with the same command"


@dataclass(frozen=True, slots=True)
class TaskRecords:
    """The records of one task by one model."""

    task: str
    fingerprint: str
    path: Path
    rows: list[dict[str, Any]]


def read_records(path: Path) -> dict[str, TaskRecords]:
    """Records of a result folder, or of one file, by task. InputError for what holds none."""
    if path.is_file():
        files = [path]
    else:
        folder = path / "records" if (path / "records").is_dir() else path
        files = sorted(folder.glob("*.jsonl"))
    found: dict[str, TaskRecords] = {}
    for file in files:
        try:
            head, *rows = list(read_jsonl(file)) or [{}]
        except InputError as error:
            raise InputError(error.what, where=error.where, mend="name a whole records/TASK.jsonl") from error
        if not isinstance(head, dict) or "task" not in head or "fingerprint" not in head:
            if path.is_file():
                raise InputError("is no file of items' records", where=str(file), mend="name records/TASK.jsonl")
            continue
        for number, row in enumerate(rows, 2):
            if not _is_record(row):
                raise InputError("this line is no item's record", where=f"{file}:{number}", mend=_AGAIN)
        found[head["task"]] = TaskRecords(head["task"], head["fingerprint"], file, rows)
    if not found:
        raise InputError(
            "holds no records of tasks", where=str(path), mend="name the --out folder of a `headwater eval --tasks`"
        )
    return found


def _is_record(row: Any) -> bool:
    """Whether a line has what is compared: figures by name, and for whole texts sums."""
    if not isinstance(row, dict):
        return False
    tables = [row.get("metrics", {} if "failed" in row else None), row.get("sums", {})]
    return all(
        isinstance(table, dict) and all(isinstance(v, int | float) and isfinite(v) for v in table.values())
        for table in tables
    )


def _unfinished(path: Path) -> str:
    """What speaks against a result folder whose records can be read; "" if nothing does."""
    if not (path / "records").is_dir():
        return ""
    try:
        parse_json((path / "results.json").read_bytes())
    except FileNotFoundError:
        return "it has no results.json: its run did not come to its end"
    except (OSError, ValueError) as error:
        return f"its results.json cannot be read ({json_fault(error)}); the records alone are compared"
    return ""


def compare(
    first: Path,
    second: Path,
    *,
    tasks: Sequence[str] = (),
    confidence: float = CONFIDENCE,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> dict[str, Any]:
    """The comparison as plain values. UserError for different protocols, no common task, or one that is not there."""
    ours, theirs = read_records(first), read_records(second)
    common = [task for task in ours if task in theirs]
    for task in tasks:
        if task not in common:
            raise UserError(
                f"task {task} is not in both results", where="--tasks", mend=f"both have {', '.join(common) or 'none'}"
            )
    if not common:
        raise UserError(
            f"no task in common: {', '.join(ours)} and {', '.join(theirs)}",
            where=f"{first} {second}",
            mend="score both models on the same tasks",
        )
    settings = {"confidence": confidence, "resamples": resamples, "seed": seed}
    found = {task: _task(ours[task], theirs[task], settings) for task in tasks or common}
    _adjust(found)
    left = sorted((set(ours) | set(theirs)) - set(found))
    notes = {str(path): note for path in (first, second) if (note := _unfinished(path))}
    return {
        "first": str(first), "second": str(second), **settings, "tasks": found, "not_compared": left, "notes": notes,
    }  # fmt: skip


def _task(ours: TaskRecords, theirs: TaskRecords, settings: dict[str, Any]) -> dict[str, Any]:
    if ours.fingerprint != theirs.fingerprint:
        raise UserError(
            f"task {ours.task} was scored under two protocols ({ours.fingerprint} and {theirs.fingerprint}): another "
            "prompt, other shots or data, another window, tokenizer or dtype",
            where=f"{ours.path} {theirs.path}",
            mend="score both models under the same one; their results.json say what differs (protocol)",
        )
    by_id = dict(_keyed(theirs.rows))
    pairs = [(row, by_id[key]) for key, row in _keyed(ours.rows) if key in by_id]
    scored = [(a, b) for a, b in pairs if "failed" not in a and "failed" not in b]
    if not scored:
        raise InputError(f"task {ours.task}: no item was scored by both", where=f"{ours.path} {theirs.path}")
    names = [
        name
        for name in scored[0][0]["metrics"]
        if all(name in a["metrics"] and name in b["metrics"] for a, b in scored)
    ]
    metrics = {
        name: _metric([a["metrics"][name] for a, _ in scored], [b["metrics"][name] for _, b in scored], settings)
        for name in names
    }
    if all("sums" in a and "sums" in b for a, b in scored):
        metrics |= _ratios(scored, settings)
    return {
        "fingerprint": ours.fingerprint,
        "items": len(scored),
        "not_in_both": len(ours.rows) + len(theirs.rows) - 2 * len(pairs),
        "not_scored": len(pairs) - len(scored),
        "metrics": metrics,
    }


def _keyed(rows: Sequence[dict[str, Any]]) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    """Rows with what they are known by. Ids need not be unique in public files: the question goes with them, and where
    that is the same too, which of them it is."""
    seen: Counter[tuple[str, ...]] = Counter()
    for place, row in enumerate(rows):
        key = (repr(row.get("id", place)), repr(row.get("context", "")), repr(row.get("group", "")))
        seen[key] += 1
        yield (*key, str(seen[key])), row


def _metric(first: list[float], second: list[float], settings: dict[str, Any]) -> dict[str, Any]:
    difference = paired_bootstrap(first, second, **settings)
    found: dict[str, Any] = {
        "first": float(np.mean(first)),
        "second": float(np.mean(second)),
        "difference": difference.value,
        "interval": [difference.low, difference.high],
        "p_value": difference.p_value,
        "test": "paired bootstrap",
        "minimum_detectable_difference": minimum_detectable_difference(
            first, second, confidence=settings["confidence"]
        ),
    }
    if set(first) | set(second) <= {0.0, 1.0}:
        test = mcnemar(first, second)
        found |= {"p_value": test.p_value, "test": "McNemar, exact", "mcnemar": asdict(test)}
    return found


def _ratios(scored: Sequence[tuple[dict[str, Any], dict[str, Any]]], settings: dict[str, Any]) -> dict[str, Any]:
    """Perplexities of a corpus are ratios of sums, so that documents are drawn and the ratios taken anew."""
    found = {}
    for name, unit in SUMS.items():
        table = np.array(
            [[a["sums"]["nats"], a["sums"][name], b["sums"]["nats"], b["sums"][name]] for a, b in scored], dtype=float
        )
        if not table.sum(0)[[1, 3]].all():
            continue

        def difference(rows: Any) -> float:
            total = rows.sum(0)
            return float(total[2] / total[3] - total[0] / total[1]) if total[1] and total[3] else float("nan")

        interval = bootstrap_of(difference, table, test=True, **settings)
        total = table.sum(0)
        found[f"nats_per_{unit}"] = {
            "first": float(total[0] / total[1]),
            "second": float(total[2] / total[3]),
            "difference": interval.value,
            "interval": [interval.low, interval.high],
            "p_value": interval.p_value,
            "test": "paired bootstrap of the corpus",
        }
    return found


def _adjust(tasks: dict[str, Any]) -> None:
    """Several tests at once find something by chance: Holm's adjustment over all of them."""
    metrics = [metric for task in tasks.values() for metric in task["metrics"].values()]
    for metric, adjusted in zip(metrics, holm([metric["p_value"] for metric in metrics]), strict=True):
        metric["p_value_adjusted"] = adjusted


def compare_text(found: dict[str, Any]) -> str:
    """The comparison as a Markdown table."""
    lines = [
        f"A: {found['first']}",
        f"B: {found['second']}",
        "",
        "| task | metric | A | B | B - A | interval | p | p, Holm | detectable | items |",
        "|---|---|---:|---:|---:|---|---:|---:|---:|---:|",
    ]
    for task, facts in found["tasks"].items():
        for name, metric in facts["metrics"].items():
            low, high = metric["interval"]
            seen = metric.get("minimum_detectable_difference")
            shown = "" if seen is None else "unknown" if isnan(seen) else f"{seen:.3g}"
            lines.append(
                f"| {task} | {name} | {metric['first']:.4g} | {metric['second']:.4g} | {metric['difference']:+.4g} | "
                f"{low:+.4g} to {high:+.4g} | {metric['p_value']:.3g} | {metric['p_value_adjusted']:.3g} | "
                f"{shown} | {facts['items']:,} |"
            )
    lines += [
        "",
        f"Intervals at {found['confidence']:.0%} by {found['resamples']:,} draws of items; a difference below "
        "`detectable` would be missed more than one time in five.",
    ]
    for task, facts in found["tasks"].items():
        if facts["not_in_both"] or facts["not_scored"]:
            lines.append(f"{task}: {facts['not_in_both']:,} items are not in both, {facts['not_scored']:,} not scored.")
    lines += [f"{path}: {note}." for path, note in found["notes"].items()]
    if found["not_compared"]:
        lines.append(f"Not in both, or not asked for: {', '.join(found['not_compared'])}.")
    return "\n".join(lines)
