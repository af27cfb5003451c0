"""Several tasks of one model, and what they found together.

    found = run_suite(find_tasks(suites=["base"]), backend, folder=Path("data"), out=Path("scores"))
    found.as_json()["tasks"]["piqa"]["metrics"]["acc"]

With `out` every item's record is kept under `out/records`, and a run that was interrupted goes on where it stopped.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from headwater.core.errors import InputError
from headwater.core.progress import SILENT, Reporter
from headwater.evaluate.backends import Backend
from headwater.evaluate.tasks.answers import Tools
from headwater.evaluate.tasks.asking import how_scored
from headwater.evaluate.tasks.figures import Figure
from headwater.evaluate.tasks.run import TaskResult, run_task
from headwater.evaluate.tasks.spec import TaskSpec

FORMAT = 1


@dataclass(frozen=True)
class SuiteResult:
    """Tasks' results in order; `not_run`: why a task of a suite was left out; `contamination`: of tasks whose items
    were looked for in the training text (`contamination.as_json`)."""

    model: dict[str, Any]
    specs: dict[str, TaskSpec]
    results: dict[str, TaskResult]
    not_run: dict[str, str]
    limit: int | None = None
    contamination: dict[str, dict[str, Any]] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Plain values: what `results.json` holds and `--json` prints. Items are in `records/`."""
        return {
            "format": FORMAT,
            "kind": "tasks",
            "model": self.model,
            "limit": self.limit,
            "tasks": {
                name: task_json(self.specs[name], result)
                | ({"contamination": self.contamination[name]} if name in self.contamination else {})
                for name, result in self.results.items()
            },
            "not_run": self.not_run,
        }


def task_json(spec: TaskSpec, result: TaskResult) -> dict[str, Any]:
    """One task's part of the result."""
    return {
        "title": spec.title,
        "language": spec.language,
        "headline": result.headline,
        "metrics": figures_json(result.metrics),
        "groups": {name: figures_json(metrics) for name, metrics in result.groups.items()},
        "items": len(result.records),
        "notes": notes(result),
        "set_aside": [{"row": row, "reason": reason} for row, reason in result.set_aside],
        "not_scored": [{"id": one["id"], "reason": one["failed"]} for one in result.records if "failed" in one],
        "disagreements": [one["id"] for one in result.records if one["metrics"].get("disagree")],
        "protocol": {**result.protocol, "in_words": protocol_in_words(spec)},
        "fingerprint": result.fingerprint,
        "seconds": round(result.seconds, 3),
        "records": f"records/{result.task}.jsonl",
    }


def figures_json(metrics: dict[str, Figure]) -> dict[str, dict[str, Any]]:
    return {name: asdict(figure) for name, figure in metrics.items()}


def protocol_in_words(spec: TaskSpec) -> dict[str, Any]:
    """What a reader must know to compare the number with somebody else's."""
    words: dict[str, Any] = {"kind": spec.kind, "prompt": spec.description + spec.context, "shots": spec.fewshot.count}
    if spec.kind in ("generate", "code"):
        drawn = spec.sampling
        words |= {"stop": list(spec.stop), "max_tokens": spec.max_tokens, "sampling": drawn.model_dump()}
        words["extraction"] = spec.scorer if spec.kind == "generate" else "prompt and completion run against the tests"
    elif spec.kind == "perplexity":
        words |= {"window": spec.window or "the model's context", "stride": spec.stride or "the window"}
    else:
        words |= {"delimiter": spec.delimiter, "scored": how_scored(spec.scorer)}
    return words


def notes(result: TaskResult) -> list[str]:
    """What a reader of the number must not miss."""
    records = result.records
    failed = sum("failed" in record for record in records)
    dropped = sum(bool(record.get("context_tokens_dropped")) for record in records)
    empty = sum(record.get("empty", 0) for record in records)
    length = sum("length" in record.get("finish", ()) for record in records)
    said = [
        (len(result.set_aside), "rows are no questions and were set aside"),
        (failed, "items could not be scored and count in no figure"),
        (dropped, "prompts were longer than the context and lost their left end"),
        (empty, "generations are empty and count as wrong"),
        (length, "items have an answer cut off at the longest length"),
    ]
    found = [f"{count:,} {what}" for count, what in said if count]
    levels = sorted({record["sandbox"] for record in records if "sandbox" in record})
    return [*found, *(f"programs ran in a sandbox of level {level}" for level in levels)]


def run_suite(
    tasks: Sequence[TaskSpec],
    backend: Backend,
    *,
    folder: Path | None = None,
    limit: int | None = None,
    out: Path | None = None,
    optional: Collection[str] = (),
    tools: Tools | None = None,
    reporter: Reporter = SILENT,
) -> SuiteResult:
    """Run tasks one after another. optional: tasks that may lack their data (those a suite brought), which are then
    reported in `not_run`; of any other the error is raised. Errors as `run_task`."""
    found = SuiteResult({"name": backend.name, **backend.model, **backend.facts}, {}, {}, {}, limit)
    for number, spec in enumerate(tasks, 1):
        reporter.stage(spec.name, f"{number} of {len(tasks)}; {spec.title}")
        records = out / "records" / f"{spec.name}.jsonl" if out is not None else None
        try:
            result = run_task(
                spec, backend, folder=folder, limit=limit, records=records, tools=tools, reporter=reporter
            )
        except InputError as error:
            if spec.name not in optional:
                raise
            found.not_run[spec.name] = error.what
            reporter.warn(f"{spec.name} was not run: {error.what}")
            continue
        found.specs[spec.name], found.results[spec.name] = spec, result
        reporter.info(headline(result))
    if not found.results:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in found.not_run.items())
        raise InputError(
            f"no task could be run: {reasons}", where=str(folder or "hub"), mend="give a folder with the data by --data"
        )
    return found


def headline(result: TaskResult) -> str:
    """`piqa: acc_norm 0.683 ± 0.013 (n 1,286)`."""
    figure = result.metrics.get(result.headline)
    return f"{result.task}: {result.headline} {shown(figure)} (n {figure.n:,})" if figure else f"{result.task}: no item"


def shown(figure: Figure) -> str:
    """`0.683 ± 0.013`, four digits."""
    error = "" if figure.stderr is None else f" ± {figure.stderr:.2g}"
    return f"{figure.value:.4g}{error}"
