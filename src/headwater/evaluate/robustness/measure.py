"""A task scored clean and under damage, on the same items: how much of the score is lost.

In: a task, a model, kinds of damage with rates. Out: for each, the clean and the damaged score and the performance drop
rate PDR = 1 - damaged / clean (Zhu et al. 2023, PromptBench) with an interval over paired draws of items.

    found = measure(spec, backend, ["typo:0.1", "homophone:0.1"], folder=Path("data"), limit=200)
    found.as_json()["perturbations"]["typo:0.1"]["drop_rate"]

What is damaged is the question: the fields of the row that the prompt is made of and the answer is not. Examples,
instructions and choices stay whole.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, meta
from numpy.typing import NDArray

from headwater.core.errors import UserError
from headwater.core.progress import SILENT, Reporter
from headwater.evaluate.backends import Backend
from headwater.evaluate.robustness.perturb import KINDS, perturb
from headwater.evaluate.statistics import Interval, bootstrap_of, mcnemar
from headwater.evaluate.tasks.answers import Record, Tools, answer
from headwater.evaluate.tasks.items import Item, make_items
from headwater.evaluate.tasks.readers import read_row
from headwater.evaluate.tasks.run import Questions, questions
from headwater.evaluate.tasks.spec import TaskSpec

DEFAULT = ("typo:0.1", "swap:0.1", "homoglyph:0.1", "shape:0.1", "homophone:0.1", "word_swap:0.1", "word_delete:0.1",
           "distractor:0.5", "punctuation:0.5", "width:0.1")  # fmt: skip
"""What is tried where nothing is named."""


@dataclass(frozen=True, slots=True)
class Damaged:
    """One kind at one rate. `changed`: items whose text has a place for it; the others are as they were."""

    kind: str
    rate: float
    score: float
    drop: Interval
    drop_rate: Interval
    p_value: float | None
    changed: int
    records: list[Record]


@dataclass(frozen=True, slots=True)
class Robustness:
    """Of one task: the metric, its clean value, what damage does to it."""

    task: str
    metric: str
    clean: float
    n: int
    seed: int
    damaged: dict[str, Damaged]

    def as_json(self) -> dict[str, Any]:
        return {
            "task": self.task,
            "metric": self.metric,
            "clean": self.clean,
            "n": self.n,
            "seed": self.seed,
            "perturbations": {
                name: {
                    "kind": one.kind,
                    "rate": one.rate,
                    "score": one.score,
                    "drop": asdict(one.drop),
                    "drop_rate": asdict(one.drop_rate),
                    "p_value": one.p_value,
                    "changed": one.changed,
                }
                for name, one in self.damaged.items()
            },
        }

    def rows(self) -> list[dict[str, Any]]:
        """Each damaged item's record, with what it was damaged by."""
        return [{"perturbation": name, **record} for name, one in self.damaged.items() for record in one.records]


def parse(text: str) -> tuple[str, float]:
    """`KIND:RATE`. UserError for another form."""
    kind, mark, rate = text.partition(":")
    try:
        value = float(rate) if mark else 0.1
    except ValueError:
        value = math.nan
    if kind not in KINDS or not 0 < value <= 1:
        raise UserError(
            f"{text!r} is no perturbation",
            where="--perturb",
            mend=f"give KIND:RATE, of {', '.join(KINDS)}, above 0 to 1",
        )
    return kind, value


def measure(
    spec: TaskSpec,
    backend: Backend,
    perturbations: Sequence[str] = DEFAULT,
    *,
    folder: Path | None = None,
    limit: int | None = None,
    seed: int = 0,
    reporter: Reporter = SILENT,
) -> Robustness:
    """Score a task clean and damaged. UserError for a task of code or texts, or one whose prompt is all answer."""
    wanted = {text: parse(text) for text in perturbations}
    if spec.kind not in ("multiple_choice", "cloze", "generate"):
        raise UserError(f"task {spec.name} of kind {spec.kind} has no question to damage", where="--tasks")
    asked = questions(spec, folder=folder, limit=limit)
    fields = question_fields(spec)
    items = asked.items.items
    with reporter.progress(
        f"{spec.name}, clean and damaged", total=len(items) * (1 + len(wanted)), unit="items"
    ) as bar:
        clean = answer(spec, backend, items, Tools())
        bar.advance(len(items))
        metric = _metric(spec, clean)
        found = {}
        for name, (kind, rate) in wanted.items():
            worse = damaged_items(spec, asked, fields, kind, rate, seed)
            records = answer(spec, backend, worse, Tools())
            bar.advance(len(items))
            changed = sum(a.context != b.context for a, b in zip(items, worse, strict=True))
            found[name] = _damaged(kind, rate, metric, clean, records, changed)
    scores = [record["metrics"][metric] for record in clean if metric in record["metrics"]]
    return Robustness(spec.name, metric, float(np.mean(scores)), len(scores), seed, found)


def question_fields(spec: TaskSpec) -> list[str]:
    """Fields of a row that the question's template uses and no template of answers does."""

    def used(*templates: str) -> set[str]:
        return {name for text in templates for name in meta.find_undeclared_variables(Environment().parse(text))}

    choices = (spec.choices,) if isinstance(spec.choices, str) else spec.choices
    fields = sorted(used(spec.context) - used(*choices, spec.gold))
    if not fields:
        raise UserError(
            f"task {spec.name} has no field that is in the question alone", where="--tasks", mend="name another task"
        )
    return fields


def damaged_items(
    spec: TaskSpec, asked: Questions, fields: Sequence[str], kind: str, rate: float, seed: int
) -> list[Item]:
    """The same items in the same order, their questions damaged; one that would be no question any more stays."""
    shots = [read_row(spec.reader, row) for row in asked.examples.rows] if asked.examples else []
    plain = spec.model_copy(update={"reader": "plain"})
    made = []
    for place, item in enumerate(asked.items.items):
        row = dict(item.row)
        for name in fields:
            if isinstance(row.get(name), str):
                row[name] = perturb(row[name], kind, rate, seed=f"{seed}:{spec.name}:{place}:{name}")
        remade = make_items(plain, [row], shots).items
        made.append(replace(remade[0], id=item.id) if remade else item)
    return made


def _metric(spec: TaskSpec, records: Sequence[Record]) -> str:
    """What tables show first, where items have it; of likelihood tasks acc."""
    names = next((list(record["metrics"]) for record in records if record["metrics"]), [])
    if not names:
        raise UserError(f"task {spec.name}: no item could be scored", where="--tasks")
    return spec.headline if spec.headline in names else "acc" if "acc" in names else names[0]


def _damaged(
    kind: str, rate: float, metric: str, clean: Sequence[Record], worse: Sequence[Record], changed: int
) -> Damaged:
    pairs = [
        (a["metrics"][metric], b["metrics"][metric])
        for a, b in zip(clean, worse, strict=True)
        if metric in a["metrics"] and metric in b["metrics"]
    ]
    table = np.array(pairs, dtype=np.float64).reshape(-1, 2)
    verdicts = np.isin(table, (0.0, 1.0)).all()
    return Damaged(
        kind,
        rate,
        float(table[:, 1].mean()),
        bootstrap_of(lambda rows: float((rows[:, 0] - rows[:, 1]).mean()), table, test=True),
        bootstrap_of(_drop_rate, table),
        mcnemar(table[:, 0], table[:, 1]).p_value if verdicts else None,
        changed,
        list(worse),
    )


def _drop_rate(rows: NDArray[np.float64]) -> float:
    clean, worse = rows.mean(0)
    return float(1 - worse / clean) if clean else math.nan
