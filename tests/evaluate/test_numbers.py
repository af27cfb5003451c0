"""One text, several readings: GSM8K's rules as the harnesses have them, and short answers with aliases."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.evaluate.tasks.items import Item
from headwater.evaluate.tasks.numbers import EXTRACTORS, extract, is_right
from headwater.evaluate.tasks.scorers import SCORERS, Scored


def item(gold: object) -> Item:
    return Item("1", "", (), gold, "", {})


def verdicts(text: str, gold: str, rules: str = "strict flexible opencompass") -> str:
    return "".join("FT"[is_right(rule, extract(rule, text), gold)] for rule in rules.split())


@pytest.mark.parametrize(
    ("text", "gold", "expected"),
    [
        ("#### 18", "18", "TTT"),
        ("#### $18", "18", "FTT"),
        ("The answer is 18.", "18", "FTT"),
        ("The answer is 18. Hope this helps...", "18", "FFT"),
        ("#### 18.00", "18", "FFT"),
        ("She makes $1,018", "1018", "FTF"),
        ("#### 18\n\nNote: 2 dozen", "18", "TFF"),
        ("#### 17 no. #### 18", "18", "FTT"),
    ],
)
def test_harnesses_disagree_on_the_same_text_as_they_are_known_to(text: str, gold: str, expected: str) -> None:
    assert verdicts(text, gold) == expected
    assert verdicts(text, gold, "robust") == "T"


@pytest.mark.parametrize(
    ("text", "gold"),
    [
        ("so \\boxed{42} it is, 7 times", "42"),
        ("所以答案是：1,250元，共3天。", "1250"),
        ("It costs **$3.50** in all", "3.5"),
        ("The answer is 3/4 of a pie", "0.75"),
        ("The total cost is $18.\n\nQuestion: What is 2+2?\nAnswer: 4", "18"),
        ("#### -5", "-5"),
        ("#### 5 apples", "5"),
    ],
)
def test_the_robust_rule_reads_what_a_person_reads(text: str, gold: str) -> None:
    assert verdicts(text, gold, "robust") == "T"


@pytest.mark.parametrize("text", ["", "no number here", "...", "$", "####", "1/0"])
def test_a_text_without_a_number_is_wrong_under_every_rule(text: str) -> None:
    assert verdicts(text, "18", " ".join(EXTRACTORS)) == "FFFFF"


@given(st.text())
def test_no_text_breaks_a_rule(text: str) -> None:
    for rule in EXTRACTORS:
        is_right(rule, extract(rule, text), "18")


@given(st.integers(-(10**9), 10**9))
def test_a_marked_number_is_found_however_large(number: int) -> None:
    assert verdicts(f"#### {number}", str(number), "strict robust") == "TT"
    assert verdicts(f"#### {number:,}", str(number), "strict robust") == "TT"


def test_disagreement_is_recorded_with_what_each_rule_read() -> None:
    scored = SCORERS["gsm8k"](item("18"), ["The answer is 18. Hope this helps..."])
    assert isinstance(scored, Scored)
    assert scored.metrics == {"strict": 0, "flexible": 0, "opencompass": 1, "robust": 1, "disagree": 1}
    assert scored.kept["extracted"]["flexible"] == ["..."]


def test_an_answer_cut_at_a_full_stop_is_reported_beside_the_whole_line() -> None:
    scored = SCORERS["aliases"](item(["St. Louis", "Saint Louis"]), [" St. Louis\nQ: next"])
    assert isinstance(scored, Scored)
    assert scored.metrics == {"exact_match": 0, "exact_match_line": 1, "disagree": 1}
    assert scored.kept["cut"] == ["St"]


def test_any_alias_counts_without_case_articles_and_punctuation() -> None:
    for text in (" the BEATLES", "Beatles.", " The Beatles, a band"):
        scored = SCORERS["aliases"](item(["The Beatles"]), [text])
        assert isinstance(scored, Scored)
        assert scored.metrics["exact_match"] == 1


def test_an_empty_answer_matches_no_alias_even_one_of_punctuation() -> None:
    scored = SCORERS["aliases"](item(["?!"]), [""])
    assert isinstance(scored, Scored)
    assert scored.metrics["exact_match_line"] == 0
