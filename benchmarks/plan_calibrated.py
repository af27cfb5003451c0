"""How well a calibrated machine file predicts this project's own runs: step time and peak memory, run by run.

Text of Python's standard library is packed once; then real runs (one process, accumulation, data, tensor and pipeline
parallel on two ranks, several sizes) go through `headwater train`, each with one thread a rank. The machine is measured
before the first, in the middle and after the last; a run is compared with the measurement nearest to it. Prints
predicted by measured for each run (its median step and its least disturbed quarter), and the medians of their errors.

    python benchmarks/plan_calibrated.py                       # all runs: ten minutes on two free cores
    python benchmarks/plan_calibrated.py --only 192,dp2 --json
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path
from typing import Any

SMALL = ("model.hidden_size=192", "model.num_hidden_layers=6", "model.num_attention_heads=6",
         "model.intermediate_size=512")  # fmt: skip
LARGE = ("model.hidden_size=256", "model.num_hidden_layers=8", "model.num_attention_heads=8",
         "model.intermediate_size=704")  # fmt: skip
RUNS: dict[str, tuple[str, ...]] = {
    "128": ("model.hidden_size=128", "model.num_hidden_layers=4", "model.num_attention_heads=4",
            "model.intermediate_size=344"),
    "192": SMALL,
    "256": LARGE,
    "256, seq 512": (*LARGE, "train.seq_len=512", "train.global_batch=8"),
    "320": ("model.hidden_size=320", "model.num_hidden_layers=6", "model.num_attention_heads=10",
            "model.intermediate_size=864"),
    "accumulation": (*LARGE, "parallel.micro_batch=4"),
    "dp2": (*LARGE, "parallel.dp_replicate=2"),
    "zero3": (*LARGE, "parallel.dp_shard=2", "parallel.zero_stage=3"),
    "tp2": (*LARGE, "parallel.tp=2"),
    "pp2": (*LARGE, "parallel.pp=2", "parallel.micro_batch=4"),
}  # fmt: skip


def headwater(*arguments: str, folder: Path) -> str:
    """Standard output of a command; what it said on the other channel, if it fails."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [str(Path(sys.executable).parent / "headwater"), *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(arguments)}\n{done.stderr[-2000:]}{done.stdout[-2000:]}")
    return done.stdout


def make_data(folder: Path) -> None:
    """A packed dataset of the standard library's text, in `packed`."""
    sources = sorted(Path(textwrap.__file__).parent.glob("*.py"))[:150]
    rows = [json.dumps({"text": source.read_text("utf-8", "replace")}) for source in sources]
    (folder / "raw.jsonl").write_text("\n".join(rows) + "\n", "utf-8")
    headwater("tokenize", "raw.jsonl", "--out", "packed", "--set", "tokenizer.vocab_size=4096", folder=folder)


def train(name: str, steps: int, precision: str, folder: Path) -> Path:
    settings = ["train.seq_len=256", "train.global_batch=16", f"train.steps={steps}", f"train.precision={precision}",
                "train.optimizer.name=adamw", "model.max_position_embeddings=512", *RUNS[name]]  # fmt: skip
    out = folder / "runs" / name.replace(", ", "-").replace(" ", "")
    words = [word for setting in settings for word in ("--set", setting)]
    headwater("train", "packed", "--out", str(out), *words, "--quiet", folder=folder)
    return out


def calibrate(number: int, precision: str, folder: Path) -> str:
    name = f"machine-{number}.yaml"
    headwater("plan", "calibrate", "--output", name, "--precision", precision, "--quiet", folder=folder)
    return name


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", help="names of runs, by commas")
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    names = options.only.split(",") if options.only else list(RUNS)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        make_data(folder)
        machines, runs = {-1: calibrate(0, options.precision, folder)}, {}
        for place_in_turn, name in enumerate(names):
            runs[name] = train(name, options.steps, options.precision, folder)
            if place_in_turn + 1 in (len(names) // 2, len(names)):
                machines[place_in_turn] = calibrate(place_in_turn + 1, options.precision, folder)
        found: dict[str, Any] = {}
        for place_in_turn, name in enumerate(names):
            nearest = machines[min(machines, key=lambda place: abs(place + 0.5 - place_in_turn))]
            compared = headwater("plan", "compare", str(runs[name]), "--cluster", nearest, "--json", folder=folder)
            found[name] = json.loads(compared)["ratio"]
    errors = {
        key: statistics.median(abs(ratio[key] - 1.0) for ratio in found.values())
        for key in ("step", "quiet_step", "memory")
    }
    if options.json:
        print(json.dumps({"runs": found, "median_abs_error": errors}, indent=2))
        return
    print(f"{'predicted by measured':<24}{'step':>8}{'quiet':>8}{'memory':>8}")
    for name, ratio in found.items():
        print(f"{name:<24}{ratio['step']:>8.2f}{ratio['quiet_step']:>8.2f}{ratio['memory']:>8.2f}")
    print(f"{'median error':<24}{errors['step']:>8.1%}{errors['quiet_step']:>8.1%}{errors['memory']:>8.1%}")


if __name__ == "__main__":
    main()
