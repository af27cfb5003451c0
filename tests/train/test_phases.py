"""The plan of a run: lengths, phases, ramps and what each step reads."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from headwater.core.errors import RecipeError
from headwater.train.config import TrainConfig
from headwater.train.phases import plan_run


@st.composite
def configs(draw: st.DrawFn) -> TrainConfig:
    seq_len = draw(st.sampled_from((64, 128, 256)))
    batch = draw(st.sampled_from((8, 16, 32)))
    count = draw(st.integers(0, 4))
    unit = draw(st.sampled_from(("share", "tokens", "steps")))
    weights = [draw(st.integers(1, 9)) for _ in range(count)]
    phases = []
    for index, weight in enumerate(weights):
        length = {"share": weight / sum(weights), "tokens": weight * 50_000, "steps": weight * 40}[unit]
        phases.append(
            {
                "name": f"p{index}",
                unit: length,
                "seq_len": draw(st.sampled_from((None, 64, 128, 256))),
                "mixture": draw(st.sampled_from((None, {"web": 1.0}, {"web": 0.5, "code": 0.5}))),
                "schedule": draw(st.sampled_from((None, {"name": "linear", "min_ratio": 0.0}))),
            }
        )
    total = {}
    if not phases or unit == "share":
        total = draw(st.sampled_from(({"tokens": 2_000_000}, {"steps": 500})))
    ramp = draw(st.sampled_from((None, {"start": 4, "increment": 4, "steps": 20})))
    return TrainConfig(global_batch=batch, seq_len=seq_len, phases=phases, batch_ramp=ramp, **total)


@given(configs())
def test_segments_follow_each_other_without_gap_or_overlap(config: TrainConfig) -> None:
    try:
        plan = plan_run(config)
    except RecipeError:  # a phase that cannot be laid out is refused, see below
        return
    assert plan.segments[0].first_step == 1
    for before, after in zip(plan.segments, plan.segments[1:], strict=False):
        assert after.first_step == before.last_step + 1
    assert [p.name for p in plan.phases] == [p.name for p in config.phases] or not config.phases
    assert plan.phases[0].first_step == 1
    assert plan.phases[-1].last_step == plan.steps
    assert all(segment.steps > 0 for segment in plan.segments)
    assert plan.tokens_after(plan.steps) == plan.tokens
    assert plan.tokens_after(0) == 0


@given(configs(), st.data())
def test_every_step_has_one_segment_and_a_learning_rate(config: TrainConfig, data: st.DataObject) -> None:
    try:
        plan = plan_run(config)
    except RecipeError:
        return
    step = data.draw(st.integers(1, plan.steps))
    segment = plan.segment(step)
    assert segment.first_step <= step <= segment.last_step
    assert segment.phase == plan.phase(step).name
    assert 0 <= plan.lr_factor(step) <= 1
    assert plan.tokens_after(step) - plan.tokens_after(step - 1) == segment.tokens_per_step


@given(st.integers(1, 10**13), st.integers(1, 4096), st.sampled_from((128, 2048, 4096)))
def test_a_run_in_tokens_ends_with_the_step_that_reaches_them(tokens: int, batch: int, seq_len: int) -> None:
    plan = plan_run(TrainConfig(tokens=tokens, global_batch=batch, seq_len=seq_len))
    assert plan.tokens >= tokens
    assert plan.tokens - batch * seq_len < tokens


def test_llama_7b_has_the_published_number_of_steps() -> None:
    config = TrainConfig(tokens=2_000_000_000_000, global_batch=4096, seq_len=4096, schedule={"warmup_steps": 2500})
    assert plan_run(config).steps == 119_210


def test_a_share_is_of_the_tokens_even_when_batches_differ() -> None:
    config = TrainConfig(
        tokens=1_000_000,
        global_batch=10,
        seq_len=100,
        phases=[
            {"name": "stable", "share": 0.8},
            {"name": "long", "share": 0.2, "seq_len": 1000, "global_batch": 2, "rope_theta": 1e6},
        ],
    )
    plan = plan_run(config)
    assert [(s.steps, s.tokens_per_step, s.rope_theta) for s in plan.segments] == [(800, 1000, None), (100, 2000, 1e6)]


def test_a_longer_sequence_keeps_the_tokens_of_a_step() -> None:
    config = TrainConfig(
        steps=10,
        global_batch=32,
        seq_len=256,
        phases=[{"name": "a", "share": 0.5}, {"name": "b", "share": 0.5, "seq_len": 512}],
    )
    assert [(s.global_batch, s.seq_len) for s in plan_run(config).segments] == [(32, 256), (16, 512)]
    with pytest.raises(RecipeError, match="no whole number of samples"):
        plan_run(TrainConfig(steps=9, global_batch=3, seq_len=256, phases=[{"name": "a", "share": 1, "seq_len": 512}]))


def test_phases_without_a_schedule_share_the_runs() -> None:
    config = TrainConfig(
        steps=100,
        schedule={"name": "constant", "warmup_steps": 10},
        phases=[
            {"name": "stable", "share": 0.5},
            {"name": "decay", "share": 0.3, "schedule": {"name": "linear", "min_ratio": 0.0}},
            {"name": "long", "share": 0.2, "lr_ratio": 0.1, "schedule": {"name": "constant"}},
        ],
    )
    plan = plan_run(config)
    assert plan.lr_factor(5) == 0.5
    assert plan.lr_factor(50) == 1
    assert plan.lr_factor(65) == 0.5
    assert plan.lr_factor(80) == 0
    assert plan.lr_factor(81) == pytest.approx(0.1)


def test_a_batch_ramp_rises_in_equal_stretches() -> None:
    config = TrainConfig(steps=100, global_batch=32, batch_ramp={"start": 8, "increment": 8, "steps": 30})
    segments = plan_run(config).segments
    assert [(s.global_batch, s.steps) for s in segments] == [(8, 10), (16, 10), (24, 10), (32, 70)]


def test_a_ramp_that_does_not_fit_is_refused_with_the_field() -> None:
    for ramp in ({"start": 1, "increment": 1, "steps": 5}, {"start": 8, "increment": 8, "steps": 100}):
        with pytest.raises(RecipeError) as caught:
            plan_run(TrainConfig(steps=100, global_batch=32, batch_ramp=ramp))
        assert caught.value.where.startswith("train.batch_ramp")


def test_a_run_without_a_length_says_what_to_set() -> None:
    with pytest.raises(RecipeError) as caught:
        plan_run(TrainConfig())
    assert "train.tokens" in caught.value.mend


def test_a_warm_up_longer_than_its_schedule_is_refused() -> None:
    with pytest.raises(RecipeError, match="warm-up"):
        plan_run(TrainConfig(steps=10, schedule={"warmup_steps": 11}))


@pytest.mark.parametrize(
    "fields",
    [
        {"tokens": 10, "steps": 10},
        {"steps": 10, "phases": [{"name": "a", "share": 0.5}, {"name": "b", "share": 0.4}]},
        {"phases": [{"name": "a", "share": 0.5}, {"name": "b", "steps": 4}]},
        {"phases": [{"name": "a", "steps": 4, "tokens": 9}]},
        {"phases": [{"name": "a", "steps": 4}, {"name": "a", "steps": 4}]},
        {"steps": 9, "phases": [{"name": "a", "steps": 4}]},
        {"tokens": 9, "phases": [{"name": "a", "steps": 4}]},
        {"steps": 9, "mixture": {"web": -1}},
        {"steps": 9, "mixture": {}},
        {"steps": 9, "schedule": {"min_lr": 1.0}},
        {"steps": 9, "global_batch": 4, "batch_ramp": {"start": 8, "increment": 1, "steps": 2}},
        {"steps": 9, "surprise": 1},
    ],
)
def test_contradictions_are_refused(fields: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        TrainConfig(**fields)


def test_gradient_checkpointing_may_be_a_boolean() -> None:
    assert TrainConfig(activation_checkpointing=True).activation_checkpointing == "full"
