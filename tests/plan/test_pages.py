"""The report page: what it shows, on paper white and at night, on a phone; and days against dollars without losers."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.plan import Layout, ModelSpec, TrainSpec, make_plan, parse_cluster, search, svg
from headwater.plan.quantities import four_digits
from headwater.plan.report import html
from headwater.plan.search import _pareto

MODEL = ModelSpec.from_fields(layers=32, hidden=4096, heads=32, kv_heads=8, ffn=14336, vocab=32000)
WORK = TrainSpec(tokens=1e11, seq=4096, global_batch=512)
NODES_8 = parse_cluster("a100-80gb:8x8")


@given(st.lists(st.tuples(st.integers(1, 6), st.floats(1, 100), st.floats(1, 100)), min_size=1, max_size=30))
def test_no_point_of_days_against_dollars_is_beaten_in_both(layouts: list[tuple[int, float, float]]) -> None:
    nodes, days, dollars = (np.array(column, dtype=float) for column in zip(*layouts, strict=True))
    front = _pareto(days, dollars, nodes)
    assert front[0]["days"] == days.min()
    for point in front:
        assert not any(o["days"] < point["days"] and o["dollars"] <= point["dollars"] for o in front)
        assert point["days"] == days[nodes == point["nodes"]].min()


def test_a_page_is_for_phones_and_for_the_night() -> None:
    found = search(MODEL, WORK, NODES_8, goal="cheapest", knobs={"pp": 2})
    page = html(make_plan(MODEL, WORK, NODES_8.with_nodes(found.nodes[0]), found.layouts[0]), found)
    assert 'name="viewport"' in page
    assert "prefers-color-scheme:dark" in page
    assert page.count('<div class="wide"><svg') == page.count("<svg") == 4  # wider than a phone: they scroll alone
    assert not re.search(r'(fill|stroke)="#(333|222|000|666|f3f3f3)"', page)  # no ink that a dark page swallows
    for nodes in {int(point["nodes"]) for point in found.pareto}:
        assert f">{nodes}</text>" in page


@pytest.mark.parametrize("most", [0.3, 1.0, 7.2, 163.0, 1e9])
def test_ticks_are_round_and_reach_the_largest(most: float) -> None:
    step = svg._tick(most)
    assert 5 * step >= most > step
    assert float(f"{step:.1e}") == pytest.approx(step)


def test_one_point_is_drawn_too() -> None:
    assert svg.scatter([(3.0, 1.0, "8", "8 nodes")], "days", "dollars").count("<circle") == 1


def test_a_plan_without_a_pipeline_has_no_timeline() -> None:
    assert "no pipeline" in html(make_plan(MODEL, WORK, NODES_8, Layout(dp=64)))


def test_large_figures_have_no_exponent() -> None:
    assert [four_digits(v) for v in (0.88, 7.4213, 9999.4, 9999.6, 10790.2, 98_130.0)] == [
        "0.88", "7.421", "9,999", "10,000", "10,790", "98,130",
    ]  # fmt: skip
    drawn = svg.stacked_bars({"step": {"matrix multiplies": 45_191.6, "attention": 6_309.5}}, "ms")
    assert "51,501 ms" in drawn
    assert "45,192 ms" in drawn
    assert "e+0" not in drawn
