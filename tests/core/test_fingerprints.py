"""Fingerprints: equal for equal inputs in any order, different for all else, the same in every release."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.core.artifacts import fingerprint

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.text(max_size=5), PLAIN, max_size=5))
def test_a_fingerprint_ignores_the_order_of_keys(identity: dict[str, object]) -> None:
    backwards = dict(reversed(identity.items()))
    assert fingerprint("s", 1, identity, {"a": "1", "b": "2"}) == fingerprint("s", 1, backwards, {"b": "2", "a": "1"})


@given(PLAIN, PLAIN)
def test_a_fingerprint_separates_what_differs(one: object, other: object) -> None:
    base = fingerprint("s", 1, one, {"a": "1"})
    assert len(base) == 16
    assert base != fingerprint("t", 1, one, {"a": "1"})
    assert base != fingerprint("s", 2, one, {"a": "1"})
    assert base != fingerprint("s", 1, one, {"a": "2"})
    assert base != fingerprint("s", 1, one, {"b": "1"})
    assert base != fingerprint("s", 1, [one], {"a": "1"})
    if repr(one) != repr(other) and one != other:
        assert base != fingerprint("s", 1, other, {"a": "1"})


def test_fingerprints_are_the_same_in_every_release() -> None:
    assert (
        fingerprint("curate", 3, {"min_chars": 20, "rate": 0.1, "语言": ["zh", "en"]}, {"collect": "ab"})
        == "e1054afc545734f8"
    )


def test_a_fingerprint_refuses_nan() -> None:
    with pytest.raises(ValueError, match=r"\$\.identity\.lr is nan"):
        fingerprint("s", 1, {"lr": float("nan")}, {})
