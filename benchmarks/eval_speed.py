"""Speed of `headwater eval` against lm-evaluation-harness: same model, items, dtype (float32) and threads, in one run.

    python benchmarks/eval_speed.py MODEL DATA --peer /path/to/lm-eval/bin/python --limit 60

Both sides score the same items, by turns, `--rounds` times; the ratio is that of their least CPU seconds (and, beside
it, of wall seconds), of the requests alone: loading and bookkeeping are left out on both sides. Wanted: at least 1.3 on
multiple choice, where contexts are shared, and 1.0 on LAMBADA. Exit code 1 below that.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from eval_parity import ask_peer, our_task, prepare

WANTED = {"piqa": 1.3, "arc_challenge": 1.3, "hellaswag": 1.3, "lambada": 1.0}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--peer", default=sys.executable, help="Python with lm-eval")
    parser.add_argument("--limit", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--batch", type=int, default=16, help="rows of the peer's batches")
    parser.add_argument("--tasks", default=",".join(WANTED))
    asked = parser.parse_args()
    import torch

    from headwater.evaluate.backends import LocalBackend
    from headwater.evaluate.tasks.answers import Tools, answer
    from headwater.evaluate.tasks.run import CHUNK, questions

    torch.set_num_threads(1)
    backend = LocalBackend.open(asked.model, device="cpu", dtype="float32")
    slow = []
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        jobs = prepare(asked.tasks.split(","), asked.data, asked.limit, 1, folder)
        print("| task | items | CPU s here | there | ratio | wall s here | there | ratio |")
        print("|---|---:|---:|---:|---:|---:|---:|---:|", flush=True)
        for job in jobs:
            spec = our_task(job["name"])
            items = questions(spec, folder=folder, limit=job["rows"]).items.items
            ours, theirs = [], []
            for _ in range(asked.rounds):
                wall, cpu = time.monotonic(), time.process_time()
                for start in range(0, len(items), CHUNK):
                    answer(spec, backend, items[start : start + CHUNK], Tools())
                ours.append((time.process_time() - cpu, time.monotonic() - wall))
                (peer,) = ask_peer(asked.peer, asked.model, [job], asked.batch)
                theirs.append((peer["cpu_seconds"], peer["seconds"]))
            (cpu, wall), (peer_cpu, peer_wall) = min(ours), min(theirs)
            print(
                f"| {job['name']} | {len(items)} | {cpu:.1f} | {peer_cpu:.1f} | {peer_cpu / cpu:.2f} | {wall:.1f} | "
                f"{peer_wall:.1f} | {peer_wall / wall:.2f} |",
                flush=True,
            )
            if peer_cpu / cpu < WANTED.get(job["name"], 0.0):
                slow.append(job["name"])
    return int(bool(slow))


if __name__ == "__main__":
    sys.exit(main())
