"""Collectives: ring formulas, hierarchy, dispatch of experts."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.plan.coefficients import load
from headwater.plan.collectives import dispatch, group_bandwidth, ring

C = load()


def test_an_all_reduce_moves_twice_what_a_gather_does() -> None:
    big = 1e12
    reduce, gather = (float(ring(big, 8, 100e9, passes, C)) for passes in (2.0, 1.0))
    assert reduce == pytest.approx(2 * gather, rel=1e-3)
    assert gather == pytest.approx(7 / 8 * big / 100e9, rel=1e-3)


def test_one_rank_talks_to_nobody() -> None:
    assert float(ring(1e9, 1, 1e9, 2.0, C)) == 0.0
    assert float(dispatch(1e9, 8, 1, 8, 300e9, 25e9, C)) == 0.0


def test_a_group_across_nodes_drives_all_its_rails() -> None:
    inside = float(group_bandwidth(8, 8, 300e9, 25e9, C))
    one_rail = float(group_bandwidth(64, 1, 300e9, 25e9, C))
    all_rails = float(group_bandwidth(64, 8, 300e9, 25e9, C))
    assert inside == pytest.approx(300e9 * C.intra_efficiency)
    assert one_rail == pytest.approx(25e9 * C.inter_efficiency)
    assert all_rails == pytest.approx(8 * one_rail)


@given(message=st.floats(1e3, 1e12), ranks=st.integers(2, 4096), rate=st.floats(1e8, 1e12))
@settings(max_examples=50, deadline=None)
def test_more_bandwidth_is_never_slower(message: float, ranks: int, rate: float) -> None:
    assert float(ring(message, ranks, 2 * rate, 2.0, C)) <= float(ring(message, ranks, rate, 2.0, C))


def test_a_token_crosses_to_a_far_node_once_however_many_experts_live_there() -> None:
    few, many = (float(dispatch(1e8, k, 64, 8, 1e15, 25e9, C)) for k in (8, 64))
    assert many < 8 * few
    assert many <= 1e8 * 7 / (25e9 * C.inter_efficiency) + 1e-3
