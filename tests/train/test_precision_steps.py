"""fp16 and fp8 steps of the train module: the loss scale, what a skipped step leaves alone, resuming, layouts."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from headwater.model import ModelConfig
from headwater.parallel.config import ParallelConfig
from headwater.parallel.mesh import Mesh, build_mesh
from headwater.parallel.scaler import LossScaleError
from headwater.train.batch import Batch
from headwater.train.config import TrainConfig
from headwater.train.train_module import TrainModule
from tests.parallel.ranks import run_ranks

CPU = torch.device("cpu")
MODEL = ModelConfig(
    hidden_size=32, num_hidden_layers=4, num_attention_heads=2, num_key_value_heads=2, intermediate_size=64,
    vocab_size=96, max_position_embeddings=64, tie_word_embeddings=True,
)  # fmt: skip
ROWS, SEQ = 4, 16


def module(precision: str, mesh: Mesh | None = None, micro_batch: int = 2, **config: Any) -> TrainModule:
    config = {"optimizer": {"lr": 1e-3, "eps": 1e-6}, "averaging": {"name": "ema", "every": 1}, **config}
    return TrainModule.build(
        MODEL, TrainConfig(steps=10, **config), mesh=mesh or Mesh.single(CPU), precision=precision,  # type: ignore[arg-type]
        micro_batch=micro_batch, seed=1,
    )  # fmt: skip


def rows(step: int, rank: int = 0, ranks: int = 1) -> Batch:
    generator = torch.Generator().manual_seed(step)
    tokens = torch.randint(96, (ROWS, SEQ + 1), generator=generator)
    own = tokens[rank * ROWS // ranks : (rank + 1) * ROWS // ranks]
    return Batch(own[:, :-1].contiguous(), own[:, 1:].contiguous())


def copied(one: TrainModule) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in one.state_tensors().items()}


def test_fp16_trains_as_fp32_does_and_reports_its_scale() -> None:
    half, full = module("fp16"), module("fp32")
    for step in range(1, 4):
        a, b = half.train_step(step, rows(step), lr_factor=1.0), full.train_step(step, rows(step), lr_factor=1.0)
        assert a.loss == pytest.approx(b.loss, rel=2e-3)
        assert a.grad_norm == pytest.approx(b.grad_norm, rel=1e-2), "the norm is unscaled"
        assert (a.loss_scale, a.skipped) == (65536, False)
        assert (b.loss_scale, b.skipped) == (None, False)


def test_weights_moments_and_averages_stay_fp32() -> None:
    one = module("fp16")
    one.train_step(1, rows(1), lr_factor=1.0)
    for name, tensor in one.state_tensors().items():
        if not name.startswith("scaler."):
            assert tensor.dtype == torch.float32, name


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_skipped_step_changes_nothing_but_the_scale(optimizer: str) -> None:
    one = module("fp16", optimizer={"name": optimizer, "lr": 1e-3})
    one.train_step(1, rows(1), lr_factor=1.0)
    assert one.numerics.scaler is not None
    one.numerics.scaler.scale = 2.0**40
    before = copied(one)
    outcome = one.train_step(2, rows(2), lr_factor=1.0)
    assert outcome.skipped
    assert outcome.loss_scale == 2.0**40
    assert outcome.grad_norm == math.inf
    assert outcome.clip_factor == 0
    assert math.isfinite(outcome.loss), "the forward pass does not know the scale"
    after = one.state_tensors()
    assert before.keys() == after.keys()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {"scaler.scale", "scaler.skipped", "scaler.growth_tracker"}
    assert one.numerics.loss_scale == 2.0**39
    assert one.numerics.scaler.skipped == 1
    assert all(p.grad is None for p in one.parameters.values())


def test_the_scale_comes_down_until_steps_count_again() -> None:
    one = module("fp16", scaler={"init_scale": 2.0**40})
    skipped = 0
    for step in range(1, 40):
        if not one.train_step(step, rows(step), lr_factor=1.0).skipped:
            break
        skipped += 1
    assert 5 < skipped < 39
    assert one.numerics.loss_scale == 2.0 ** (40 - skipped)


def test_a_run_whose_gradients_always_overflow_stops_with_words() -> None:
    one = module("fp16", scaler={"init_scale": 2.0**50, "min_scale": 2.0**49})
    assert one.train_step(1, rows(1), lr_factor=1.0).skipped
    with pytest.raises(LossScaleError, match=r"step 2: gradients overflow.*floor"):
        one.train_step(2, rows(2), lr_factor=1.0)


def test_a_resumed_fp16_run_is_bitwise_the_undisturbed_one() -> None:
    config = {"scaler": {"init_scale": 2.0**30, "growth_interval": 3}}
    whole, first, second = module("fp16", **config), module("fp16", **config), module("fp16", **config)
    for step in range(1, 21):
        whole.train_step(step, rows(step), lr_factor=1.0)
    for step in range(1, 11):
        first.train_step(step, rows(step), lr_factor=1.0)
    second.load_state_tensors(copied(first))
    for step in range(11, 21):
        second.train_step(step, rows(step), lr_factor=1.0)
    assert whole.numerics.scaler is not None
    assert 0 < whole.numerics.scaler.skipped < 20
    for name, tensor in whole.state_tensors().items():
        assert torch.equal(tensor, second.state_tensors()[name]), name


def test_fp8_needs_no_loss_scale_and_trains() -> None:
    eight, half = module("fp8"), module("bf16")
    for step in range(1, 4):
        a, b = eight.train_step(step, rows(1), lr_factor=1.0), half.train_step(step, rows(1), lr_factor=1.0)
        assert a.loss == pytest.approx(b.loss, rel=5e-3)
    assert a.loss_scale is None
    assert not any(name.startswith("scaler.") for name in eight.state_tensors())


# Layouts against one process.


def trained(
    precision: str, mesh: Mesh | None, config: dict[str, Any], steps: int = 3
) -> list[tuple[float, float, bool]]:
    one = module(precision, mesh, micro_batch=1, **config)
    rank, ranks = (0, 1) if mesh is None else (mesh.coordinate("dp"), mesh.size("dp"))
    figures = []
    for step in range(1, steps + 1):
        outcome = one.train_step(step, rows(step, rank, ranks), lr_factor=1.0)
        figures.append((outcome.loss, outcome.grad_norm, outcome.skipped))
    return figures


def in_layout(precision: str, layout: dict[str, Any], config: dict[str, Any]) -> list[tuple[float, float, bool]]:
    return trained(precision, build_mesh(ParallelConfig(**layout), CPU), config)


LAYOUTS: dict[str, dict[str, Any]] = {
    "zero 3": {"dp_shard": 2},
    "tp": {"tp": 2},
    "pipeline": {"pp": 2},
    "zero-bubble": {"pp": 2, "schedule": "interleaved_zero_bubble", "virtual_stages": 2},
    "hybrid": {"dp_shard": 2, "tp": 2},
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("precision", "tolerance"), [("fp16", 5e-3), ("bf16", 1e-2), ("fp8", 3e-2)])
def test_a_layout_trains_as_one_process_does(layout: str, precision: str, tolerance: float) -> None:
    """Half precision rounds partial sums of tensor parallelism and, inside sharded blocks, the norms' weights."""
    expected = trained(precision, None, {})
    ranks = ParallelConfig(**LAYOUTS[layout]).ranks
    for found in run_ranks(ranks, in_layout, precision, LAYOUTS[layout], {}, timeout=120):
        for (loss, norm, skipped), (known_loss, known_norm, known_skipped) in zip(found, expected, strict=True):
            assert loss == pytest.approx(known_loss, rel=tolerance / 5)
            assert norm == pytest.approx(known_norm, rel=tolerance)
            assert skipped == known_skipped


@pytest.mark.parametrize("layout", ["pipeline", "hybrid"])
def test_all_ranks_skip_the_same_steps(layout: str) -> None:
    """With a scale that overflows somewhere: the decision is the same on every stage and shard, step by step."""
    config = {"scaler": {"init_scale": 2.0**26}}
    ranks = ParallelConfig(**LAYOUTS[layout]).ranks
    results = run_ranks(ranks, in_layout, "fp16", LAYOUTS[layout], config, timeout=120)
    assert all(result == results[0] for result in results)
    assert results[0][0][2], "the first step overflows"


REMAT: list[dict[str, Any]] = [
    {"activation_checkpointing": "full"},
    {"activation_checkpointing": "selective"},
    {"activation_checkpointing": "selective", "recompute": {"selective": "attention", "offload": True}},
    {"activation_checkpointing": "full", "recompute": {"every": 2}},
]


def losses_and_norms(layout: dict[str, Any]) -> list[list[tuple[float, float, bool]]]:
    mesh = build_mesh(ParallelConfig(**layout), CPU)
    return [trained("fp32", mesh, config, steps=2) for config in ({}, *REMAT)]


@pytest.mark.parametrize("layout", ["zero 3", "pipeline", "zero-bubble", "hybrid"])
def test_checkpointed_activations_change_no_figure_in_any_layout(layout: str) -> None:
    for plain, *others in run_ranks(
        ParallelConfig(**LAYOUTS[layout]).ranks, losses_and_norms, LAYOUTS[layout], timeout=120
    ):
        for other in others:
            for (loss, norm, _), (known_loss, known_norm, _) in zip(other, plain, strict=True):
                assert loss == pytest.approx(known_loss, rel=1e-6)
                assert norm == pytest.approx(known_norm, rel=1e-6)
