"""The keyed permutation is one, and can be undone."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.dataset.permutation import derive_key, permute, unpermute

keys = st.integers(0, 2**64 - 1)


@given(st.integers(1, 3000), keys)
def test_every_position_is_used_once_and_can_be_undone(size: int, key: int) -> None:
    positions = np.arange(size, dtype=np.uint64)
    places = permute(positions, size, key)
    assert np.array_equal(np.sort(places), positions)
    assert np.array_equal(unpermute(places, size, key), positions)


@given(st.integers(1, 2**62), keys, st.data())
def test_huge_domains_are_permuted_without_a_table(size: int, key: int, data: st.DataObject) -> None:
    some = data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=50, unique=True))
    positions = np.array(some, dtype=np.uint64)
    places = permute(positions, size, key)
    assert len(set(places.tolist())) == len(some)
    assert max(places.tolist()) < size
    assert np.array_equal(unpermute(places, size, key), positions)


def test_the_shuffle_has_no_visible_order() -> None:
    for size in (64, 1000, 65_537):
        places = permute(np.arange(size, dtype=np.uint64), size, 7).astype(float)
        assert abs(np.corrcoef(places, np.arange(size))[0, 1]) < 4 / np.sqrt(size)
        assert np.mean(np.abs(np.diff(places)) < size / 100) < 0.08  # neighbours rarely stay neighbours


def test_keys_give_different_shuffles_and_keep_the_borders_of_their_parts() -> None:
    positions = np.arange(1000, dtype=np.uint64)
    assert np.mean(permute(positions, 1000, 1) == permute(positions, 1000, 2)) < 0.02
    assert derive_key("a", "b") != derive_key("ab") != derive_key("ab", "")
    assert derive_key("web", 1) == derive_key("web", "1") != derive_key("web", 2)


def test_the_shuffle_is_the_same_for_ever() -> None:
    """Runs resume with the order they began with, so these values may not change."""
    assert permute(np.arange(8, dtype=np.uint64), 8, 42).tolist() == PINNED
    assert derive_key("order", 0, "web", 128, 0) == PINNED_KEY


def test_positions_outside_are_refused() -> None:
    with pytest.raises(ValueError, match="outside"):
        permute(np.array([10], dtype=np.uint64), 10, 1)
    with pytest.raises(ValueError, match="cannot permute"):
        permute(np.array([0], dtype=np.uint64), 0, 1)


PINNED = [2, 6, 1, 5, 3, 7, 0, 4]
PINNED_KEY = 83435926201701796
