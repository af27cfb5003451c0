"""Benchmarks in the course of a training run, with the weights where they lie: no export, every rank takes part.

In: multiple choice and cloze tasks, their first items. Out: `trainer.record["eval"]`, {"piqa/acc": 0.61}, written by
the metrics callback. Items are cut into tokens and scored as `headwater eval --tasks` does; the model's own forward
pass in its training layout and precision gives the numbers.

    train_run(..., callbacks=[BenchmarkCallback(config.during_training, tokenizer)])
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from headwater.core.errors import RecipeError
from headwater.evaluate.config import DuringTraining
from headwater.evaluate.likelihood import Likelihood, Tokens, cut_pair
from headwater.evaluate.tasks import find_tasks
from headwater.evaluate.tasks.figures import Figure, figures
from headwater.evaluate.tasks.items import Item
from headwater.evaluate.tasks.run import questions
from headwater.evaluate.tasks.scorers import score_likelihood
from headwater.evaluate.tasks.spec import TaskSpec
from headwater.model.loss import IGNORE
from headwater.tokenizer import Tokenizer
from headwater.train.batch import Batch
from headwater.train.callbacks import Callback, due
from headwater.train.each import evaluate_each, row_length
from headwater.train.train_module import StepOutcome, TrainModule

if TYPE_CHECKING:
    from headwater.train.trainer import Trainer

DEFAULT_TIMES = 5
KINDS = ("multiple_choice", "cloze")


@dataclass(frozen=True, slots=True)
class _Row:
    """One continuation of an item after its context."""

    context: Tokens
    wanted: Tokens


class BenchmarkCallback(Callback):
    """Scores tasks every so many steps and at the end. Comes before the metrics callback."""

    name = "benchmarks"

    def __init__(self, config: DuringTraining, tokenizer: Tokenizer) -> None:
        """Reads the tasks' data. RecipeError for a task that is not scored by likelihoods, errors as `find_tasks` and
        `questions` else."""
        self._config, self._tokenizer = config, tokenizer
        folder = None if config.data is None else Path(config.data)
        self._tasks: list[tuple[TaskSpec, list[Item]]] = []
        for spec in find_tasks(names=config.tasks):
            if spec.kind not in KINDS or spec.scorer != "likelihood":
                raise RecipeError(
                    f"task {spec.name} is not scored by the likelihood of given continuations",
                    where="evaluate.during_training.tasks",
                    mend="name multiple choice and cloze tasks; others are for `headwater eval` afterwards",
                )
            self._tasks.append((spec, questions(spec, folder=folder, limit=config.limit).items.items))

    def after_step(self, trainer: Trainer, outcome: StepOutcome) -> None:
        every = self._config.every if self._config.every is not None else max(1, trainer.steps // DEFAULT_TIMES)
        if not self._tasks or not due(trainer.step, every, trainer.steps):
            return
        started = time.perf_counter()
        with trainer.module.evaluation(averaged=False):
            found = {
                f"{spec.name}/{name}": figure.value
                for spec, items in self._tasks
                for name, figure in score_items(trainer.module, self._tokenizer, spec, items).items()
            }
        trainer.record["eval"] = found
        trainer.spent["validation_seconds"] = time.perf_counter() - started + trainer.spent.get("validation_seconds", 0)


def score_items(module: TrainModule, tokenizer: Tokenizer, spec: TaskSpec, items: Sequence[Item]) -> dict[str, Figure]:
    """Figures of one task under the weights as they are. All ranks call it, with the same items; an item whose
    continuation does not fit into the model's context counts in no figure."""
    context = module.model_config.max_position_embeddings
    scored, rows = [], []
    for item in items:
        own = [_row(tokenizer, item.context, choice, context) for choice in item.choices]
        kept = [row for row in own if row is not None]
        if len(kept) == len(own):
            scored.append(item)
            rows += kept
    if not rows:
        return {}
    longest = max(len(row.context) + len(row.wanted) - 1 for row in rows)
    batches = [_batch(row, row_length(len(row.context) + len(row.wanted) - 1, longest, module.mesh)) for row in rows]
    found = iter(zip(rows, evaluate_each(module, batches), strict=True))
    records = []
    for item in scored:
        likelihoods = []
        for _ in item.choices:
            row, (nats, right) = next(found)
            likelihoods.append(Likelihood(-nats, len(row.wanted), right == len(row.wanted)))
        metrics, _ = score_likelihood(item, likelihoods)
        records.append({"group": "", "metrics": metrics})
    return figures(records, spec.kind, spec.scorer)[0]


def _row(tokenizer: Tokenizer, context: str, continuation: str, longest: int) -> _Row | None:
    """None if it does not fit, or has no tokens of its own; a context that is too long loses its left end."""
    start = tokenizer.bos_id if tokenizer.bos_id is not None else tokenizer.eos_id
    before, after = cut_pair(tokenizer, context, continuation, prefix=tuple(tokenizer.document_prefix), start=start)
    if not 0 < len(after) <= longest:
        return None
    room = longest - len(after) + 1
    return _Row(before[max(0, len(before) - room) :], after)


def _batch(row: _Row, length: int) -> Batch:
    """One row: the continuation is predicted, nothing else; what is filled up on the right nobody sees."""
    tokens = torch.zeros(1, length, dtype=torch.int64)
    targets = torch.full((1, length), IGNORE, dtype=torch.int64)
    given = (*row.context, *row.wanted)[:-1]
    tokens[0, : len(given)] = torch.tensor(given)
    first = len(row.context) - 1
    targets[0, first : first + len(row.wanted)] = torch.tensor(row.wanted)
    return Batch(tokens, targets)
