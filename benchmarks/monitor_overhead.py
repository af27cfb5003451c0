"""What a run pays for looking at itself: steps with and without a sample of all parameters and heads, in turns.

One real training loop (trainer, train module, collectors, record) on random tokens, in which every second step is
sampled as `monitor.collect` does by default every 50 steps: norms of all gradients and weights, measured updates,
attention heads, extremes, a Parquet file. Prints the medians of whole steps by the clock and by processor time, what a
sample costs, what the collectors and the record cost in every other step, and the share of the step time that all of it
takes at the default settings.

    python benchmarks/monitor_overhead.py --steps 80
    python benchmarks/monitor_overhead.py --hidden 128 --layers 4 --rows 4 --seq-len 128     # a toy, the worst case
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
from headwater.train.ledger import RunLedger, record_plan
from headwater.train.metrics import MetricsCallback
from headwater.train.outcome import StepOutcome
from headwater.train.phases import plan_run
from headwater.train.run_folder import RunFolder
from headwater.train.train_module import TrainModule
from headwater.train.trainer import Trainer

DEFAULT_EVERY = CollectConfig().every
WARM_UP = 4


class Tokens:
    """Random tokens in documents of about 64."""

    def __init__(self, rows: int, seq_len: int, vocabulary: int) -> None:
        self._shape, self._vocabulary = (rows, seq_len + 1), vocabulary

    def batches(self, first_step: int, last_step: int) -> Iterator[Batch]:
        for step in range(first_step, last_step + 1):
            generator = torch.Generator().manual_seed(step)
            tokens = torch.randint(self._vocabulary, self._shape, generator=generator)
            documents = (torch.rand(*self._shape, generator=generator) < 1 / 64).cumsum(1).int()
            yield Batch(
                tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous(), documents=documents[:, :-1].contiguous()
            )


class Watch(Callback):
    """Whole steps, from one to the next, by the clock and by processor time; `aside`: seconds in the callbacks."""

    name = "watch"

    def __init__(self) -> None:
        self.clock: list[float] = []
        self.processor: list[float] = []
        self._started = (0.0, 0.0)

    def before_step(self, trainer: Trainer, step: int) -> None:
        now = time.perf_counter(), time.process_time()
        if step > 1:
            self.clock.append(now[0] - self._started[0])
            self.processor.append(now[1] - self._started[1])
        self._started = now


class Aside(Callback):
    """Seconds that the callbacks between two of these take after a step."""

    def __init__(self, name: str, first: Aside | None = None) -> None:
        self.name, self._first = name, first
        self.at = 0.0
        self.spent: list[float] = []

    def after_step(self, trainer: Trainer, outcome: StepOutcome) -> None:
        self.at = time.perf_counter()
        if self._first is not None:
            self.spent.append(self.at - self._first.at)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=60, help="measured steps, half of them sampled")
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--vocabulary", type=int, default=8000)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--seq-len", type=int, default=256)
    parser.add_argument("--threads", type=int, default=1)
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
    monitor = MonitorConfig.model_validate({"console": False, "collect": {"every": 2}})
    module = TrainModule.build(
        model, config, mesh=Mesh.single(torch.device("cpu")), precision="fp32", micro_batch=arguments.rows, seed=0
    )
    watch, before = Watch(), Aside("before")
    after = Aside("after", before)
    with tempfile.TemporaryDirectory() as folder:
        run, plan = RunFolder(Path(folder)), plan_run(config)
        Trainer(
            plan=plan,
            module=module,
            batches=Tokens(arguments.rows, arguments.seq_len, arguments.vocabulary),
            run=run,
            ledger=record_plan(RunLedger(run.ledger_path), plan, seed=0, dataset_fingerprint="random"),
            callbacks=[watch, before, CollectorsCallback(monitor), MetricsCallback(monitor, steps), after],
            reporter=SILENT,
        ).fit()
    # Entry i is of step i + 1; steps of even number, and the first, were sampled.
    sampled = range(WARM_UP + 1, steps - 1, 2)
    plain = range(WARM_UP, steps - 1, 2)
    found: dict[str, object] = {
        "parameters": model.parameter_count(padded=True).total,
        "tokens_per_step": arguments.rows * arguments.seq_len,
        "threads": arguments.threads,
        "default_every": DEFAULT_EVERY,
    }
    for name, times in (("clock", watch.clock), ("processor", watch.processor)):
        with_sample, without = (statistics.median(times[i] for i in which) for which in (sampled, plain))
        found |= {
            f"{name}_plain_step_seconds": round(without, 5),
            f"{name}_sampled_step_seconds": round(with_sample, 5),
            f"{name}_ratio": round(with_sample / without, 4),
            f"{name}_share_of_samples": round((with_sample / without - 1) / DEFAULT_EVERY, 5),
        }
    always = statistics.median(after.spent[i] for i in plain)
    without = statistics.median(watch.clock[i] for i in plain)
    found["always_share"] = round(always / without, 5)
    share = statistics.median(watch.processor[i] for i in sampled) / statistics.median(
        watch.processor[i] for i in plain
    )
    found["share_at_defaults"] = round((share - 1) / DEFAULT_EVERY + always / without, 5)
    found |= {"torch": torch.__version__, "python": platform.python_version(), "machine": platform.processor()}
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
