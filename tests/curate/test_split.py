import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from headwater.curate.config import SplitConfig
from headwater.curate.split import Limits, limits, sides, split_numbers


def hashes_of(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 2**64, (count, 2), dtype=np.uint64)


def split(config: SplitConfig, hashes: np.ndarray) -> np.ndarray:
    numbers = split_numbers(hashes, config.seed)
    ordered = sorted(numbers.tolist())
    ends = ordered[: config.min_documents], ordered[::-1][: config.min_documents]
    return sides(numbers, limits(config, len(numbers), *ends))


def test_shares_are_near_what_was_asked() -> None:
    found = split(SplitConfig(validation=0.05, test=0.1), hashes_of(20_000))
    counts = np.bincount(found, minlength=3) / 20_000
    assert counts[1] == pytest.approx(0.05, abs=0.006)
    assert counts[2] == pytest.approx(0.1, abs=0.008)


@given(st.integers(0, 200), st.integers(0, 20), st.integers(0, 5))
def test_a_small_domain_gets_its_minimum_but_at_most_a_tenth(count: int, least: int, seed: int) -> None:
    config = SplitConfig(validation=1e-9, test=1e-9, min_documents=least, seed=seed)
    found = np.bincount(split(config, hashes_of(count)), minlength=3)
    assert found[1] == found[2] == min(least, count // 10)


def test_a_documents_side_does_not_depend_on_the_others() -> None:
    hashes = hashes_of(10_000)
    config = SplitConfig(validation=0.02, test=0.02)
    whole, half = split(config, hashes), split(config, hashes[:5000])
    assert (whole[:5000] == half).all()
    assert (split(config, hashes[::-1])[::-1] == whole).all()


def test_another_seed_is_another_division_and_none_is_none() -> None:
    hashes = hashes_of(5000)
    first, second = (split(SplitConfig(validation=0.1, seed=seed), hashes) for seed in (0, 1))
    assert 0.1 < (first != second).mean() < 0.25
    assert not split(SplitConfig(validation=0, test=0), hashes).any()


def test_the_ends_of_the_range_are_placed() -> None:
    numbers = np.array([0, 1, 2**64 - 1], np.uint64)
    assert sides(numbers, Limits(1, 2**64 - 1)).tolist() == [1, 0, 2]
    assert sides(numbers, Limits(0, 2**64)).tolist() == [0, 0, 0]


def test_shares_that_leave_nothing_to_train_on_are_refused() -> None:
    with pytest.raises(ValidationError, match="nothing to train on"):
        SplitConfig(validation=0.5, test=0.5)
