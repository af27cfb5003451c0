"""Streaming text: whole characters only, never past a stop string, nothing lost."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headwater.engine import TextStream
from headwater.engine.text_stream import held_back


def pieces_of(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({cut % (len(data) + 1) for cut in cuts})
    return [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True)]


@given(text=st.text(), cuts=st.lists(st.integers(0, 1000)))
def test_pieces_of_any_size_give_the_text_and_no_half_characters(text: str, cuts: list[int]) -> None:
    stream = TextStream()
    parts = [stream.push(piece) for piece in pieces_of(text.encode(), cuts)]
    assert "".join(parts) + stream.finish() == text == stream.text
    assert all("\ufffd" not in part for part in parts) or "\ufffd" in text


@given(
    text=st.text(alphabet="ab水\n", max_size=30),
    stops=st.lists(st.text(alphabet="ab水\n", min_size=1, max_size=4), min_size=1, max_size=3),
    cuts=st.lists(st.integers(0, 1000)),
)
def test_text_ends_before_the_first_stop_string_wherever_tokens_end(
    text: str, stops: list[str], cuts: list[int]
) -> None:
    stream = TextStream(stops)
    shown = ""
    for piece in pieces_of(text.encode(), cuts):
        shown += stream.push(piece)
        assert all(stop not in shown for stop in stops)
        if stream.stopped:
            break
    shown += stream.finish()
    found = [(text.find(stop) + len(stop), text.find(stop)) for stop in stops if stop in text]
    assert stream.stopped == bool(found)
    assert shown == (text[: min(found)[1]] if found else text)  # the one complete first, of those the longest


def test_a_stop_string_that_is_complete_wins_over_a_longer_one_that_is_not_yet() -> None:
    for pieces in (["a\n", "a"], ["a", "\n", "a"], ["a\na"]):
        stream = TextStream(["\n", "a\na"])
        assert "".join(stream.push(piece.encode()) for piece in pieces) + stream.finish() == "a"


def test_a_line_feed_that_may_begin_a_stop_string_waits() -> None:
    stream = TextStream(("\n\n",))
    assert stream.push("水".encode()[:2]) == ""
    assert stream.push("水".encode()[2:] + b"\n") == "水"
    assert stream.push(b"x\n") == "\nx"
    assert stream.push(b"\nmore") == ""
    assert stream.stopped
    assert stream.finish() == ""
    assert stream.text == "水\nx"


def test_broken_bytes_become_replacement_characters_and_a_cut_one_at_the_end_is_dropped() -> None:
    stream = TextStream()
    assert stream.push(b"a\xff\xe6") == "a\ufffd"
    assert stream.push(b"b") == "\ufffdb"
    assert stream.push(b"\xe6\xb0") == ""
    assert stream.finish() == ""


@given(
    text=st.text(alphabet="ab水\n", max_size=30),
    stops=st.lists(st.text("ab\n水", min_size=1, max_size=4), max_size=3),
)
def test_only_what_may_begin_a_stop_string_is_held(text: str, stops: list[str]) -> None:
    expected = max((n for stop in stops for n in range(len(stop)) if text.endswith(stop[:n])), default=0)
    assert held_back(text, stops) == expected
