"""Perplexities are ratios of sums, by domain and language, with the definitions stated."""

from __future__ import annotations

import math

import numpy as np
import pytest

from headwater.core.errors import InputError
from headwater.evaluate import HeldOut, Perplexity, Text, from_texts, measure
from headwater.tokenizer import Tokenizer


class Constant:
    """A scorer that gives every token the same probability."""

    vocab_size = 1000

    def __init__(self, log: float) -> None:
        self.log = log

    def score(self, documents: list[np.ndarray]) -> list[np.ndarray]:
        return [np.full(len(document), self.log) for document in documents]


@pytest.fixture
def held_out(tokenizer: Tokenizer) -> HeldOut:
    return from_texts(
        [
            Text("a", "Streams meet, 2 of them.", "web", "en"),
            Text("b", "水滴石穿，非一日之功。", "books", "zh"),
            Text("c", "\n源头 活水\n", "web", "zh"),
            Text("d", "", "web", "en"),
        ],
        tokenizer,
    )


def test_every_ratio_is_one_of_sums(held_out: HeldOut) -> None:
    report = measure(Constant(-0.5), held_out)
    overall = report.overall
    tokens, nats = held_out.tokens, 0.5 * held_out.tokens
    text_bytes = sum(len(document.text.encode()) for document in held_out.documents)
    assert (overall.documents, overall.tokens, overall.nats) == (3, tokens, pytest.approx(nats))
    assert overall.token_perplexity == pytest.approx(math.exp(0.5))
    assert overall.bits_per_byte == pytest.approx(nats / text_bytes / math.log(2))
    assert overall.byte_perplexity == pytest.approx(2 ** (nats / text_bytes / math.log(2)))


def test_a_unit_is_one_character_or_one_word_and_the_harness_word_is_between_spaces(held_out: HeldOut) -> None:
    assert [document.units for document in held_out.documents] == [5, 9, 4]
    # lm-evaluation-harness: len(re.split(r"\s+", text)), so line breaks at the ends add one each
    assert [document.whitespace_words for document in held_out.documents] == [5, 1, 4]
    overall = measure(Constant(-0.5), held_out).overall
    assert overall.word_perplexity == pytest.approx(math.exp(0.5 * held_out.tokens / 18))
    assert overall.whitespace_word_perplexity == pytest.approx(math.exp(0.5 * held_out.tokens / 10))


def test_slices_add_up_to_the_whole(held_out: HeldOut) -> None:
    report = measure(Constant(-2.0), held_out)
    for kind, names in (("domain", ["books", "web"]), ("language", ["en", "zh"])):
        slices = [piece for piece in report.slices if piece.kind == kind]
        assert [piece.name for piece in slices] == names
        for field in ("documents", "tokens", "units", "whitespace_words", "bytes"):
            assert sum(getattr(piece, field) for piece in slices) == getattr(report.overall, field)
        assert sum(piece.nats for piece in slices) == pytest.approx(report.overall.nats)


def test_an_empty_document_is_left_out_and_said(held_out: HeldOut) -> None:
    assert held_out.left_out == {"empty": 1}


def test_a_perplexity_too_large_for_a_number_is_none_and_left_out(tokenizer: Tokenizer) -> None:
    one_word = from_texts([Text("a", "水" * 3000)], tokenizer)
    report = measure(Constant(-1.0), one_word)
    assert report.overall.whitespace_word_perplexity is None
    assert "whitespace_word_perplexity" not in report.flat()
    assert Perplexity().evaluate(Constant(-1.0), one_word)["token_perplexity"] == pytest.approx(math.e)


def test_a_model_that_gives_no_number_is_refused(held_out: HeldOut) -> None:
    with pytest.raises(InputError, match="no finite probability"):
        measure(Constant(math.nan), held_out)
    with pytest.raises(InputError, match="no finite probability"):
        measure(Constant(-math.inf), held_out)


def test_the_fingerprint_knows_text_domain_and_order_but_no_tokenizer(tokenizer: Tokenizer) -> None:
    texts = [Text("a", "one", "web"), Text("b", "two", "web")]
    base = from_texts(texts, tokenizer).fingerprint
    assert from_texts([Text("z", "one", "web"), texts[1]], tokenizer).fingerprint == base
    assert from_texts(texts[::-1], tokenizer).fingerprint != base
    assert from_texts([Text("a", "onet", "web"), Text("b", "wo", "web")], tokenizer).fingerprint != base
    assert from_texts([Text("a", "one", "books"), texts[1]], tokenizer).fingerprint != base
