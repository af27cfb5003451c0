"""What is counted in texts, against plain Python."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.core.units import count_units
from headwater.curate.quality import kernels, statistics
from headwater.curate.quality.statistics import CJK, CODE, LATIN, measure

TEXTS = st.text(st.sampled_from("ab C.,!? \n\n\t12_'’-#{…。！，的是不字かカ한éЯ😀\ufffd\ud800\U00020000"), max_size=120)


@given(TEXTS)
@settings(max_examples=150)
def test_characters_lines_and_units_are_those_of_plain_python(text: str) -> None:
    s = measure([text])
    lines = [line for line in text.split("\n") if line.strip()]
    assert s.characters[0] == len(text)
    assert s.units[0] == count_units(text)
    assert s.newlines[0] == text.count("\n")
    assert s.lines[0] == len(lines)
    assert s.hash_signs[0] <= text.count("#")
    assert s.braces[0] == text.count("{")
    assert s.replacements[0] == text.count("\ufffd")
    assert s.longest_line[0] == max(len(line) for line in text.split("\n"))
    bare = ["".join(line.split()) for line in lines]
    assert s.duplicate_lines[0] == len(bare) - len(set(bare))


@given(st.lists(TEXTS, max_size=5))
@settings(max_examples=25)
def test_compiled_and_interpreted_counts_are_the_same(texts: list[str]) -> None:
    compiled = measure(texts).table
    data = [text.encode("utf-8", "surrogatepass") for text in texts]
    offsets = np.concatenate([[0], np.cumsum([len(part) for part in data])]).astype(np.int64)
    table = np.zeros_like(compiled)
    if texts:
        with np.errstate(over="ignore"):
            statistics._interpreted()(
                np.frombuffer(bytearray(b"".join(data)), np.uint8), offsets, statistics.class_table(),
                statistics._marks(), statistics._stops(), table,
            )  # fmt: skip
    np.testing.assert_array_equal(compiled, table)


@given(st.lists(TEXTS, min_size=1, max_size=6))
@settings(max_examples=50)
def test_counts_do_not_depend_on_what_stands_beside_a_text(texts: list[str]) -> None:
    together = measure(texts).table
    np.testing.assert_array_equal(together, np.concatenate([measure([text]).table for text in texts]))


def test_words_sentences_and_frequent_words_are_counted_in_both_scripts() -> None:
    s = measure(["The end of it. And that was the end! Wasn't it?", "今天天气很好，我们去公园。你来不来？我来！"])
    assert s.words.tolist() == [11, 0]
    assert s.sentences.tolist() == [3, 3]
    assert s.stop_words[0] == 6  # the, of, it, and, that, was
    assert s.stop_characters[1] == 5  # 天 们 你 来 不 我, of which 天 is no such character
    assert s.words_worth[1] == pytest.approx(17 / 1.6)
    assert s.kinds.tolist() == [LATIN, CJK]
    assert measure(["x = 1"], [True]).kinds.tolist() == [CODE]


def test_repeated_passages_count_each_character_once() -> None:
    words = "one two three four five six seven eight nine ten"
    s = measure([f"{words}. {words}.", words])
    assert s.repeated_5[0] == pytest.approx(0.5)
    assert s.repeated_10[0] == pytest.approx(0.5)
    assert s.repeated_5[1] == 0
    passage = "春眠不觉晓处处闻啼鸟夜来风雨声花落知多少"
    s = measure([f"{passage}。{passage}。"])
    assert s.repeated_5[0] == s.repeated_10[0] == pytest.approx(0.5)


def test_the_most_frequent_passage_is_measured_in_its_copies() -> None:
    s = measure(["spam eggs " * 10 + "one two three four five six seven eight nine ten eleven twelve"])
    assert s.top_2[0] == pytest.approx(10 * 8 / s.word_characters[0], abs=0.01)


def test_duplicate_lines_and_paragraphs_leave_the_first_copy_out() -> None:
    s = measure(["a line\nanother\n\na line\nanother\n\na line\n"])
    assert (s.lines[0], s.duplicate_lines[0]) == (5, 3)
    assert (s.paragraphs[0], s.duplicate_paragraphs[0]) == (3, 1)


@pytest.mark.parametrize("piece", ["a", "字", "word ", "\n", "x\n", "#", "…", "spam eggs ", "字字的\n", "\ud800", "１"])
def test_a_million_repeats_take_linear_time(piece: str) -> None:
    s = measure([piece * (1_000_000 // len(piece))])
    assert s.characters[0] == len(piece) * (1_000_000 // len(piece))
    assert 0 <= s.top_2[0] <= 1
    assert 0 <= s.repeated_10[0] <= 1


def test_more_lines_than_the_table_holds_are_no_trouble() -> None:
    s = measure(["\n".join(str(number) for number in range(400_000))])
    assert s.lines[0] == 400_000
    assert s.duplicate_lines[0] == 0


def test_nothing_gives_nothing() -> None:
    assert len(measure([])) == 0
    assert measure([""]).table.sum() == 0
    assert len(kernels.COLUMNS) == measure([]).table.shape[1]
