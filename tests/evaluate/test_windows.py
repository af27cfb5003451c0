"""Rolling windows: each token once, in order, with the context promised."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.core.errors import InputError
from headwater.evaluate.windows import rolling_windows


def harness_windows(tokens: list[int], prefix: int, longest: int, context: int) -> list[tuple[list[int], list[int]]]:
    """lm-evaluation-harness 0.4.9 `utils.get_rolling_token_windows`, restated."""
    result = []
    first = min(longest, len(tokens))
    result.append(([prefix, *tokens[: first - 1]], tokens[:first]))
    done, step = first, longest - context + 1
    while done < len(tokens):
        scored = min(len(tokens) - done, step)
        end = done + scored
        result.append((tokens[end - longest - 1 : end - 1], tokens[end - scored : end]))
        done += scored
    return result


@given(st.integers(1, 400), st.integers(1, 64), st.data())
def test_each_target_is_scored_exactly_once(total: int, window: int, data: st.DataObject) -> None:
    stride = data.draw(st.integers(1, window))
    scored = []
    for piece in rolling_windows(total, window, stride):
        assert 1 <= piece.end - piece.begin <= window
        assert piece.scored <= piece.end - piece.begin
        scored += range(piece.end - piece.scored + 1, piece.end + 1)
    assert scored == list(range(1, total))


@given(st.integers(0, 200), st.integers(1, 40), st.data())
def test_later_windows_give_the_promised_context(total: int, window: int, data: st.DataObject) -> None:
    stride = data.draw(st.integers(1, window))
    for piece in rolling_windows(total, window, stride)[1:]:
        context_of_first_scored = piece.end - piece.scored + 1 - piece.begin
        assert context_of_first_scored >= window - stride + 1


@given(st.integers(1, 200), st.integers(2, 40), st.data())
def test_the_windows_are_lm_evaluation_harness_windows(length: int, window: int, data: st.DataObject) -> None:
    stride = data.draw(st.integers(1, window))
    tokens = list(range(100, 100 + length))
    sequence = [7, *tokens]
    ours = [
        (sequence[w.begin : w.end], sequence[w.end - w.scored + 1 : w.end + 1])
        for w in rolling_windows(len(sequence), window, stride)
    ]
    assert ours == harness_windows(tokens, 7, window, window - stride + 1)


def test_a_stride_beyond_the_window_is_refused() -> None:
    with pytest.raises(InputError, match="stride 5 does not fit a window of 4"):
        rolling_windows(10, 4, 5)
