"""Bubbles: closed forms against the event-driven simulator and against the papers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.core.errors import InputError
from headwater.plan.cases import Schedule
from headwater.plan.pipeline_events import simulate
from headwater.plan.pipeline_vshape import simulate_v
from headwater.plan.schedules import bubble_seconds, in_flight, stage_layers

KINDS = {
    "gpipe": Schedule.GPIPE,
    "1f1b": Schedule.ONE_F_ONE_B,
    "interleaved_1f1b": Schedule.INTERLEAVED,
    "zb_h1": Schedule.ZB_H1,
}


@given(
    name=st.sampled_from(["gpipe", "1f1b", "interleaved_1f1b"]),
    ranks=st.integers(2, 6),
    groups=st.integers(1, 5),
    chunks=st.integers(1, 4),
    f=st.floats(0.1, 5.0),
    b=st.floats(0.1, 5.0),
    w=st.floats(0.1, 5.0),
)
@settings(max_examples=60, deadline=None)
def test_the_simulator_takes_exactly_the_time_of_the_closed_form(
    name: str, ranks: int, groups: int, chunks: int, f: float, b: float, w: float
) -> None:
    m = ranks * groups
    chunks = chunks if name == "interleaved_1f1b" else 1
    events = simulate(
        name, ranks=ranks, micro_batches=m, forward=f / chunks, dgrad=b / chunks, wgrad=w / chunks, chunks=chunks
    )
    idle = float(bubble_seconds(KINDS[name], ranks, chunks, f, b, w))
    if name == "interleaved_1f1b" and chunks > 1 and abs(f - b - w) > 1e-9 and groups == 1:
        # With one group of micro-batches all forwards run before all backwards: never better than the formula.
        assert events.makespan >= m * (f + b + w) + idle - 1e-9
    else:
        assert events.makespan == pytest.approx(m * (f + b + w) + idle, rel=1e-9)


@pytest.mark.parametrize(("ranks", "m"), [(2, 4), (4, 12), (8, 24)])
def test_zero_bubble_h1_takes_the_time_of_its_paper_with_equal_passes(ranks: int, m: int) -> None:
    events = simulate("zb_h1", ranks=ranks, micro_batches=m, forward=1.0, dgrad=1.0, wgrad=1.0)
    assert events.makespan == pytest.approx(3 * m + float(bubble_seconds(Schedule.ZB_H1, ranks, 1, 1.0, 1.0, 1.0)))
    assert max(events.peak_in_flight) <= ranks


def test_one_f_one_b_holds_as_many_micro_batches_as_stages_remain() -> None:
    events = simulate("1f1b", ranks=4, micro_batches=12, forward=1, dgrad=1, wgrad=1)
    assert events.peak_in_flight == (4, 3, 2, 1)
    stages = np.arange(4.0)
    assert list(in_flight(Schedule.ONE_F_ONE_B, 4.0, 1.0, 12.0, stages)) == [4, 3, 2, 1]


def test_interleaving_holds_what_the_formula_says() -> None:
    events = simulate("interleaved_1f1b", ranks=4, micro_batches=16, chunks=3, forward=1, dgrad=1, wgrad=1)
    held = in_flight(Schedule.INTERLEAVED, 4.0, 3.0, 16.0, np.arange(4.0)) * 3
    assert list(events.peak_in_flight) == pytest.approx(list(held))


def test_the_field_s_175b_recipe_idles_23_percent_and_6_with_interleaving() -> None:
    plain = float(bubble_seconds(Schedule.ONE_F_ONE_B, 8, 1, 1.0, 1.0, 1.0))
    assert plain / (plain + 24 * 3) == pytest.approx(7 / 31)
    four = float(bubble_seconds(Schedule.INTERLEAVED, 8, 4, 1.0, 1.0, 1.0))
    assert four / (four + 24 * 3) == pytest.approx(7 / (4 * 24 + 7))


def test_zero_bubble_rates_of_the_paper_lie_just_above_ours() -> None:
    """Table 5 of Qi et al.: p=8, m=24: 1F1B 0.235-0.243, ZB-H1 0.132-0.159; p2p time makes up the rest."""
    one = float(bubble_seconds(Schedule.ONE_F_ONE_B, 8, 1, 1.0, 1.0, 1.0))
    h1 = float(bubble_seconds(Schedule.ZB_H1, 8, 1, 1.0, 1.0, 1.0))
    assert 0.20 < one / (one + 72) < 0.243
    assert 0.08 < h1 / (h1 + 72) < 0.159


def test_no_schedule_is_slower_than_one_f_one_b() -> None:
    base = float(bubble_seconds(Schedule.ONE_F_ONE_B, 8, 1, 1.0, 1.2, 0.9))
    for kind in Schedule:
        chunks = 2 if kind in (Schedule.INTERLEAVED, Schedule.INTERLEAVED_ZB, Schedule.ZB_V, Schedule.DUALPIPE_V) else 1
        assert 0.0 <= float(bubble_seconds(kind, 8, chunks, 1.0, 1.2, 0.9)) <= base + 1e-12


@given(layers=st.integers(1, 200), p=st.integers(1, 32), spread=st.sampled_from([0, 1, 2, 3]))
@settings(max_examples=100, deadline=None)
def test_stages_hold_no_fewer_layers_than_there_are(layers: int, p: int, spread: int) -> None:
    if p > layers:
        return
    first, full, last = (float(np.asarray(v)) for v in stage_layers(float(layers), float(p), spread, 1.0))
    assert (full if p == 1 else first + full * (p - 2) + last) >= layers
    assert min(first, full, last) >= -1


def test_a_schedule_that_does_not_divide_is_refused() -> None:
    with pytest.raises(InputError, match="7 micro-batches"):
        simulate("interleaved_1f1b", ranks=4, micro_batches=7, chunks=2, forward=1, dgrad=1, wgrad=1)
    with pytest.raises(InputError, match="no event order"):
        simulate("zbv", ranks=4, micro_batches=8, forward=1, dgrad=1, wgrad=1)


@pytest.mark.parametrize(("ranks", "m"), [(2, 8), (4, 12), (8, 24)])
def test_the_v_shaped_schedule_idles_less_than_h1_and_holds_no_more_than_one_f_one_b(ranks: int, m: int) -> None:
    events = simulate_v(ranks=ranks, micro_batches=m, forward=0.5, dgrad=0.5, wgrad=0.5)
    closed = float(bubble_seconds(Schedule.ZB_V, ranks, 2, 1.0, 1.0, 1.0))
    h1 = float(bubble_seconds(Schedule.ZB_H1, ranks, 1, 1.0, 1.0, 1.0))
    assert 3 * m <= 3 * m + closed - 1e-9 <= events.makespan <= 3 * m + h1 + 1e-9
    assert max(events.peak_in_flight) <= 2 * ranks
    kinds = {(w.kind, w.chunk) for w in events.work}
    assert len(kinds) == 6
    assert len(events.work) == 6 * ranks * m
