"""One process against a layout: the same three steps, and the largest difference of loss, gradients, norm, weights.

differences = compare(ParallelConfig(tp=2, dp_shard=2))      # runs 1 + 4 processes
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.nn import functional as F

from headwater.dataset.steps import rank_slice
from headwater.model import ModelConfig
from headwater.model.loss import IGNORE
from headwater.parallel.config import ParallelConfig
from headwater.parallel.mesh import build_mesh
from headwater.train.batch import Batch
from headwater.train.config import TrainConfig
from headwater.train.train_module import TrainModule
from tests.parallel.ranks import run_ranks

MODEL = ModelConfig(
    hidden_size=64,
    num_hidden_layers=4,
    num_attention_heads=8,
    num_key_value_heads=4,
    intermediate_size=96,
    vocab_size=120,
    max_position_embeddings=64,
)
ROWS, SEQ, STEPS = 8, 32, 3


@dataclass
class Trace:
    """What three steps gave: everything whole, by name."""

    losses: list[float]
    norms: list[float]
    gradients: list[dict[str, Tensor]]
    before: dict[str, Tensor]
    after: dict[str, Tensor]


def batch(step: int, rows: range = range(ROWS), *, masked: bool = False) -> Batch:
    """Rows of a step, with documents of uneven length and rows that predict little; `masked`: of a masked model."""
    generator = torch.Generator().manual_seed(step)
    tokens = torch.randint(120, (ROWS, SEQ + 1), generator=generator)
    documents = (torch.rand(ROWS, SEQ + 1, generator=generator) < 0.15).cumsum(1).int()
    documents[1] = torch.arange(SEQ + 1).int()
    documents[1, :3] = 0
    targets = torch.where(documents[:, 1:] == documents[:, :-1], tokens[:, 1:], IGNORE)
    if masked:
        chosen = torch.rand(ROWS, SEQ, generator=generator) < 0.15
        targets = torch.where(chosen, tokens[:, :-1], IGNORE)
        tokens = torch.cat((tokens[:, :-1].masked_fill(chosen, 4), tokens[:, -1:]), 1)
    inputs = documents[:, :-1]
    starts = torch.where(F.pad(inputs.diff(dim=1) != 0, (1, 0)), torch.arange(SEQ), 0).cummax(1).values
    positions = (torch.arange(SEQ) - starts).int()
    part = slice(rows.start, rows.stop)
    return Batch(
        tokens[part, :-1].contiguous(),
        targets[part].contiguous(),
        positions[part].contiguous(),
        inputs[part].contiguous(),
        {"web": len(rows) * SEQ},
        100.0 * len(rows),
    )


def whole(tensor: Tensor) -> Tensor:
    full = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return full.detach().clone()


def train_config(**changes: Any) -> TrainConfig:
    values: dict[str, Any] = {"steps": STEPS, "optimizer": {"lr": 1e-3, "eps": 1e-6}, "clip_grad_norm": 0.5}
    return TrainConfig.model_validate(values | changes)


def trace(parallel: ParallelConfig, model: ModelConfig, config: TrainConfig, micro_batch: int) -> Trace:
    """Three steps by this process, as one rank of the layout."""
    mesh = build_mesh(parallel, torch.device("cpu"))
    module = TrainModule.build(model, config, mesh=mesh, precision="fp32", micro_batch=micro_batch, seed=3)
    rows = rank_slice(range(ROWS), mesh.coordinate("dp"), mesh.size("dp"))
    found = Trace([], [], [], {n: whole(p) for n, p in module._parameters.items()}, {})
    zero_grad = module.optimizer.zero_grad
    gradients: dict[str, Tensor] = {}

    def keep(set_to_none: bool = True) -> None:
        for name, parameter in module._parameters.items():
            if parameter.grad is not None:
                gradients[name] = whole(parameter.grad)
        zero_grad(set_to_none)

    module.optimizer.zero_grad = keep  # type: ignore[method-assign]
    for step in range(1, STEPS + 1):
        gradients = {}
        outcome = module.train_step(step, batch(step, rows, masked=config.objective.name == "mlm"), lr_factor=1.0)
        # Gradients as they were before clipping.
        found.gradients.append({n: g / outcome.clip_factor for n, g in gradients.items()})
        found.losses.append(outcome.loss)
        found.norms.append(outcome.grad_norm)
    found.after = {n: whole(p) for n, p in module._parameters.items()}
    return found


@dataclass
class Differences:
    loss: float
    norm: float
    gradient: float
    gradient_name: str
    change: float
    change_name: str


def one_process(model: ModelConfig, config: TrainConfig) -> Trace:
    return _one_process(model.model_dump_json(), config.model_dump_json())


@cache
def _one_process(model: str, config: str) -> Trace:
    torch.set_num_threads(1)
    return trace(
        ParallelConfig(), ModelConfig.model_validate_json(model), TrainConfig.model_validate_json(config), ROWS
    )


def compare(
    parallel: ParallelConfig, *, model: ModelConfig = MODEL, config: TrainConfig | None = None, micro_batch: int = 2
) -> Differences:
    """The largest differences over three steps and all ranks."""
    config = config or train_config()
    expected = one_process(model, config)
    traces = run_ranks(parallel.ranks, trace, parallel, model, config, micro_batch)
    worst = Differences(0, 0, 0, "", 0, "")
    for found in traces:
        for a, b in zip(found.losses, expected.losses, strict=True):
            worst.loss = max(worst.loss, abs(a - b) / abs(b))
        for a, b in zip(found.norms, expected.norms, strict=True):
            worst.norm = max(worst.norm, abs(a - b) / abs(b))
        for mine, theirs in zip(found.gradients, expected.gradients, strict=True):
            for name, gradient in mine.items():
                reference = theirs[name]
                difference = float((gradient - reference).abs().max() / reference.abs().max())
                if difference > worst.gradient:
                    worst.gradient, worst.gradient_name = difference, name
        for name, tensor in found.after.items():
            assert torch.equal(found.before[name], expected.before[name]), f"{name} starts differently"
            reference = expected.after[name] - expected.before[name]
            difference = float((tensor - expected.after[name]).norm() / reference.norm())
            if difference > worst.change:
                worst.change, worst.change_name = difference, name
    names = {name for found in traces for name in found.after}
    assert names == set(expected.after), names ^ set(expected.after)
    return worst


def assert_equal_to_one_process(found: Differences) -> None:
    assert found.loss <= 1e-5, found
    assert found.norm <= 1e-5, found
    assert found.gradient <= 1e-4, found
    assert found.change <= 1e-3, found
