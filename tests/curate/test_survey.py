"""A survey only spares work: cleaning decides the same with it and without it, and its counts are right."""

import json

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.core.units import classes, count_plainly
from headwater.curate import survey as surveys
from headwater.curate.characters import tidy_lines
from headwater.curate.clean import clean_document
from headwater.curate.config import CurateConfig
from headwater.curate.survey import COMPILE_BYTES, EVERYTHING, joined, kernels, survey, survey_all, tidied

ANY = CurateConfig(language={"accepted": []}, clean={"min_characters": 1})
PIECES = [
    *"aB7é中の한 \t\n.,:;!?'_`~<&@/-()（）“”’。Ａ＜\u3000\xa0\x00\u200b\u2014\u20ac\xc3\xa9\xe4\xbd鐨锛浣",
    "```", "~~~", "://", "\n\n\n", "  ", " \n", "ICP备", "京ICP备12345678号", "Home | About us", "Back to top",
    "返回顶部", "copyright 2020", "cookies", "(c) 2019", "&copy;", "&amp;nbsp;", "<p>", "</b>", "<!--",
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
