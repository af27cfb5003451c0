"""What poisoned batches cost a run: the same run without them, and with them, recovery on and recovery off.

A small model reads documents of English and Chinese words. All targets of a batch become noise, once, and in six
batches in a row (more than steps are skipped for, so the run goes back and leaves them out). The figure is the held-out
loss at the end beside that of the run that never had such a batch; with recovery on it is to be within 0.5 %.

    python benchmarks/recovery.py --steps 300 --seeds 3
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.train.conftest import TINY, World, make_world
from tests.train.poison import Poison, Window, order_of, windows_by_tokens

from headwater.core.progress import Reporter
from headwater.parallel.config import ParallelConfig
from headwater.train import RunFolder, train
from headwater.train.callbacks import Callback

SEQ_LEN = 32


def run_of(world: World, path: Path, seed: int, steps: int, *callbacks: Callback, recovery: bool = True) -> RunFolder:
    config: dict[str, Any] = {
        "steps": steps, "global_batch": 8, "seq_len": SEQ_LEN, "precision": "fp32", "dry_run": False,
        "optimizer": {"lr": 3e-3}, "schedule": {"warmup_steps": 10}, "checkpoint": {"every": 20},
        "validation": {"every": 0, "windows_per_domain": 64}, "recovery": {"enabled": recovery},
    }  # fmt: skip
    return train(
        dataset=world.dataset, tokenizer=world.tokenizer, run_dir=path, model=TINY, config=config, seed=seed,
        parallel=ParallelConfig(micro_batch=8), reporter=Reporter(quiet=True), callbacks=callbacks,
    )  # fmt: skip


def loss_of(run: RunFolder) -> float:
    return float(run.final_record["metrics"]["val_loss"]["all"])


def actions_of(run: RunFolder) -> list[str]:
    return [event["action"] for event in run.events() if event["event"] == "recovery"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, {platform.processor() or platform.machine()}, 1 thread, {options.steps} steps")
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        world = make_world(root, train=options.steps * 3, validation=200)
        names = windows_by_tokens(world, SEQ_LEN)
        for seed in range(options.seeds):
            clean = run_of(world, root / f"clean-{seed}", seed, options.steps)
            order, first = order_of(world, clean.ledger(), seed), options.steps * 3 // 4 + 3
            for batches in (1, 6):
                guilty: set[Window] = {
                    (ref.domain, ref.window) for step in range(first, first + batches) for ref in order.batch(step)
                }
                for recovery in (True, False):
                    path = root / f"{batches}-{recovery}-{seed}"
                    run = run_of(world, path, seed, options.steps, Poison(guilty, names), recovery=recovery)
                    change = loss_of(run) / loss_of(clean) - 1
                    rows.append({"seed": seed, "batches": batches, "recovery": recovery, "change": change})
                    print(
                        f"seed {seed}: {batches} poisoned, recovery {'on ' if recovery else 'off'}: held-out loss "
                        f"{loss_of(run):.4f}, {change:+.2%} of {loss_of(clean):.4f}  {actions_of(run)}",
                        flush=True,
                    )
    summary = {
        f"{batches} poisoned, recovery {'on' if recovery else 'off'}": {
            "median": statistics.median(found), "worst": max(found, key=abs)
        }
        for batches in (1, 6)
        for recovery in (True, False)
        if (found := [r["change"] for r in rows if (r["batches"], r["recovery"]) == (batches, recovery)])
    }  # fmt: skip
    print(json.dumps(summary, indent=1))


if __name__ == "__main__":
    main()
