"""The chaos suite: many seeds of every fault, healthy steps by the ten thousand, one page of tables.

In: a folder of corpora (without one, this project's pages). Out: records in `--out`, a page in `--report`. What is in
the records is not run again, so it can be stopped and go on, or be run in pieces.

    python benchmarks/chaos.py --corpora FOLDER --report docs/chaos.md                # about 25 minutes of a quiet core
    python benchmarks/chaos.py --seeds 2 --clean-steps 0 --only "poisoned|weight"     # a minute
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from chaos_cases import CASES
from chaos_clean import CLEAN, Clean
from chaos_peers import PEERS
from chaos_ranks import RANKS, rank_trial
from chaos_report import report
from chaos_trials import alerts, trial
from chaos_world import World, make_world, start

from headwater.monitor.detectors import machine_detectors
from headwater.monitor.detectors.detector_set import QUIET_STEPS

OF_THE_MACHINE = {detector.name for detector in machine_detectors()} | {"hang", "disk_full"}
MOST_OF_RANKS = 10
"""Trials of each fault of ranks, which take seconds to start."""
LONGEST = 1_250
"""Steps of a healthy run; more are other runs with other seeds."""


def clean_run(world: World, out: Path, clean: Clean, seed: int, steps: int) -> dict[str, Any]:
    """A healthy run and what was said about it."""
    folder = out / "clean"
    shutil.rmtree(folder, ignore_errors=True)
    config = clean.config(steps)
    run = start(world, folder, dataset=clean.dataset, seed=seed, config=config, parallel=clean.parallel)
    said = [(alert["detector"], alert["step"]) for alert in alerts(run, 1)]
    rows = [(float(row["loss"]), float(row["grad_norm"])) for row in run.metrics()]
    shutil.rmtree(folder)
    return {
        "name": clean.name,
        "seed": seed,
        "steps": len(rows),
        "training": [alert for alert in said if alert[0] not in OF_THE_MACHINE],
        "machine": [alert for alert in said if alert[0] in OF_THE_MACHINE],
        "peers": {peer: _alarms(peer, rows) for peer in PEERS},
    }


def _alarms(peer: str, rows: list[tuple[float, float]]) -> int:
    """How often a rule speaks, counted as ours are: again within some steps means the same."""
    rule, last, count = PEERS[peer](), -QUIET_STEPS - 1, 0
    for step, (loss, norm) in enumerate(rows):
        if rule.speaks(loss, norm):
            count += step - last > QUIET_STEPS
            last = step
    return count


class Records:
    """A file of JSON lines, read at the start and added to."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.rows: list[dict[str, Any]] = []
        if path.exists():
            self.rows = [json.loads(line) for line in path.read_text().splitlines()]

    def add(self, row: dict[str, Any]) -> None:
        self.rows.append(row)
        with self._path.open("a") as file:
            file.write(json.dumps(row) + "\n")


def _clean_pieces(steps: int) -> Iterator[tuple[Clean, int, int]]:
    """(settings, seed, steps) of healthy runs."""
    shares = sum(clean.share for clean in CLEAN)
    for clean in CLEAN if steps else ():
        left, seed = max(150, round(steps * clean.share / shares)), 1_000
        runs = -(-left // LONGEST)
        for number in range(runs):
            yield clean, seed + number, -(-left // runs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("build/chaos"))
    parser.add_argument("--corpora", type=Path, help="a folder of *.jsonl.zst with text and lang")
    parser.add_argument("--seeds", type=int, default=30, help="trials of an instant fault; half as many of a slow one")
    parser.add_argument("--clean-steps", type=int, default=30_000, help="healthy steps; 0 for none")
    parser.add_argument("--only", default="", help="a pattern: only faults whose names match it")
    parser.add_argument("--budget", type=float, default=float("inf"), help="seconds after which nothing new is begun")
    parser.add_argument("--report", type=Path, help="write the page here")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    started = time.monotonic()
    world = make_world(options.out, options.corpora)
    trials, clean = Records(options.out / "trials.jsonl"), Records(options.out / "clean.jsonl")
    done = {(row["case"], row["seed"]) for row in trials.rows}

    def time_left() -> bool:
        return time.monotonic() - started < options.budget

    for seed in range(options.seeds):
        for name in (*CASES, *RANKS):
            instant = name in CASES and CASES[name].instant
            wanted = options.seeds if instant else -(-options.seeds // 2)
            wanted = min(wanted, CASES[name].most if name in CASES else MOST_OF_RANKS)
            if (name, seed) in done or seed >= wanted or not re.search(options.only, name) or not time_left():
                continue
            if name in CASES:
                row = trial(world, options.out, name, CASES[name], seed)
            else:
                row = rank_trial(world, options.out, name, seed)
            trials.add(row)
            print(f"{name}, seed {seed}: {'not found' if row['found'] is None else row['found']}", flush=True)
    made = {(row["name"], row["seed"]) for row in clean.rows}
    for healthy, seed, steps in _clean_pieces(options.clean_steps):
        if (healthy.name, seed) in made or not time_left():
            continue
        row = clean_run(world, options.out, healthy, seed, steps)
        clean.add(row)
        print(f"{healthy.name}, seed {seed}, {steps:,} steps: {row['training'] + row['machine']}", flush=True)
    if options.report:
        versions = (
            f"torch {torch.__version__}, Python {platform.python_version()}, one thread of a {platform.machine()} CPU"
        )
        options.report.write_text(report(trials.rows, clean.rows, text=world.text, versions=versions), "utf-8")


if __name__ == "__main__":
    main()
