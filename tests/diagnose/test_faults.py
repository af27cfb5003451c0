"""Faults on purpose do what they say, from their step on, the same ones for the same seed, and nothing before it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headwater.diagnose.faults import (
    Betas,
    DeadHead,
    Fault,
    LearningRate,
    Overflow,
    PoisonedBatch,
    ScaledGradients,
    ShuffledTargets,
)
from headwater.diagnose.faults_bits import LAYOUT, FlippedGradient, FlippedWeight, bits_of, flip_bit
from headwater.diagnose.faults_machine import LostSaves, SlowLoader, SlowSteps
from headwater.train import RunFolder
from tests.train.conftest import World, world
from tests.train.test_detection import run_of

__all__ = ["world"]
STEPS = 30


@given(st.sampled_from(sorted(LAYOUT, key=str)), st.integers(0, 9), st.floats(-1e4, 1e4, width=16), st.data())
def test_a_bit_flips_alone_and_back(dtype: torch.dtype, element: int, value: float, data: st.DataObject) -> None:
    part = data.draw(st.sampled_from(["sign", "exponent", "mantissa"]))
    bit = data.draw(st.sampled_from(list(bits_of(dtype, part))))
    tensor = torch.full((10,), value, dtype=dtype)
    before = tensor.clone()
    flip_bit(tensor, element, bit)
    integers, bits, _ = LAYOUT[dtype]
    changed = tensor.view(integers) ^ before.view(integers)
    assert [number for number, word in enumerate(changed.tolist()) if word] == [element]
    assert int(changed[element]) % (1 << bits) == 1 << bit
    if part == "sign":
        assert tensor[element] == -before[element]
    flip_bit(tensor, element, bit)
    assert torch.equal(tensor.view(integers), before.view(integers))


def losses(run: RunFolder) -> list[float]:
    return [row["loss"] for row in run.metrics()]


FAULTS: dict[str, Fault] = {
    "poisoned": PoisonedBatch(20, seed=1),
    "a quarter poisoned": PoisonedBatch(20, share=0.25),
    "shuffled": ShuffledTargets(20),
    "rate": LearningRate(20, 30.0, growth=1.1),
    "betas": Betas(20, 0.0, 0.5, factor=2.0),
    "vanishing": ScaledGradients(20, 1e-9),
    "dead head": DeadHead(20, layer=1, head=1),
    "flipped weight": FlippedWeight(20, "sign", seed=1),
    "flipped gradient": FlippedGradient(20, "exponent", seed=1),
    "late": SlowLoader(20, seconds=0.02),
    "slow": SlowSteps(20, seconds=0.02),
}
CHANGED = set(FAULTS) - {"late", "slow"}


@pytest.fixture(scope="module")
def clean(world: World, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return run_of(world, tmp_path_factory.mktemp("clean") / "run", steps=STEPS)


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_begins_at_its_step(world: World, clean: RunFolder, tmp_path: Path, name: str) -> None:
    run = run_of(world, tmp_path / "run", FAULTS[name], steps=STEPS)
    before, after = losses(clean), losses(run)
    assert after[:19] == before[:19]
    assert (after[19:] != before[19:]) == (name in CHANGED)
    rows = list(run.metrics())
    if name == "late":
        assert all(row["data_wait_seconds"] >= 0.02 for row in rows[19:])
    if name == "slow":
        assert all(row["step_seconds"] >= 0.02 for row in rows[19:])
    if name == "rate":
        assert rows[20]["lr"] == pytest.approx(33 * list(clean.metrics())[20]["lr"])
    if name == "vanishing":
        assert rows[19]["grad_norm"] == pytest.approx(1e-9 * list(clean.metrics())[19]["grad_norm"])


def test_the_same_seed_gives_the_same_fault_and_another_another(world: World, tmp_path: Path) -> None:
    def flipped(seed: int) -> str:
        fault = FlippedWeight(3, "mantissa", seed=seed)
        run_of(world, tmp_path / f"{seed}-{len(list(tmp_path.iterdir()))}", fault, steps=6)
        return fault.flipped

    first, again, other = flipped(1), flipped(1), flipped(2)
    assert first == again != other
    assert first.startswith("model.")
    assert " bit " in first


def test_an_overflow_needs_a_run_in_fp16(world: World, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="only a run in fp16 has a loss scale"):
        run_of(world, tmp_path / "run", Overflow(3), steps=6)


def test_lost_saves_leave_the_checkpoint_before_them(world: World, tmp_path: Path) -> None:
    options: dict[str, Any] = {"steps": 30, "checkpoint": {"every": 10, "async_save": False}}
    run = run_of(world, tmp_path / "run", LostSaves(15), **options)
    assert [event["step"] for event in run.events() if event["event"] == "checkpoint"] == [10, 30]
    assert math.isfinite(losses(run)[-1])
