"""One of two ranks of a small real training, the second of which has no room from step 5 on for more than one sample.

python -m tests.train.tight_rank TOKENIZER DATASET RUN_DIR
"""

from __future__ import annotations

import sys
from pathlib import Path

from headwater.parallel.environment import World as Ranks
from headwater.parallel.rank_process import watched_rank
from tests.train.conftest import World
from tests.train.test_memory_fit import LittleMemory, whole
from tests.train.test_recovery import go

if __name__ == "__main__":
    tokenizer, dataset, run = map(Path, sys.argv[1:])
    with watched_rank(run / "logs", Ranks.from_env(), timeout_seconds=60):
        layout = whole(4, dp_shard=2)
        memory = LittleMemory(1, step=5, rank=1)
        go(World(tokenizer, dataset), run, memory, layout=layout, steps=7, checkpoint={"every": 2, "async_save": False})
