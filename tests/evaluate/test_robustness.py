"""Damage to questions is seeded and of its kind; the drop is measured on the same items."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.core.errors import UserError
from headwater.evaluate.backends import LocalBackend
from headwater.evaluate.robustness.measure import damaged_items, measure, parse, question_fields
from headwater.evaluate.robustness.perturb import KINDS, perturb
from headwater.evaluate.tasks import find_tasks
from headwater.evaluate.tasks.run import questions
from headwater.train import RunFolder

ENGLISH = "The quick brown fox jumps over the lazy dog, and nobody minds."
CHINESE = "在河边的老房子里，他已经住了八年，没有人请他离开。"


@settings(deadline=None)
@given(st.text(max_size=80), st.sampled_from(sorted(KINDS)), st.floats(0.01, 1), st.integers(0, 5))
def test_damage_is_repeatable_for_any_text(text: str, kind: str, rate: float, seed: int) -> None:
    assert perturb(text, kind, rate, seed=str(seed)) == perturb(text, kind, rate, seed=str(seed))
    assert perturb(text, kind, 0, seed=str(seed)) == text


@pytest.mark.parametrize("kind", sorted(set(KINDS) - {"shape", "homophone"}))
def test_every_kind_damages_english(kind: str) -> None:
    assert perturb(ENGLISH, kind, 0.3, seed="1") != ENGLISH


@pytest.mark.parametrize("kind", sorted(set(KINDS) - {"typo", "homoglyph", "case"}))
def test_every_kind_that_can_damages_chinese(kind: str) -> None:
    text = CHINESE + "（Ａ）" if kind == "width" else CHINESE
    assert perturb(text, kind, 0.3, seed="1") != text


@given(st.sampled_from(["typo", "swap", "homoglyph", "shape", "homophone", "case", "width"]), st.floats(0.01, 1))
def test_damage_to_characters_keeps_their_number_and_the_spaces(kind: str, rate: float) -> None:
    for text in (ENGLISH, CHINESE):
        worse = perturb(text, kind, rate, seed="s")
        assert len(worse) == len(text)
        assert [i for i, c in enumerate(worse) if c == " "] == [i for i, c in enumerate(text) if c == " "]


def test_kinds_do_what_they_are_called() -> None:
    assert sorted(perturb(ENGLISH, "swap", 0.5, seed="1")) == sorted(ENGLISH)
    assert perturb(ENGLISH, "case", 1, seed="1") == ENGLISH.swapcase()
    assert sorted(perturb(ENGLISH, "word_swap", 0.5, seed="1").split()) != ENGLISH.split()
    assert perturb(ENGLISH, "distractor", 0.1, seed="1").endswith(" " + ENGLISH)
    assert perturb(CHINESE, "distractor", 0.1, seed="1").endswith("。" + CHINESE)
    assert len(perturb(ENGLISH, "word_delete", 0.5, seed="1").split()) == pytest.approx(6, abs=1)
    assert perturb("abc。", "width", 1, seed="1") == "ａｂｃ。"
    assert not perturb(ENGLISH, "homoglyph", 1, seed="1").isascii()


def test_more_is_damaged_at_a_higher_rate() -> None:
    def changed(rate: float) -> int:
        return sum(a != b for a, b in zip(ENGLISH, perturb(ENGLISH, "typo", rate, seed="1"), strict=True))

    assert 0 < changed(0.05) < changed(0.3) < changed(1.0)


def test_the_question_alone_is_damaged(tmp_path: Path) -> None:
    row = {"goal": ENGLISH, "sol1": "run along home", "sol2": "sit down quietly", "label": 0}
    (tmp_path / "piqa_valid.jsonl").write_text(json.dumps(row) + "\n")
    spec = find_tasks(names=["piqa"])[0]
    assert question_fields(spec) == ["goal"]
    asked = questions(spec, folder=tmp_path)
    worse = damaged_items(spec, asked, ["goal"], "typo", 0.5, 0)
    assert worse[0].context != asked.items.items[0].context
    assert (worse[0].choices, worse[0].gold) == (asked.items.items[0].choices, 0)


@pytest.mark.parametrize("name", ["hellaswag", "piqa", "arc_challenge", "mmlu", "cmmlu", "c3_m", "lambada", "chid"])
def test_likelihood_tasks_have_a_question_to_damage(name: str) -> None:
    assert question_fields(find_tasks(names=[name])[0])


def test_the_drop_is_measured_on_the_same_items(run: RunFolder, tmp_path: Path) -> None:
    texts = ["the river is wide and the water is deep", "the mill stands by the river"] * 4
    rows = [{"goal": text, "sol1": f"water {n}", "sol2": "zz qq", "label": n % 2} for n, text in enumerate(texts)]
    (tmp_path / "piqa_valid.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    backend = LocalBackend.open(run.path, device="cpu")
    spec = find_tasks(names=["piqa"])[0]
    found = measure(spec, backend, ["typo:0.9", "homophone:0.5"], folder=tmp_path)
    same = found.damaged["homophone:0.5"]
    assert (same.changed, same.drop.value, same.p_value) == (0, 0.0, 1.0)
    assert found.damaged["typo:0.9"].changed == 8
    rate = found.damaged["typo:0.9"]
    assert rate.drop_rate.value == pytest.approx(1 - rate.score / found.clean)
    assert measure(spec, backend, ["typo:0.9"], folder=tmp_path).damaged["typo:0.9"].score == rate.score
    assert len(found.rows()) == 16


@pytest.mark.parametrize("text", ["typo:0", "typo:2", "typo:x", "nonsense:0.1", ""])
def test_what_is_no_perturbation_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="no perturbation"):
        parse(text)
