"""Statistics against values worked out by hand, and laws that hold for any scores."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.evaluate import statistics as s

RIGHT = st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=60)


def test_mcnemar_is_the_exact_binomial_test() -> None:
    # 8 items only A has right, 2 only B: 2 * (1 + 10 + 45) / 1024
    first = [1.0] * 8 + [0.0] * 2 + [1.0] * 30
    second = [0.0] * 8 + [1.0] * 2 + [1.0] * 30
    test = s.mcnemar(first, second)
    assert (test.only_first, test.only_second) == (8, 2)
    assert test.p_value == pytest.approx(112 / 1024, abs=1e-12)


@given(st.integers(0, 12), st.integers(0, 12))
def test_the_sign_test_counts_what_a_fair_coin_does(wins: int, losses: int) -> None:
    n = wins + losses
    if n > 12:
        return
    fewer = min(wins, losses)
    ways = sum(1 for throws in product((0, 1), repeat=n) if sum(throws) <= fewer)
    assert s.sign_test(wins, losses) == pytest.approx(min(1.0, 2 * ways / 2**n), abs=1e-9)


def test_a_thousand_items_do_not_overflow_the_sign_test() -> None:
    assert s.sign_test(0, 5000) == pytest.approx(0.0, abs=1e-300)
    assert s.sign_test(2500, 2500) == 1.0


def test_mcnemar_refuses_scores_that_are_no_verdicts() -> None:
    with pytest.raises(ValueError, match="right"):
        s.mcnemar([0.5, 1.0], [1.0, 0.0])


@settings(deadline=None, max_examples=40)
@given(RIGHT)
def test_a_paired_interval_holds_its_difference_and_turns_with_the_order(pairs: list[tuple[bool, bool]]) -> None:
    first, second = [float(a) for a, _ in pairs], [float(b) for _, b in pairs]
    one, other = s.paired_bootstrap(first, second, resamples=200), s.paired_bootstrap(second, first, resamples=200)
    assert one.low - 1e-9 <= one.value <= one.high + 1e-9
    assert (one.low, one.high) == pytest.approx((-other.high, -other.low))
    assert one.p_value == pytest.approx(other.p_value)


def test_a_paired_interval_is_narrower_than_an_unpaired_one() -> None:
    hard = np.random.default_rng(1).random(400)
    first, second = (hard > 0.5).astype(float), (hard > 0.47).astype(float)
    paired = s.paired_bootstrap(first, second)
    apart = s.bootstrap(first)
    assert paired.low > 0
    assert (paired.p_value or 1) < 0.01
    assert paired.high - paired.low < (apart.high - apart.low) / 2


def test_the_bootstrap_agrees_with_the_formula_for_a_mean() -> None:
    values = np.random.default_rng(0).normal(size=500)
    error = values.std(ddof=1) / math.sqrt(500)
    interval = s.bootstrap(values, resamples=4000)
    assert interval.low == pytest.approx(values.mean() - 1.96 * error, abs=0.15 * error)
    assert interval.high == pytest.approx(values.mean() + 1.96 * error, abs=0.15 * error)


def test_perplexity_of_a_corpus_is_a_ratio_of_sums() -> None:
    interval = s.perplexity_interval([10.0, 30.0], [10, 10], resamples=200)
    assert interval.value == pytest.approx(math.exp(2))
    assert interval.low == pytest.approx(math.exp(1))
    assert interval.high == pytest.approx(math.exp(3))


def test_the_detectable_difference_is_the_textbook_one() -> None:
    # differences +1 and -1 in equal numbers: sample deviation sqrt(100/99)
    first, second = [0.0, 1.0] * 50, [1.0, 0.0] * 50
    error = math.sqrt(100 / 99) / 10
    found = s.minimum_detectable_difference(first, second)
    assert found == pytest.approx((1.959963984540054 + 0.8416212335729143) * error, rel=1e-9)
    assert s.minimum_detectable_difference([1.0], [0.0]) == math.inf


def test_items_that_all_agree_do_not_make_every_difference_detectable() -> None:
    # Six items that only one model has right are the fewest with p <= 0.05: 2 x 0.5^6 = 0.031, of five 0.0625.
    assert s.minimum_detectable_difference([1.0] * 200, [1.0] * 200) == pytest.approx(6 / 200)
    assert s.minimum_detectable_difference([1.0, 0.0, 1.0], [1.0, 1.0, 1.0]) == math.inf
    assert s.minimum_detectable_difference([1.0] * 10, [1.0] * 10, confidence=0.99) == pytest.approx(8 / 10)
    assert math.isnan(s.minimum_detectable_difference([0.5, 0.7], [0.5, 0.7]))


@pytest.mark.parametrize(("probability", "z"), [(0.5, 0.0), (0.975, 1.959963984540054), (0.001, -3.090232306167813)])
def test_quantiles_of_the_normal_distribution_are_those_of_tables(probability: float, z: float) -> None:
    assert s.normal_quantile(probability) == pytest.approx(z, abs=1e-9)


def test_holm_is_the_published_step_down() -> None:
    assert s.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])


@pytest.mark.parametrize(("first", "second"), [([], []), ([1.0], [1.0, 0.0]), ([math.nan], [1.0])])
def test_what_cannot_be_compared_is_refused(first: list[float], second: list[float]) -> None:
    with pytest.raises(ValueError, match="score"):
        s.paired_bootstrap(first, second)
