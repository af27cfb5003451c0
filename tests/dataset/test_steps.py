"""Steps, batches and ranks."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.core.errors import RecipeError
from headwater.dataset.order import DomainUse
from headwater.dataset.steps import StepOrder, StepSegment, check_epochs, describe_use, rank_slice

STREAMS = {"web": 5000, "books": 3000}


@st.composite
def step_orders(draw: st.DrawFn) -> StepOrder:
    steps = sorted(draw(st.sets(st.integers(2, 30), max_size=4)))
    batches = draw(st.lists(st.integers(1, 9), min_size=len(steps) + 1, max_size=len(steps) + 1))
    segments = [
        StepSegment(first, batch, draw(st.sampled_from([8, 16])))
        for first, batch in zip([1, *steps], batches, strict=True)
    ]
    return StepOrder(STREAMS, seed=1, segments=segments)


@given(step_orders())
@settings(max_examples=40)
def test_steps_read_consecutive_samples_under_any_batch_ramp(order: StepOrder) -> None:
    position = 0
    for step in range(1, 45):
        samples = order.range(step)
        assert samples.start == position
        assert len(samples) == order.segment(step).global_batch
        assert {order.step_of(sample) for sample in samples} == {step}
        assert {ref.seq_len for ref in order.batch(step)} == {order.segment(step).seq_len}
        position = samples.stop
        assert order.samples_until(step) == position
    assert order.samples_until(0) == 0


@given(st.integers(0, 100), st.integers(0, 200), st.integers(1, 13))
def test_ranks_share_a_batch_without_gap_or_overlap(first: int, size: int, world: int) -> None:
    parts = [rank_slice(range(first, first + size), rank, world) for rank in range(world)]
    assert [sample for part in parts for sample in part] == list(range(first, first + size))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    with pytest.raises(ValueError, match="outside"):
        rank_slice(range(4), world, world)


def test_steps_count_from_one_and_segments_come_in_order() -> None:
    order = StepOrder(STREAMS, seed=1, segments=[StepSegment(1, 4, 8)])
    with pytest.raises(ValueError, match="count from 1"):
        order.range(0)
    for bad in ([], [StepSegment(2, 4, 8)], [StepSegment(1, 4, 8), StepSegment(1, 4, 8)], [StepSegment(1, 0, 8)]):
        with pytest.raises(ValueError):
            StepOrder(STREAMS, seed=1, segments=bad)


def test_repeats_are_told_and_limited_with_numbers() -> None:
    order = StepOrder(STREAMS, seed=1, segments=[StepSegment(1, 10, 8, {"web": 1, "books": 9})])
    use = order.use(400)
    (line, _) = describe_use(use)
    assert line == "books: 90.0% of the tokens, 28,800 from 3,000, 9.63 epochs"
    (warning,) = check_epochs(use, None)
    assert "'books' has 3,000 tokens and would be read 9.63 times" in warning
    with pytest.raises(RecipeError, match=r"9\.63 times, above max_epochs 5"):
        check_epochs(use, 5)
    assert check_epochs({"web": DomainUse(5000, 10, 80, 0.1)}, 1.0) == []
    assert "is not read" in check_epochs({"law": DomainUse(90, 0, 0, 0.0)}, None)[0]
