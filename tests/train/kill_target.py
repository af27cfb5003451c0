"""A small real training, as a process that tests can kill.

python -m tests.train.kill_target TOKENIZER DATASET RUN_DIR OPTIONS
"""

from __future__ import annotations

import json
import resource
import signal
import sys

import torch

from headwater.core.progress import Reporter
from headwater.train import train
from headwater.train.callbacks import Callback
from headwater.train.train_module import StepOutcome
from headwater.train.trainer import Trainer
from tests.train.conftest import TINY


class FillDisk(Callback):
    """From a step on no file may grow beyond 100 kB: the record still fits, a checkpoint does not."""

    name = "fill-disk"

    def __init__(self, step: int) -> None:
        self.step = step

    def after_step(self, trainer: Trainer, outcome: StepOutcome) -> None:
        if trainer.step == self.step:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))


if __name__ == "__main__":
    tokenizer, dataset, run_dir, text = sys.argv[1:5]
    options = json.loads(text)
    disk_full_at = options.pop("disk_full_at", None)
    torch.set_num_threads(1)
    train(
        tokenizer=tokenizer,
        dataset=dataset,
        run_dir=run_dir,
        model=TINY,
        seed=3,
        reporter=Reporter(quiet=True),
        callbacks=[FillDisk(disk_full_at)] if disk_full_at else [],
        **options,
    )
