"""The n-gram baseline: hand-computed numbers, a slow reference, distributions that sum to one."""

from __future__ import annotations

import math
from collections import Counter, defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.core.errors import InputError
from headwater.evaluate.kneser_ney import FALLBACK_DISCOUNTS, KneserNey, _discounts

BOUNDARY = 0


def stream_of(documents: list[list[int]]) -> np.ndarray:
    return np.array([token for document in documents for token in [*document, BOUNDARY]], dtype=np.uint16)


class Reference:
    """Chen and Goodman's formulas with dictionaries, one n-gram at a time."""

    def __init__(self, documents: list[list[int]], vocab_size: int, order: int) -> None:
        self.vocab_size, self.order = vocab_size, order
        raw: dict[int, Counter] = {n: Counter() for n in range(1, order + 1)}
        for document in documents:
            padded = [BOUNDARY, *document, BOUNDARY]
            for n in range(1, order + 1):
                for start in range(1 if n == 1 else 0, len(padded) - n + 1):
                    raw[n][tuple(padded[start : start + n])] += 1
        self.counts: dict[int, Counter] = {order: raw[order]}
        for n in range(1, order):
            left = defaultdict(set)
            for gram in raw[n + 1]:
                left[gram[1:]].add(gram[0])
            opening = {gram: raw[n][gram] for gram in raw[n] if n > 1 and gram[0] == BOUNDARY}
            self.counts[n] = Counter({gram: len(before) for gram, before in left.items()} | opening)
        self.discounts = {}
        for n, counts in self.counts.items():
            of = Counter(counts.values())
            n1, n2, n3, n4 = (of[k] for k in (1, 2, 3, 4))
            values = FALLBACK_DISCOUNTS
            if n1 and n2 and n3 and n4:
                y = n1 / (n1 + 2 * n2)
                estimate = (1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3)
                if all(0 < value <= k for k, value in enumerate(estimate, 1)):
                    values = estimate
            self.discounts[n] = values

    def probability(self, context: tuple[int, ...], token: int) -> float:
        """`context` is at most order - 1 tokens, the boundary only in front."""
        n = len(context) + 1
        lower = 1 / self.vocab_size if n == 1 else self.probability(context[1:], token)
        after = {gram[-1]: count for gram, count in self.counts[n].items() if gram[:-1] == context}
        total = sum(after.values())
        if not total:
            return lower
        discount = self.discounts[n]
        held_back = sum(discount[min(count, 3) - 1] for count in after.values())
        count = after.get(token, 0)
        kept = count - discount[min(count, 3) - 1] if count else 0.0
        return (kept + held_back * lower) / total

    def log_probabilities(self, document: list[int]) -> list[float]:
        padded = [BOUNDARY, *document]
        return [
            math.log(self.probability(tuple(padded[max(0, i - self.order + 1) : i]), padded[i]))
            for i in range(1, len(padded))
        ]


DOCUMENTS = st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=12), min_size=1, max_size=8)


def test_two_documents_of_two_tokens_give_the_numbers_worked_out_by_hand() -> None:
    # "a b", "a c" with a, b, c = 1, 2, 3: every bigram but (boundary, a) is seen once, so the discounts fall back.
    model = KneserNey.fit(stream_of([[1, 2], [1, 3]]), vocab_size=4, boundary=BOUNDARY, order=2)
    unigram = 0.5 / 5 + 2.5 / 5 / 4  # one left neighbour of five; 3 * 0.5 + 1 * 1.0 held back
    assert np.exp(model.log_probabilities(np.array([1, 2]))) == pytest.approx(
        [(2 - 1) / 2 + 1.0 / 2 * unigram, (1 - 0.5) / 2 + 1.0 / 2 * unigram]
    )
    assert model.fallback_orders == [1, 2]
    assert model.distinct == [4, 5]


def test_discounts_follow_chen_and_goodman() -> None:
    counts = np.array([1] * 40 + [2] * 15 + [3] * 8 + [4] * 5 + [9] * 3, dtype=np.int32)
    y = 40 / (40 + 30)
    values, estimated = _discounts(counts)
    assert estimated
    assert values.tolist() == pytest.approx([0, 1 - 2 * y * 15 / 40, 2 - 3 * y * 8 / 15, 3 - 4 * y * 5 / 8])


@settings(max_examples=60, deadline=None)
@given(DOCUMENTS, st.lists(st.integers(1, 6), min_size=1, max_size=10), st.integers(1, 5))
def test_it_agrees_with_a_slow_reference(documents: list[list[int]], held_out: list[int], order: int) -> None:
    model = KneserNey.fit(stream_of(documents), vocab_size=7, boundary=BOUNDARY, order=order)
    expected = Reference(documents, 7, order).log_probabilities(held_out)
    assert model.log_probabilities(np.array(held_out)).tolist() == pytest.approx(expected, rel=1e-9)


def test_it_agrees_with_the_reference_where_discounts_are_estimated() -> None:
    rng = np.random.default_rng(0)
    documents = [(rng.zipf(1.5, 60) % 300 + 1).tolist() for _ in range(60)]
    model = KneserNey.fit(stream_of(documents[:50]), vocab_size=301, boundary=BOUNDARY, order=3)
    reference = Reference(documents[:50], 301, 3)
    assert model.fallback_orders == []
    for document in documents[50:53]:
        expected = reference.log_probabilities(document)
        assert model.log_probabilities(np.array(document)).tolist() == pytest.approx(expected, rel=1e-9)


@settings(max_examples=60, deadline=None)
@given(DOCUMENTS, st.lists(st.integers(1, 6), max_size=8), st.integers(1, 5))
def test_every_distribution_sums_to_one(documents: list[list[int]], context: list[int], order: int) -> None:
    model = KneserNey.fit(stream_of(documents), vocab_size=9, boundary=BOUNDARY, order=order)
    distribution = model.next_probabilities(np.array(context, dtype=np.int64))
    assert distribution.sum() == pytest.approx(1.0, abs=1e-12)
    assert distribution.min() > 0


@settings(max_examples=40, deadline=None)
@given(DOCUMENTS, DOCUMENTS)
def test_documents_are_scored_apart(documents: list[list[int]], held_out: list[list[int]]) -> None:
    model = KneserNey.fit(stream_of(documents), vocab_size=6, boundary=BOUNDARY)
    together = model.score([np.array(document) for document in held_out])
    for document, scores in zip(held_out, together, strict=True):
        assert scores.tolist() == model.log_probabilities(np.array(document)).tolist()


def test_a_long_repeated_text_is_predicted_far_better_than_by_frequency() -> None:
    period = list(range(1, 30))
    model = KneserNey.fit(stream_of([period * 20]), vocab_size=64, boundary=BOUNDARY)
    assert np.exp(-model.log_probabilities(np.array(period * 2)).mean()) < 2.5


def test_tokens_of_another_vocabulary_are_refused() -> None:
    model = KneserNey.fit(stream_of([[1, 2]]), vocab_size=4, boundary=BOUNDARY)
    with pytest.raises(InputError, match="outside the model's vocabulary"):
        model.log_probabilities(np.array([7]))
    with pytest.raises(InputError, match="do not fit a vocabulary"):
        KneserNey.fit(np.array([9, 0]), vocab_size=4, boundary=BOUNDARY)
    with pytest.raises(InputError, match="does not end with the boundary"):
        KneserNey.fit(np.array([1, 2]), vocab_size=4, boundary=BOUNDARY)
