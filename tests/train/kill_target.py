"""A small real training, as a process that tests can kill.

python -m tests.train.kill_target TOKENIZER DATASET RUN_DIR OPTIONS
"""

from __future__ import annotations

import json
import sys

import torch

from headwater.core.progress import Reporter
from headwater.train import train
from tests.train.conftest import TINY

if __name__ == "__main__":
    tokenizer, dataset, run_dir, options = sys.argv[1:5]
    torch.set_num_threads(1)
    train(
        tokenizer=tokenizer,
        dataset=dataset,
        run_dir=run_dir,
        model=TINY,
        seed=3,
        reporter=Reporter(quiet=True),
        **json.loads(options),
    )
