"""A rank that trains nothing: it adds up a number with the others, step by step, and fails as it is told.

python -m tests.parallel.launched LOGS TIMEOUT_SECONDS STEPS [FAILURE [always]]
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from headwater.core.errors import UserError
from headwater.parallel.environment import World, start, stop
from headwater.parallel.rank_process import watched_rank
from headwater.parallel.watchdog import beat

GUILTY, STEP = 1, 3


def fail(how: str) -> None:
    match how:
        case "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        case "stands_still":
            time.sleep(1000)
        case "stopped":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "user_error":
            raise UserError("no such disk", where="x", mend="buy one")
        case "fault":
            raise ZeroDivisionError("in this rank alone")
        case "other_collective":
            dist.all_gather([torch.zeros(3) for _ in range(dist.get_world_size())], torch.ones(3))


def main() -> None:
    logs, timeout, steps = Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
    how = sys.argv[4] if len(sys.argv) > 4 else ""
    guilty = "always" in sys.argv or os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"
    stopping = []
    world = World.from_env()
    with watched_rank(logs, world, timeout_seconds=timeout):
        start(world, torch.device("cpu"), timeout_seconds=60)
        signal.signal(signal.SIGTERM, lambda *_: stopping.append(True))
        for step in range(1, steps + 1):
            beat(step, "work")
            if step == STEP and world.rank == GUILTY and guilty:
                fail(how)
            total = torch.tensor([1.0, float(bool(stopping))])
            dist.all_reduce(total)
            if total[1]:
                raise KeyboardInterrupt
            time.sleep(0.02)
        sys.stderr.write(f"rank {world.rank} is done\n")
        stop()


if __name__ == "__main__":
    main()
