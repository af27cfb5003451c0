"""Training in a layout of several ranks: started here, or joined where a launcher has started them.

In: what `train_files` gets. Out: the trained run. Where no launcher (torchrun, srun) is around, this process becomes
one: it starts a process a rank on this machine, each of which reads the job from a file and trains. Under a launcher
every process runs the whole command; the first does what is done once, the others follow it.

    python -m headwater.pipeline.ranks RUN/logs/job.json        # what a rank is started with
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path

from headwater.core.errors import UserError
from headwater.core.files import atomic_write
from headwater.core.jsonl import parse_json, pretty_json
from headwater.core.progress import Reporter
from headwater.parallel.config import ParallelConfig
from headwater.pipeline.schema import Recipe, loads

LOGS = "logs"
JOB = "job.json"
MOST_ON_CPU = 64


def joined() -> bool:
    """Whether a launcher has started this process as one of several."""
    return int(os.environ.get("WORLD_SIZE") or 1) > 1 and "RANK" in os.environ


def following() -> bool:
    """Whether this process is a rank other than the first: it writes no artifacts and says nothing."""
    return joined() and int(os.environ["RANK"]) > 0


def launch_training(
    recipe: Recipe, recipe_text: str, dataset: Path, tokenizer: Path, out: Path, reporter: Reporter
) -> None:
    """Start the layout's ranks on this machine and wait until they have trained.

    Raises UserError if this machine has too few GPUs, and as `headwater.parallel.launch.launch_local`.
    """
    from headwater.parallel.launch import launch_local

    layout = recipe.parallel
    check_machine(layout, recipe.train.device)
    logs = out / LOGS
    logs.mkdir(parents=True, exist_ok=True)
    job = {
        "recipe": recipe_text,
        "dataset": str(dataset.absolute()),
        "tokenizer": str(tokenizer.absolute()),
        "out": str(out.absolute()),
        "quiet": reporter.quiet,
    }
    atomic_write(logs / JOB, pretty_json(job))
    reporter.decide(f"starting {layout.ranks} ranks on this machine", f"logs of ranks in {logs}")
    command = [sys.executable, "-m", "headwater.pipeline.ranks", str(logs / JOB)]
    launch_local(command, ranks=layout.ranks, logs=logs, max_restarts=layout.max_restarts, reporter=reporter)


def watched(layout: ParallelConfig, out: Path) -> AbstractContextManager[None]:
    """The context a rank trains in: see `headwater.parallel.rank_process`."""
    from headwater.parallel.environment import World
    from headwater.parallel.rank_process import watched_rank

    return watched_rank(out / LOGS, World.from_env(), timeout_seconds=layout.timeout_seconds)


def check_machine(layout: ParallelConfig, device: str) -> None:
    """Raises UserError if this machine cannot hold the layout's ranks."""
    import torch

    if device != "cpu" and torch.cuda.is_available():
        have, what = torch.cuda.device_count(), "GPUs"
    else:
        have, what = MOST_ON_CPU, "ranks at most on a CPU"
    if layout.ranks > have:
        raise UserError(
            f"the layout is {layout.describe()}, and this machine has {have} {what}",
            where="parallel",
            mend="`headwater launch RECIPE --slurm --out DIR` (or --k8s) writes what starts it on a cluster; or choose "
            "a smaller layout",
        )


def rank(job: Mapping[str, object]) -> None:
    """What one started process does."""
    from headwater.pipeline.training import train_files

    recipe = loads(str(job["recipe"]), (), name=JOB).config
    train_files(
        recipe,
        Path(str(job["dataset"])),
        Path(str(job["tokenizer"])),
        Path(str(job["out"])),
        Reporter(quiet=bool(job["quiet"])),
    )


if __name__ == "__main__":
    rank(parse_json(Path(sys.argv[1]).read_bytes()))
