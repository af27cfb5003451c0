"""Quotas are exact at every prefix, and any sample can be found at once."""

from contextlib import suppress
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.core.errors import RecipeError
from headwater.dataset.mixture import FINEST, Mixture, whole_weights

weights = st.lists(st.integers(1, 60), min_size=1, max_size=9).map(lambda w: {f"d{i}": x for i, x in enumerate(w)})


@given(weights)
def test_every_prefix_is_within_one_sample_of_its_quota(found: dict[str, int]) -> None:
    mixture = Mixture(found)
    total = sum(found.values())
    names = [mixture.domain(sample) for sample in range(2 * mixture.block)]
    for name, weight in found.items():
        counts = np.cumsum([drawn == name for drawn in names])
        for prefix, count in enumerate(counts, 1):
            assert abs(count - Fraction(prefix * weight, total)) < 1
        assert counts[mixture.block - 1] * total == mixture.block * weight  # exact at every block


@given(weights, st.integers(0, 10**12))
def test_count_and_place_undo_each_other_anywhere(found: dict[str, int], sample: int) -> None:
    mixture = Mixture(found)
    name = mixture.domain(sample)
    number = mixture.count(name, sample)
    assert mixture.place(name, number) == sample
    assert mixture.count(name, sample + 1) == number + 1
    assert sum(mixture.count(other, sample) for other in found) == sample


def test_percentages_make_a_block_of_a_hundred_samples() -> None:
    parts = whole_weights({"web": 0.45, "books": 0.25, "code": 0.15, "papers": 0.08, "other": 0.07})
    assert parts == {"web": 45, "books": 25, "code": 15, "papers": 8, "other": 7}
    assert whole_weights({"web": 45, "books": 25, "code": 15, "papers": 8, "other": 7}) == parts
    assert whole_weights({"a": 1, "b": 1, "c": 1}) == {"a": 1, "b": 1, "c": 1}
    assert whole_weights({"a": 0.1, "b": 0.2}) == {"a": 1, "b": 2}
    assert whole_weights({"a": 0.999, "b": 0.001}) == {"a": 999, "b": 1}
    assert whole_weights({"a": 3.0, "b": 0.0}) == {"a": 1}


@given(st.dictionaries(st.text(max_size=3), st.integers(10**6, 10**13), min_size=1, max_size=8))
def test_token_counts_are_rounded_to_parts_of_a_bounded_block(sizes: dict[str, int]) -> None:
    total = sum(sizes.values())
    if min(sizes.values()) < total / FINEST:  # may round to nothing
        with suppress(RecipeError):
            assert min(whole_weights(sizes).values()) > 0
        return
    parts = whole_weights(sizes)
    assert sum(parts.values()) <= FINEST
    for name, size in sizes.items():
        assert abs(parts[name] / sum(parts.values()) - size / total) <= 1 / FINEST


def test_equal_weights_give_equal_sequences_whatever_their_order() -> None:
    one, two = Mixture({"b": 2, "a": 4}), Mixture({"a": 2, "b": 1})
    assert [one.domain(sample) for sample in range(30)] == [two.domain(sample) for sample in range(30)]
    assert one.count("c", 10) == 0


@pytest.mark.parametrize("bad", [{}, {"a": 0.0}, {"a": -1.0, "b": 2.0}, {"a": float("nan")}, {"a": float("inf")}])
def test_weights_that_mean_nothing_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(RecipeError):
        whole_weights(bad)


def test_a_thousand_to_one_mixture_places_the_rare_domain_exactly() -> None:
    mixture = Mixture(whole_weights({"common": 0.999, "rare": 0.001}))
    assert mixture.count("rare", 10**9) == 10**6
    gaps = np.diff([mixture.place("rare", number) for number in range(50)])
    assert set(gaps.tolist()) == {1000}
