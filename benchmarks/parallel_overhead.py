"""What the distributed path costs where there is nothing to distribute: one process, with and without it.

The same 10M-parameter decoder, batch and optimizer, trained by a plain PyTorch loop (model, fused loss, clipping, fused
AdamW; no mesh, no process group, nothing of `headwater.parallel`) and by the train module as one rank of a gloo process
group, in turns: a step of one, a step of the other. Prints the medians of the clock and of processor time (which other
programs disturb less), their ratios and the largest difference of the losses.

    python benchmarks/parallel_overhead.py --steps 30
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import socket
import statistics
import time
from collections.abc import Callable

import torch

from headwater.model import BlockLayout, Decoder, ModelConfig, cross_entropy, init_weights, keep_freed_memory
from headwater.model.loss import IGNORE
from headwater.parallel import environment
from headwater.parallel.config import ParallelConfig
from headwater.parallel.environment import World
from headwater.parallel.mesh import build_mesh
from headwater.train.batch import Batch
from headwater.train.config import TrainConfig
from headwater.train.train_module import TrainModule

MODEL = ModelConfig(
    hidden_size=256,
    num_hidden_layers=8,
    num_attention_heads=8,
    num_key_value_heads=4,
    intermediate_size=704,
    vocab_size=8000,
    max_position_embeddings=256,
)
LR, BETAS, EPS, DECAY, CLIP = 3e-4, (0.9, 0.95), 1e-8, 0.1, 1.0

Step = Callable[[int, Batch], float]


def batch(step: int, rows: int, seq: int) -> Batch:
    """Random tokens in documents of about 64."""
    generator = torch.Generator().manual_seed(step)
    tokens = torch.randint(8000, (rows, seq + 1), generator=generator)
    documents = (torch.rand(rows, seq + 1, generator=generator) < 1 / 64).cumsum(1).int()
    targets = torch.where(documents[:, 1:] == documents[:, :-1], tokens[:, 1:], IGNORE)
    layout = BlockLayout(documents[:, :-1].contiguous())
    return Batch(
        tokens[:, :-1].contiguous(), targets, layout.positions().int().contiguous(), documents[:, :-1].contiguous()
    )


def plain_loop(micro_batch: int, bf16: bool) -> Step:
    """What one would write by hand."""
    model = Decoder(MODEL)
    init_weights(model, seed=0)
    groups = [
        {"params": [p for p in model.parameters() if p.ndim >= 2], "weight_decay": DECAY},
        {"params": [p for p in model.parameters() if p.ndim < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=LR, betas=BETAS, eps=EPS, fused=True)

    def step(number: int, rows: Batch) -> float:
        predicted = int((rows.targets != IGNORE).sum())
        nats = 0.0
        for start in range(0, rows.rows, micro_batch):
            part = slice(start, start + micro_batch)
            with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
                hidden = model(rows.tokens[part], rows.positions[part], BlockLayout(rows.documents[part]))  # type: ignore[index]
                loss = cross_entropy(hidden, model.lm_head_weight, rows.targets[part], vocab_size=MODEL.vocab_size)
            (loss.total / predicted).backward()
            nats += float(loss.nats)
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return nats / predicted

    return step


def distributed_path(micro_batch: int, bf16: bool) -> Step:
    """The train module as the only rank of a process group."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    device = torch.device("cpu")
    environment.start(World.from_env(), device)
    optimizer = {"lr": LR, "beta1": BETAS[0], "beta2": BETAS[1], "eps": EPS, "weight_decay": DECAY}
    config = TrainConfig.model_validate({"steps": 1, "optimizer": optimizer, "clip_grad_norm": CLIP})
    module = TrainModule.build(
        MODEL,
        config,
        mesh=build_mesh(ParallelConfig(), device),
        precision="bf16" if bf16 else "fp32",
        micro_batch=micro_batch,
        seed=0,
    )
    return lambda number, rows: module.train_step(number, rows, lr_factor=1.0).loss


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=30, help="measured steps of each, after two that are not")
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--seq-len", type=int, default=256)
    parser.add_argument("--micro-batch", type=int, default=8)
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    keep_freed_memory()
    bf16 = arguments.precision == "bf16"
    ways = {
        "plain": plain_loop(arguments.micro_batch, bf16),
        "distributed": distributed_path(arguments.micro_batch, bf16),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    processor: dict[str, list[float]] = {name: [] for name in ways}
    apart = 0.0
    for number in range(1, arguments.steps + 3):
        rows = batch(number, arguments.rows, arguments.seq_len)
        losses = {}
        for name in sorted(ways, reverse=number % 2 == 0):  # neither is always the first
            started, busy = time.perf_counter(), time.process_time()
            losses[name] = ways[name](number, rows)
            if number > 2:
                seconds[name].append(time.perf_counter() - started)
                processor[name].append(time.process_time() - busy)
        apart = max(apart, abs(losses["plain"] - losses["distributed"]) / losses["plain"])
    environment.stop()
    clock, busy_median = (
        {name: statistics.median(values) for name, values in kind.items()} for kind in (seconds, processor)
    )
    report = {
        "parameters": MODEL.parameter_count().total,
        "tokens_a_step": arguments.rows * arguments.seq_len,
        "steps": arguments.steps,
        "precision": arguments.precision,
        "clock_median_seconds": {name: round(value, 4) for name, value in clock.items()},
        "processor_median_seconds": {name: round(value, 4) for name, value in busy_median.items()},
        "clock_ratio": round(clock["distributed"] / clock["plain"], 4),
        "processor_ratio": round(busy_median["distributed"] / busy_median["plain"], 4),
        "largest_relative_difference_of_losses": apart,
        "torch": torch.__version__,
        "machine": f"{platform.machine()}, {arguments.threads} of {os.cpu_count()} threads",
    }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
