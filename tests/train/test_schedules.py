"""Learning-rate schedules: bounds, ends, monotone stretches, known values."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.train.config import ScheduleConfig
from headwater.train.schedules import decay_shape, factor

SHAPES = ("linear", "cosine", "one_minus_sqrt", "exponential")
NAMES = ("cosine", "wsd", "linear", "constant")


@st.composite
def schedules(draw: st.DrawFn) -> tuple[ScheduleConfig, int]:
    total = draw(st.integers(1, 5000))
    config = ScheduleConfig(
        name=draw(st.sampled_from(NAMES)),
        warmup_steps=draw(st.integers(0, total)),
        min_ratio=draw(st.floats(0, 1)),
        decay_ratio=draw(st.floats(0.001, 1)),
        decay_shape=draw(st.sampled_from(SHAPES)),
    )
    return config, total


@given(schedules(), st.data())
def test_every_schedule_stays_between_zero_and_the_peak(
    schedule: tuple[ScheduleConfig, int], data: st.DataObject
) -> None:
    config, total = schedule
    position = data.draw(st.integers(1, total))
    value = factor(config, position, total)
    assert 0 < value <= 1 or (value == 0 and config.min_ratio == 0)
    if position > config.warmup_steps:
        assert value >= config.min_ratio - 1e-12 or config.name == "constant"


@given(schedules())
def test_it_rises_in_the_warm_up_and_never_after(schedule: tuple[ScheduleConfig, int]) -> None:
    config, total = schedule
    positions = sorted(
        {1, config.warmup_steps, config.warmup_steps + 1, total // 2, total - 1, total} & set(range(1, total + 1))
    )
    values = [factor(config, p, total) for p in positions]
    for (p, a), (q, b) in zip(
        zip(positions, values, strict=True), list(zip(positions, values, strict=True))[1:], strict=False
    ):
        if q <= config.warmup_steps:
            assert a < b
        elif p > config.warmup_steps:
            assert b <= a + 1e-12


@given(schedules())
def test_a_decaying_schedule_ends_exactly_at_its_floor(schedule: tuple[ScheduleConfig, int]) -> None:
    config, total = schedule
    if config.name != "constant" and total > config.warmup_steps:
        assert factor(config, total, total) == config.min_ratio


@given(st.sampled_from(SHAPES), st.floats(0, 1), st.floats(0, 1))
def test_decay_shapes_fall_from_one_to_zero(shape: str, a: float, b: float) -> None:
    low, high = sorted((a, b))
    assert 0 <= decay_shape(shape, high) <= decay_shape(shape, low) <= 1  # type: ignore[arg-type]
    assert decay_shape(shape, 0) == 1  # type: ignore[arg-type]
    assert decay_shape(shape, 1) == 0  # type: ignore[arg-type]


def test_cosine_is_half_way_at_half_time() -> None:
    config = ScheduleConfig(name="cosine", min_ratio=0.1)
    assert factor(config, 500, 1000) == pytest.approx(0.55)
    assert factor(config, 250, 1000) == pytest.approx(0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi / 4)))


def test_wsd_is_flat_until_its_decay() -> None:
    config = ScheduleConfig(name="wsd", warmup_steps=10, decay_ratio=0.2, decay_shape="linear", min_ratio=0)
    assert [factor(config, step, 100) for step in (5, 10, 50, 80)] == [0.5, 1, 1, 1]
    assert factor(config, 90, 100) == pytest.approx(0.5)
    assert factor(config, 100, 100) == 0


def test_one_minus_sqrt_matches_the_paper() -> None:
    assert decay_shape("one_minus_sqrt", 0.25) == 0.5


def test_an_absolute_floor_is_a_ratio_of_the_peak() -> None:
    config = ScheduleConfig(name="linear", min_lr=3e-5)
    assert factor(config, 10, 10, peak_lr=3e-4) == pytest.approx(0.1)


def test_the_first_step_of_a_warm_up_already_moves() -> None:
    assert factor(ScheduleConfig(warmup_steps=100), 1, 1000) == 0.01


def test_a_warm_up_longer_than_the_run_is_refused() -> None:
    with pytest.raises(ValueError, match="longer than"):
        factor(ScheduleConfig(warmup_steps=11), 1, 10)
    with pytest.raises(ValueError, match="outside"):
        factor(ScheduleConfig(), 11, 10)
