"""What a run pays for looking at itself: watched steps and bare ones in turns.

Two train modules of one shape take the same batches in turns: one bare, one in the trainer's loop with the collectors,
the detectors and the record. Every second watched step is sampled as `monitor.collect` does by default every 50 steps:
norms of all gradients and weights, measured updates, attention heads, extremes, a Parquet file. Prints medians, by
processor time (which other programs disturb less) and by the clock, of pairs of neighbouring steps: what every watched
step costs, what a sample costs on top, and the share of the step time that all of it takes at the default settings.

    python benchmarks/monitor_overhead.py --steps 60
    python benchmarks/monitor_overhead.py --hidden 128 --layers 4 --rows 4 --seq-len 128 --vocabulary 2000    # a toy
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from headwater.core.progress import SILENT
from headwater.model import ModelConfig, keep_freed_memory
from headwater.monitor.config import CollectConfig, MonitorConfig
from headwater.parallel.mesh import Mesh
from headwater.train.batch import Batch
from headwater.train.callbacks import Callback
from headwater.train.collectors import CollectorsCallback
from headwater.train.config import TrainConfig
from headwater.train.detection import DetectionCallback
from headwater.train.ledger import RunLedger, record_plan
from headwater.train.metrics import MetricsCallback
from headwater.train.phases import plan_run
from headwater.train.run_folder import RunFolder
from headwater.train.train_module import TrainModule
from headwater.train.trainer import Trainer

DEFAULT_EVERY = CollectConfig().every
WARM_UP = 4


def batch(step: int, rows: int, seq_len: int, vocabulary: int) -> Batch:
    """Random tokens in documents of about 64."""
    generator = torch.Generator().manual_seed(step)
    tokens = torch.randint(vocabulary, (rows, seq_len + 1), generator=generator)
    documents = (torch.rand(rows, seq_len + 1, generator=generator) < 1 / 64).cumsum(1).int()
    return Batch(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous(), documents=documents[:, :-1].contiguous())


class Watch(Callback):
    """Times whole steps, from here to here, and a step of the bare module between two of them."""

    name = "watch"

    def __init__(self, bare: TrainModule, batches: list[Batch]) -> None:
        self._bare, self._batches = bare, batches
        self.watched: list[tuple[float, float]] = []
        self.bare: list[tuple[float, float]] = []
        self._started = (0.0, 0.0)

    def before_step(self, trainer: Trainer, step: int) -> None:
        if step > 1:
            self.watched.append(since(self._started))
        started = now()
        self._bare.train_step(step, self._batches[step - 1], lr_factor=1.0)
        self.bare.append(since(started))
        self._started = now()


def now() -> tuple[float, float]:
    return time.process_time(), time.perf_counter()


def since(started: tuple[float, float]) -> tuple[float, float]:
    """(processor, clock) seconds."""
    processor, clock = now()
    return processor - started[0], clock - started[1]


class Made:
    """Batches that are there already."""

    def __init__(self, batches: list[Batch]) -> None:
        self._batches = batches

    def batches(self, first_step: int, last_step: int) -> Iterator[Batch]:
        yield from self._batches[first_step - 1 : last_step]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=60, help="measured watched steps, half of them sampled")
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--vocabulary", type=int, default=8000)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--seq-len", type=int, default=256)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--detectors", choices=("all", "without-weights", "off"), default="all", help="all is the default of a run"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    keep_freed_memory()
    model = ModelConfig(
        hidden_size=arguments.hidden,
        num_hidden_layers=arguments.layers,
        num_attention_heads=arguments.hidden // 32,
        num_key_value_heads=max(1, arguments.hidden // 64),
        intermediate_size=arguments.hidden * 11 // 4,
        vocab_size=arguments.vocabulary,
        max_position_embeddings=arguments.seq_len,
    )
    steps = arguments.steps + WARM_UP
    config = TrainConfig.model_validate(
        {"steps": steps, "global_batch": arguments.rows, "seq_len": arguments.seq_len, "optimizer": {"lr": 3e-4}}
    )
    looking = {"enabled": arguments.detectors != "off", "check_weights": arguments.detectors == "all"}
    late = {"data_wait_share": 1.0, "slow_step_ratio": 100.0}  # the bare steps stand between two watched ones
    monitor = MonitorConfig.model_validate({"console": False, "collect": {"every": 2}, "detectors": looking | late})
    bare, watched = (
        TrainModule.build(
            model, config, mesh=Mesh.single(torch.device("cpu")), precision="fp32", micro_batch=arguments.rows, seed=0
        )
        for _ in range(2)
    )
    batches = [batch(step, arguments.rows, arguments.seq_len, arguments.vocabulary) for step in range(steps)]
    watch = Watch(bare, batches)
    with tempfile.TemporaryDirectory() as folder:
        run, plan = RunFolder(Path(folder)), plan_run(config)
        Trainer(
            plan=plan,
            module=watched,
            batches=Made(batches),
            run=run,
            ledger=record_plan(RunLedger(run.ledger_path), plan, seed=0, dataset_fingerprint="random"),
            callbacks=[
                watch,
                CollectorsCallback(monitor),
                DetectionCallback(monitor.detectors),
                MetricsCallback(monitor, steps),
            ],
            reporter=SILENT,
        ).fit()
    found: dict[str, object] = {
        "parameters": model.parameter_count(padded=True).total,
        "tokens_per_step": arguments.rows * arguments.seq_len,
        "threads": arguments.threads,
        "detectors": arguments.detectors,
        "default_every": DEFAULT_EVERY,
    }
    for place, name in enumerate(("processor", "clock")):
        # Entry i is of step i + 1; steps of even number were sampled.
        ratios = [w[place] / b[place] for w, b in zip(watch.watched, watch.bare, strict=False)]
        usual = statistics.median(ratios[i] for i in range(WARM_UP, len(ratios)) if i % 2 == 0)
        sampled = statistics.median(ratios[i] for i in range(WARM_UP, len(ratios)) if i % 2 == 1)
        found |= {
            f"{name}_bare_step_seconds": round(statistics.median(b[place] for b in watch.bare[WARM_UP:]), 5),
            f"{name}_share_of_every_step": round(usual - 1, 5),
            f"{name}_cost_of_a_sample_in_steps": round(sampled - usual, 4),
            f"{name}_share_of_samples": round((sampled - usual) / DEFAULT_EVERY, 5),
            f"{name}_share_at_defaults": round(usual - 1 + (sampled - usual) / DEFAULT_EVERY, 5),
        }
    found |= {"torch": torch.__version__, "python": platform.python_version(), "machine": platform.machine()}
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
