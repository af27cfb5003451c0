"""Text leaves the server in whole characters and never past a stop string."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headwater.engine.text_stream import TextStream, held_back

TEXTS = st.text(alphabet="ab\n水源é🌊", max_size=30)


def cut(data: bytes, sizes: list[int]) -> list[bytes]:
    pieces, at = [], 0
    for size in sizes:
        pieces.append(data[at : at + size])
        at += size
    return [*pieces, data[at:]]


@given(TEXTS, st.lists(st.integers(1, 5), max_size=20))
def test_however_the_bytes_are_cut_the_text_is_whole(text: str, sizes: list[int]) -> None:
    stream = TextStream()
    parts = [stream.push(piece) for piece in cut(text.encode(), sizes)]
    assert "".join(parts) + stream.finish() == text
    assert "\ufffd" not in "".join(parts)


@given(TEXTS, st.lists(st.integers(1, 5), max_size=20), st.lists(st.text("ab\n水", min_size=1, max_size=4), max_size=3))
def test_a_stop_string_ends_the_text_wherever_tokens_are_cut(text: str, sizes: list[int], stops: list[str]) -> None:
    stream = TextStream(stops)
    sent = "".join([stream.push(piece) for piece in cut(text.encode(), sizes)])
    sent += stream.finish()
    first = min((text.find(stop) for stop in stops if stop in text), default=None)
    if first is None:
        assert sent == text
    else:
        assert stream.stopped
        # A longer stop string may begin earlier but be completed later than a shorter one.
        assert not any(stop in sent for stop in stops)
        assert text.startswith(sent)
        assert len(sent) >= first
    assert stream.text == sent


@given(TEXTS, st.lists(st.text("ab\n水", min_size=1, max_size=4), max_size=3))
def test_only_what_may_begin_a_stop_string_is_held(text: str, stops: list[str]) -> None:
    expected = max((n for stop in stops for n in range(len(stop)) if text.endswith(stop[:n])), default=0)
    assert held_back(text, stops) == expected


def test_half_a_character_at_the_end_is_dropped_and_bad_bytes_are_marked() -> None:
    stream = TextStream()
    assert stream.push("水".encode()[:2]) == ""
    assert stream.finish() == ""
    stream = TextStream()
    assert stream.push(b"\x80") == "\ufffd"
