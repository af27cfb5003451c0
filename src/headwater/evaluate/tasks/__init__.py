"""Benchmarks as data: a YAML file a task, readers of the original formats, scorers, and one loop that runs them.

from headwater.evaluate.tasks import find_tasks, run_task
run_task(find_tasks(names=["piqa"])[0], LocalBackend.open(model), folder=Path("data")).metrics
"""

from headwater.evaluate.tasks.catalogue import builtin_tasks, find_tasks, load_task
from headwater.evaluate.tasks.run import Figure, TaskResult, run_task
from headwater.evaluate.tasks.spec import TaskSpec

__all__ = ["Figure", "TaskResult", "TaskSpec", "builtin_tasks", "find_tasks", "load_task", "run_task"]
