"""A benchmark as a metric of `Evaluator`.

Evaluator("run", [Perplexity(), TaskMetric("piqa", folder="data")]).run("held-out.jsonl")["piqa/acc"]
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headwater.evaluate.backends import Backend, LocalBackend
from headwater.evaluate.models import EvaluatedModel
from headwater.evaluate.tasks import TaskSpec, find_tasks, run_task


class TaskMetric:
    """Figures of one task. Its questions come from `folder` (None: the folder `Evaluator.run` is given, else the hub),
    not from held-out text, so `Evaluator` reads no text for it."""

    needs_text = False

    def __init__(self, task: str | TaskSpec, *, folder: Path | str | None = None, limit: int | None = None) -> None:
        """task: a name, a YAML file, or the task itself. Errors as `find_tasks`."""
        self.spec = find_tasks(names=[task])[0] if isinstance(task, str) else task
        self.name = self.spec.name
        self.folder, self.limit = None if folder is None else Path(folder), limit

    def evaluate(self, model: EvaluatedModel | Backend, test_data: Any) -> dict[str, float]:
        """`task/metric` to values. Errors as `run_task`."""
        folder = self.folder
        if folder is None and isinstance(test_data, Path | str) and Path(test_data).is_dir():
            folder = Path(test_data)
        backend: Backend = LocalBackend(model.name, model.engine) if isinstance(model, EvaluatedModel) else model
        found = run_task(self.spec, backend, folder=folder, limit=self.limit)
        return {f"{self.name}/{metric}": figure.value for metric, figure in found.metrics.items()}
