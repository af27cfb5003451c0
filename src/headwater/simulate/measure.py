"""What a machine can do, measured: products, attention, memory, messages, storage, and whole training steps.

In: nothing but the machine (its CPU, or the first GPU). Out: rates, the faster quarter of a few repetitions, so that
disturbance by others does not count.

    rates = measure_rates("bf16", folder=Path(".")); rates.products
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

from headwater.model import ModelConfig, keep_freed_memory
from headwater.model.attention import attend
from headwater.parallel.local_ranks import run_local_ranks
from headwater.parallel.mesh import Mesh
from headwater.parallel.precision import Precision, product_dtype_of
from headwater.train.batch import Batch
from headwater.train.config import TrainConfig
from headwater.train.devices import synchronise
from headwater.train.train_module import TrainModule

SHAPES = ((2048, 256, 256), (2048, 512, 256), (2048, 256, 1024), (2048, 1024, 512), (1024, 2048, 1024))
"""(M, N, K) of products that are timed."""

WINDOWS = ((8, 256, 6, 32), (2, 1024, 8, 64))
"""(rows, sequence, heads, head dimension) of attention that is timed, forward and backward."""


@dataclass(frozen=True)
class Probe:
    """A small model whose training steps are timed: `rows` samples of `seq` tokens in one micro-batch."""

    hidden: int
    layers: int
    heads: int
    ffn: int
    vocab: int
    seq: int
    rows: int


PROBES = (
    Probe(hidden=128, layers=4, heads=4, ffn=344, vocab=2048, seq=128, rows=4),
    Probe(hidden=192, layers=4, heads=6, ffn=512, vocab=4096, seq=256, rows=8),
    Probe(hidden=256, layers=8, heads=8, ffn=704, vocab=4096, seq=256, rows=8),
)


@dataclass(frozen=True)
class Rates:
    """Seconds of products and attention by shape, and of the smallest product (`launch`); bytes/s of memory, messages
    between two ranks and storage; `neighbours`: a step beside others at work on all processors, in steps alone, less
    one (0 on a GPU, which shares nothing)."""

    products: dict[tuple[int, int, int], float]
    launch: float
    attention: dict[tuple[int, int, int, int], float]
    memory: float
    messages: float
    message_latency: float
    storage: float
    neighbours: float


def clock_of(device: torch.device) -> Callable[[], float]:
    """The wall's clock; on a CPU with a single thread the process's own time, which others cannot take from it."""
    alone = device.type == "cpu" and torch.get_num_threads() == 1
    return time.process_time if alone else time.perf_counter


def quiet_seconds(work: Callable[[], object], device: torch.device, *, times: int = 7, least: float = 0.02) -> float:
    """The least disturbed of a few timings (a quarter are faster), each of as many calls as take `least` seconds."""
    clock = clock_of(device)
    work()
    synchronise(device)
    started = time.perf_counter()
    work()
    synchronise(device)
    calls = max(1, int(least / max(time.perf_counter() - started, 1e-7)))
    found = []
    for _ in range(times):
        started = clock()
        for _ in range(calls):
            work()
        synchronise(device)
        found.append((clock() - started) / calls)
    return sorted(found)[times // 4]


def measure_rates(precision: Precision, device: torch.device, folder: Path) -> Rates:
    """All but the training steps."""
    dtype = product_dtype_of(precision)
    products = {}
    for m, n, k in SHAPES:
        a, b = torch.randn(m, k, device=device, dtype=dtype), torch.randn(k, n, device=device, dtype=dtype)
        products[m, n, k] = quiet_seconds(lambda a=a, b=b: a @ b, device)  # type: ignore[misc]
    small = torch.randn(8, 8, device=device, dtype=dtype)
    launch = quiet_seconds(lambda: small @ small, device)
    attention = {shape: _attention(shape, device, dtype) for shape in WINDOWS}
    source = torch.empty(16 << 20, device=device)
    target = torch.empty_like(source)
    copied = quiet_seconds(lambda: target.copy_(source), device, times=5)
    memory = 2 * source.numel() * 4 / copied
    messages, latency = _messages()
    beside = _neighbours(precision) if device.type == "cpu" and ranks_here() > 1 else 0.0
    return Rates(products, launch, attention, memory, messages, latency, _storage(folder), beside)


def ranks_here() -> int:
    """Ranks of as many threads as this process has that the machine's processors can work for at once."""
    return max(1, len(os.sched_getaffinity(0)) // torch.get_num_threads())


def _attention(shape: tuple[int, int, int, int], device: torch.device, dtype: torch.dtype) -> float:
    q, k, v = (torch.randn(shape, device=device, dtype=dtype, requires_grad=True) for _ in range(3))

    def both() -> None:
        attend(q, k, v, None).sum().backward()

    return quiet_seconds(both, device, times=5)


def _messages() -> tuple[float, float]:
    """(bytes/s that a rank sends in a large all-reduce between two, seconds of a small one)."""
    large, small = zip(*run_local_ranks(2, _all_reduce, timeout=120.0), strict=True)
    return (4 << 20) / max(large), max(small)  # 2 (q - 1) / q of the message, q = 2


def _all_reduce() -> tuple[float, float]:
    found = []
    for numbers in (1 << 20, 16):
        values = torch.ones(numbers)
        timings = []
        for _ in range(8):
            started = time.perf_counter()
            dist.all_reduce(values)
            timings.append(time.perf_counter() - started)
        found.append(statistics.median(timings))
    return found[0], found[1]


def _neighbours(precision: Precision) -> float:
    """What memory and caches that all share cost a training step: the slowest of all ranks against one alone."""
    alone, together = (
        max(run_local_ranks(ranks, _probe_alone, precision, timeout=300.0)) for ranks in (1, ranks_here())
    )
    return max(0.0, together / alone - 1.0)


def _probe_alone(precision: Precision) -> float:
    """Seconds of the middle probe's step in this rank, which trains by itself."""
    keep_freed_memory()
    step, clock = _stepper(PROBES[1], precision, torch.device("cpu")), clock_of(torch.device("cpu"))
    found = []
    for turn in range(8):
        dist.barrier()  # all begin together
        started = clock()
        step()
        if turn >= 2:
            found.append(clock() - started)
    return statistics.median(found)


def _storage(folder: Path, size: int = 32 << 20) -> float:
    path = folder / f".tmp-calibrate-{os.getpid()}"
    data = os.urandom(1 << 20)
    try:
        started = time.perf_counter()
        with path.open("wb") as out:
            for _ in range(size >> 20):
                out.write(data)
            out.flush()
            os.fsync(out.fileno())
        return size / (time.perf_counter() - started)
    finally:
        path.unlink(missing_ok=True)


def step_seconds(precision: Precision, device: torch.device, *, times: int = 8) -> dict[Probe, float]:
    """Training steps of each probe, by the trainer's own code, with AdamW: a quarter of them took at most so long.

    Probes take turns, so that what else the machine does meets all of them.
    """
    clock = clock_of(device)
    steps = {probe: _stepper(probe, precision, device) for probe in PROBES}
    found: dict[Probe, list[float]] = {probe: [] for probe in PROBES}
    for turn in range(times + 2):
        for probe, step in steps.items():
            started = clock()
            step()
            if turn >= 2:
                found[probe].append(clock() - started)
    return {probe: sorted(seconds)[times // 4] for probe, seconds in found.items()}


def _stepper(probe: Probe, precision: Precision, device: torch.device) -> Callable[[], object]:
    model = ModelConfig(
        hidden_size=probe.hidden,
        num_hidden_layers=probe.layers,
        num_attention_heads=probe.heads,
        intermediate_size=probe.ffn,
        vocab_size=probe.vocab,
        max_position_embeddings=probe.seq,
    )
    config = TrainConfig.model_validate(
        {"steps": 1000, "global_batch": probe.rows, "seq_len": probe.seq, "compile": False}
    )
    module = TrainModule.build(
        model, config, mesh=Mesh.single(device), precision=precision, micro_batch=probe.rows, seed=0
    )
    tokens = torch.randint(0, probe.vocab, (probe.rows, probe.seq))
    batch = Batch(tokens, tokens)
    return lambda: module.train_step(1, batch, lr_factor=1.0)
