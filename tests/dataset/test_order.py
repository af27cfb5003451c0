"""The order of samples: complete epochs, changes that never reach back, skips that lose nothing, and inverses."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.core.errors import RecipeError
from headwater.dataset.order import Order, OrderSegment, SampleRef

STREAMS = {"web": 1300, "books": 700, "code": 311}
TOTAL = 300

mixtures = st.one_of(
    st.none(),
    st.dictionaries(st.sampled_from(sorted(STREAMS)), st.integers(1, 9), min_size=1).map(
        lambda found: {name: float(weight) for name, weight in found.items()}
    ),
)
lengths = st.sampled_from([8, 8, 8, 32])


@st.composite
def orders(draw: st.DrawFn) -> list[OrderSegment]:
    """Up to four segments, some with skips of draws that lie ahead."""
    firsts = sorted(draw(st.lists(st.integers(1, TOTAL), max_size=3)))
    segments: list[OrderSegment] = []
    for first in [0, *firsts]:
        segment = OrderSegment(first, draw(lengths), draw(mixtures))
        if draw(st.booleans()):
            so_far = Order(STREAMS, seed=3, segments=[*segments, segment])
            ahead = draw(st.lists(st.integers(first, first + 40), max_size=10))
            segment = OrderSegment(first, segment.seq_len, segment.weights, so_far.draws_of(ahead))
        segments.append(segment)
    return segments


@given(orders())
@settings(max_examples=40)
def test_a_sample_does_not_depend_on_how_it_is_asked_for(segments: list[OrderSegment]) -> None:
    order = Order(STREAMS, seed=3, segments=segments)
    whole = order.samples(range(TOTAL))
    assert [ref.sample for ref in whole] == list(range(TOTAL))
    assert order.samples(range(TOTAL - 1, -1, -1)) == whole[::-1]
    assert [order.sample(index) for index in range(0, TOTAL, 37)] == whole[::37]
    for ref in whole:
        assert 0 <= ref.start < ref.stop <= STREAMS[ref.domain]
        assert ref.seq_len == order.seq_len(ref.sample) == ref.stop - ref.start - 1


@given(orders(), mixtures, lengths)
@settings(max_examples=40)
def test_a_new_segment_never_alters_an_earlier_sample(
    segments: list[OrderSegment], weights: dict[str, float] | None, seq_len: int
) -> None:
    first = segments[-1].first_sample + 25
    longer = [*segments, OrderSegment(first, seq_len, weights)]
    before = Order(STREAMS, seed=3, segments=segments).samples(range(first))
    assert Order(STREAMS, seed=3, segments=longer).samples(range(first)) == before


@given(orders())
@settings(max_examples=40)
def test_draws_go_on_without_gap_or_repeat_except_for_skips(segments: list[OrderSegment]) -> None:
    order = Order(STREAMS, seed=3, segments=segments)
    skipped = {
        (domain, segment.seq_len, draw)
        for segment in segments
        for domain, draws in segment.skipped.items()
        for draw in draws
    }
    seen: dict[tuple[str, int], list[int]] = {}
    for ref in order.samples(range(TOTAL)):
        seen.setdefault((ref.domain, ref.seq_len), []).append(ref.draw)
    for (domain, seq_len), draws in seen.items():
        expected = [draw for draw in range(draws[-1] + 1) if (domain, seq_len, draw) not in skipped]
        assert draws == expected


@given(orders())
@settings(max_examples=20)
def test_the_sample_of_a_draw_and_of_a_window_is_found_without_a_scan(segments: list[OrderSegment]) -> None:
    order = Order(STREAMS, seed=3, segments=segments)
    whole = order.samples(range(TOTAL))
    by_window: dict[tuple[str, int, int], list[SampleRef]] = {}
    for ref in whole:
        assert order.sample_of_draw(ref.domain, ref.seq_len, ref.draw) == ref.sample
        by_window.setdefault((ref.domain, ref.seq_len, ref.window), []).append(ref)
    for domain in STREAMS:
        for seq_len in order.lengths():
            for window in range(order.windows(domain, seq_len) + 1):
                found = order.samples_of_window(domain, seq_len, window, TOTAL)
                assert found == by_window.get((domain, seq_len, window), [])


def test_an_epoch_has_every_window_once_before_the_next_begins() -> None:
    order = Order(STREAMS, seed=1, segments=[OrderSegment(0, 16)])
    drawn: dict[str, list[SampleRef]] = {name: [] for name in STREAMS}
    for ref in order.samples(range(1000)):
        drawn[ref.domain].append(ref)
    for domain, refs in drawn.items():
        size = order.windows(domain, 16)
        assert size == (STREAMS[domain] - 1) // 16
        epochs = [refs[start : start + size] for start in range(0, len(refs) - size, size)]
        assert len(epochs) >= 2
        for number, epoch in enumerate(epochs):
            assert sorted(ref.window for ref in epoch) == list(range(size))
            assert {ref.epoch for ref in epoch} == {number}
        assert [ref.window for ref in epochs[0]] != [ref.window for ref in epochs[1]]


def test_a_skipped_sample_is_replaced_by_its_domains_next() -> None:
    plain = Order(STREAMS, seed=5, segments=[OrderSegment(0, 8)])
    bad = range(40, 48)
    with_skip = [OrderSegment(0, 8), OrderSegment(40, 8, None, plain.draws_of(bad))]
    skipping = Order(STREAMS, seed=5, segments=with_skip)
    assert skipping.samples(range(40)) == plain.samples(range(40))
    assert [ref.domain for ref in skipping.samples(range(200))] == [ref.domain for ref in plain.samples(range(200))]
    lost = {(ref.domain, ref.draw) for ref in plain.samples(bad)}
    rest = skipping.samples(range(40, 200))
    assert not lost & {(ref.domain, ref.draw) for ref in rest}
    count = Counter(ref.domain for ref in plain.samples(bad))
    for domain in STREAMS:
        first = next(ref.draw for ref in rest if ref.domain == domain)
        assert first == next(ref.draw for ref in plain.samples(range(40, 200)) if ref.domain == domain) + count[domain]


def test_a_segment_with_the_same_weights_continues_the_quotas() -> None:
    """A batch ramp, a skip or a longer window must not shift the mixture by a sample each."""
    weights = {"web": 0.997, "books": 0.002, "code": 0.001}
    streams = {"web": 10**6, "books": 10**6, "code": 10**6}
    segments = [OrderSegment(first, 8 + first // 250, weights) for first in range(0, 5000, 50)]
    plain = Order(streams, seed=5, segments=[OrderSegment(0, 8, weights)])
    ramp = Order(streams, seed=5, segments=segments)
    assert [ref.domain for ref in ramp.samples(range(5000))] == [ref.domain for ref in plain.samples(range(5000))]
    assert ramp.use(5000)["code"].samples == 5


def test_skipping_what_was_already_used_is_refused() -> None:
    plain = Order(STREAMS, seed=5, segments=[OrderSegment(0, 8)])
    late = [OrderSegment(0, 8), OrderSegment(100, 8, None, plain.draws_of([3]))]
    with pytest.raises(ValueError, match="already used"):
        Order(STREAMS, seed=5, segments=late)
    with pytest.raises(ValueError, match="no such domain"):
        Order(STREAMS, seed=5, segments=[OrderSegment(0, 8, None, {"poems": [1]})])


def test_a_new_length_begins_its_own_draws_and_the_old_one_continues_later() -> None:
    segments = [OrderSegment(0, 8), OrderSegment(50, 32), OrderSegment(80, 8)]
    order = Order(STREAMS, seed=5, segments=segments)
    refs = order.samples(range(150))
    for domain in STREAMS:
        mine = [ref for ref in refs if ref.domain == domain]
        assert next(ref.draw for ref in mine if ref.seq_len == 32) == 0
        short = [ref.draw for ref in mine if ref.seq_len == 8]
        assert short == list(range(len(short)))


def test_a_domain_added_later_changes_nothing_before() -> None:
    before = Order(STREAMS, seed=2, segments=[OrderSegment(0, 8, {"web": 2, "books": 1})])
    segments = [OrderSegment(0, 8, {"web": 2, "books": 1}), OrderSegment(90, 8, {"web": 1, "law": 1})]
    after = Order({**STREAMS, "law": 500}, seed=2, segments=segments)
    assert after.samples(range(90)) == before.samples(range(90))
    assert {ref.domain for ref in after.samples(range(90, 120))} == {"web", "law"}


def test_seed_and_domain_change_the_shuffle() -> None:
    def windows(seed: int, domain: str) -> list[int]:
        order = Order({"a": 9000, "b": 9000}, seed=seed, segments=[OrderSegment(0, 8, {domain: 1})])
        return [ref.window for ref in order.samples(range(50))]

    assert windows(1, "a") != windows(2, "a")
    assert windows(1, "a") != windows(1, "b")


def test_a_domain_with_less_than_one_window_is_refused_with_the_numbers() -> None:
    streams = {"web": 10_000, "papers": 128}
    with pytest.raises(RecipeError, match=r"'papers' has 128 tokens, less than one window of 129"):
        Order(streams, seed=1, segments=[OrderSegment(0, 128, {"web": 1, "papers": 1})])
    assert (
        Order({**streams, "papers": 129}, seed=1, segments=[OrderSegment(0, 128, {"papers": 1})]).sample(5).epoch == 5
    )
    with pytest.raises(RecipeError, match="no such domain"):
        Order(streams, seed=1, segments=[OrderSegment(0, 128, {"law": 1})])
    with pytest.raises(RecipeError, match=r"no domain has the 20,001 tokens .* papers 128, web 10,000"):
        Order(streams, seed=1, segments=[OrderSegment(0, 20_000)])


def test_use_counts_samples_tokens_and_epochs() -> None:
    segments = [OrderSegment(0, 8, {"web": 1, "books": 1}), OrderSegment(100, 32, {"books": 1})]
    use = Order(STREAMS, seed=1, segments=segments).use(120)
    assert (use["web"].samples, use["web"].tokens_read) == (50, 400)
    assert (use["books"].samples, use["books"].tokens_read) == (70, 50 * 8 + 20 * 32)
    assert use["books"].epochs == pytest.approx(50 / 87 + 20 / 21)
    assert (use["code"].samples, use["code"].epochs) == (0, 0.0)


def test_the_order_is_the_same_for_ever() -> None:
    """Runs resume with the order they began with, so these values may not change."""
    order = Order({"web": 10_000, "books": 5_000}, seed=1, segments=[OrderSegment(0, seq_len=128)])
    assert [(ref.domain, ref.window) for ref in order.samples(range(9))] == PINNED


PINNED = [
    ("web", 59),
    ("books", 37),
    ("web", 74),
    ("web", 8),
    ("books", 25),
    ("web", 55),
    ("web", 46),
    ("books", 14),
    ("web", 33),
]
