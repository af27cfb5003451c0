"""Coherence as a vector: loops, jumps and sameness each move their own figure, in Chinese and in English."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.evaluate.tasks.coherence import bleu, measure, sentences, units
from headwater.evaluate.tasks.figures import AGGREGATES

TEXTS = {
    "en": "Marie crossed the river at dawn. The river was cold, and Marie held the rope. Nobody had seen the boat.",
    "zh": "清晨，小明渡过了大河。河水很冷，小明抓住绳子。没有人看见那条小船。",
}
LOOPS = {"en": "the river runs down to the sea and " * 12, "zh": "河水流向大海，" * 12}


def test_a_unit_is_a_chinese_character_or_a_word() -> None:
    assert units("Don't 怕, it's 3 点") == ["don't", "怕", "it's", "3", "点"]
    assert len(sentences(TEXTS["en"])) == len(sentences(TEXTS["zh"])) == 3


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_a_loop_is_low_in_distinct_and_high_in_repetition(lang: str) -> None:
    text, loop = measure(TEXTS[lang]), measure(LOOPS[lang])
    assert loop["repetition_4"] > 0.8
    assert text["repetition_4"] == 0
    assert loop["distinct_2"] < 0.2 < text["distinct_2"]


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_sentences_about_the_same_thing_cohere_and_share_names(lang: str) -> None:
    other = {"en": "Marie crossed the river. Taxes rose again. Purple is loud.", "zh": "小明过河。税收上涨。紫色很吵。"}
    assert measure(TEXTS[lang])["entity_coherence"] == 0.5
    assert measure(other[lang])["entity_coherence"] == 0
    assert measure(TEXTS[lang])["sentence_coherence"] > measure(other[lang])["sentence_coherence"] == 0


def test_bleu_of_itself_is_one_and_of_something_else_is_near_none() -> None:
    text = units(TEXTS["en"])
    assert bleu(text, [text]) == pytest.approx(1)
    assert bleu(text, [units("purple taxes rose")]) == 0
    assert bleu([], [text]) == 0


def test_self_bleu_tells_sameness_from_variety() -> None:
    same = AGGREGATES["coherence"]([{"texts": [TEXTS["en"]]}, {"texts": [TEXTS["en"]]}])["self_bleu"]
    other = AGGREGATES["coherence"]([{"texts": [TEXTS["en"]]}, {"texts": ["Purple taxes rose again, said no one."]}])
    assert same.value == pytest.approx(1)
    assert other["self_bleu"].value < 0.1
    assert AGGREGATES["coherence"]([{"texts": ["", "alone"]}]) == {}


@given(st.text(max_size=300))
def test_no_text_breaks_the_measure_and_shares_stay_shares(text: str) -> None:
    for name, value in measure(text).items():
        assert value >= 0
        assert name == "length" or value <= 1 + 1e-9
