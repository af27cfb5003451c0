"""A survey only spares work: cleaning decides the same with it and without it, and its counts are right."""

import json

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.core.units import classes, count_plainly
from headwater.curate import survey as surveys
from headwater.curate.boilerplate import LONGER_STARTS, is_boilerplate, notice_lines
from headwater.curate.characters import plain_characters, tidy_lines
from headwater.curate.clean import clean_document
from headwater.curate.config import CurateConfig
from headwater.curate.survey import COMPILE_BYTES, EVERYTHING, joined, kernels, survey, survey_all, tidied, tidied_all

ANY = CurateConfig(language={"accepted": []}, clean={"min_characters": 1})
PIECES = [
    *"aB7é中の한 \t\n.,:;!?'_`~<&@/-()（）“”’。Ａ＜\u3000\xa0\x00\u200b\u2014\u20ac\xc3\xa9\xe4\xbd鐨锛浣",
    "```", "~~~", "://", "\n\n\n", "  ", " \n", "ICP备", "京ICP备12345678号", "Home | About us", "Back to top",
    "返回顶部", "home", "LIKE", "分享到", "登录", "Click here to", "|",
    "copyright 2020", "cookies", "(c) 2019", "&copy;", "&amp;nbsp;", "<p>", "</b>", "<!--",
    "138-1234-5678", "8.8.8.8",
    "2001:db8::1", "a.b@mail.cn", "https://a.cn/b", "`x`", "donâ€™t", "ä½\xa0å¥½", "浣犲ソ锛屼笘鐣",
    "\ud800", "😀", "1,234.5", "版权所有",
    "İ", "\u212a", "\u0301",
]  # fmt: skip
TEXTS = st.one_of(st.text(), st.lists(st.sampled_from(PIECES), max_size=40).map("".join))


@pytest.fixture(autouse=True, scope="module")
def compiled():
    assert kernels(COMPILE_BYTES) is not None


def texts_of(folder, domain, step):
    """Texts of every so many documents of a corpus."""
    with zstandard.open(folder / "corpora" / f"{domain}.jsonl.zst", "rt", encoding="utf-8") as file:
        return [json.loads(line)["text"] for number, line in enumerate(file) if number % step == 0]


def without_kernels(function, *arguments, **options):
    """As in a process that has only a few short texts to clean."""
    loaded, surveys._kernels[:] = list(surveys._kernels), []
    try:
        return function(*arguments, **options)
    finally:
        surveys._kernels[:] = loaded


@settings(max_examples=600, deadline=None)
@given(TEXTS)
def test_a_surveyed_text_is_cleaned_as_one_that_is_not(text):
    for config in (ANY, CurateConfig()):
        plain = without_kernels(clean_document, text, domain="web", config=config)
        assert clean_document(text, domain="web", config=config, seen=survey(text)) == plain


@settings(max_examples=300, deadline=None)
@given(TEXTS)
def test_counts_of_characters_and_units_are_those_of_the_unit(text):
    found = survey(text)
    assert found.counts.tolist() == np.bincount(classes(text), minlength=12)[:12].tolist()
    assert found.units == count_plainly(text)


@settings(max_examples=600, deadline=None)
@given(st.text(st.sampled_from("a中é \t\n.😀"), max_size=40))
def test_lines_are_tidied_alike_compiled_and_not(text):
    assert tidied(text) == tidy_lines(text)


@settings(max_examples=400, deadline=None)
@given(TEXTS)
def test_what_a_survey_says_of_a_text_that_was_tidied_is_right(text):
    plain = plain_characters(text)
    tidy = tidied(plain)
    said, found = survey(plain).without_spaces(len(plain) - len(tidy)), survey(tidy)
    assert said.counts.tolist() == found.counts.tolist()
    assert said.units == found.units


@pytest.mark.parametrize(
    "text", ["Call me: 138   1234\t\t 5678.", "Home" + 130 * " " + "| About us | Contact us", "登录\t注册  首页"]
)
def test_what_only_the_tidied_text_has_is_found_without_another_survey(text):
    text = f"The river runs to the sea, and nobody knows why.\n{text}"
    found = clean_document(text, domain="web", config=ANY, seen=survey(text))
    assert found.edits
    assert found == without_kernels(clean_document, text, domain="web", config=ANY)


def test_no_phrase_has_a_space_where_its_beginning_is_looked_at():
    # else a text with two spaces there, which tidying makes one, would have to be looked at again
    assert not [start for start in LONGER_STARTS if " " in start[:3]]


@pytest.mark.parametrize("gap", ["", "\n", "a" * 119 + "\n", "a" * 130 + "\n"])
def test_a_line_with_the_sign_of_a_notice_is_found_wherever_it_stands(gap):
    notice = "© 2020 Example Inc."
    assert any(line == notice for line in notice_lines(f"{gap}{notice}\n{gap}"))
    assert not [line for line in notice_lines(f"{gap}{200 * 'b'}{notice}{200 * 'b'}") if is_boilerplate(line)]


def test_texts_tidied_together_are_tidied_as_each_alone():
    texts = ["a  b ", "", "\n\n\n", "  中文\n\n", "\n\nend"]
    assert tidied_all(texts) == [tidy_lines(text) for text in texts]


def test_real_documents_are_cleaned_alike_with_and_without_a_survey(shared_data):
    for domain in ("web", "books", "papers", "other"):
        texts = [text[:20_000] for text in texts_of(shared_data, domain, 20)]
        looked = survey_all(*joined([text.encode() for text in texts]))
        for text, seen in zip(texts, looked, strict=True):
            assert seen is not None
            found = clean_document(text, domain=domain, seen=seen)
            assert found == without_kernels(clean_document, text, domain=domain)


def test_plain_prose_spares_every_step():
    for text in (
        "The river runs to the sea.\nIt's 1,234.5 miles long; who knows?",
        "河水流向大海。\n\n全长三千里，谁知道呢？",
    ):
        assert survey(text).flags == 0


def test_a_survey_of_few_short_texts_promises_nothing():
    assert without_kernels(survey, "short").flags == EVERYTHING
    assert without_kernels(survey_all, *joined([b"short", b""])) == [None, None]
