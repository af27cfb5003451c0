"""Original formats and flat ones give the same questions; what is neither is set aside with a reason."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headwater.core.errors import InputError
from headwater.evaluate.tasks import builtin_tasks
from headwater.evaluate.tasks.data import read_file
from headwater.evaluate.tasks.formats import detokenised
from headwater.evaluate.tasks.readers import expand, read_row
from headwater.evaluate.tasks.run import questions


def fields(reader: str, rows: list[Any]) -> list[dict[str, Any]]:
    return [read_row(reader, row) for row in expand(reader, rows)]


def test_c3s_documents_become_a_row_a_question() -> None:
    nested = [["男：你好。", "女：再见。"], [{"question": "谁？", "choice": ["男", "女"], "answer": "女"}], "7"]
    flat = {
        "id": "7-0",
        "context": "男：你好。\n女：再见。",
        "question": "谁？",
        "choices": ["男", "女"],
        "answer": "女",
    }
    assert fields("c3", [nested]) == fields("c3", [flat]) == [flat]


def test_spans_come_nested_as_squad_and_cmrc_have_them_and_flat() -> None:
    question = {"id": "q", "question": "谁？", "answers": [{"text": "李白", "answer_start": 0}]}
    squad = {"paragraphs": [{"context": "李白是诗人。", "qas": [question]}]}
    own = {"context_text": "李白是诗人。", "qas": [{"query_id": "q", "query_text": "谁？", "answers": ["李白"]}]}
    hub = {"id": "q", "context": "李白是诗人。", "question": "谁？", "answers": {"text": ["李白"], "answer_start": [0]}}
    flat = {"id": "q", "context": "李白是诗人。", "question": "谁？", "answers": ["李白"]}
    assert fields("span", [squad]) == fields("span", [own]) == fields("span", [hub]) == fields("span", [flat]) == [flat]


def test_triviaqa_and_natural_questions_give_questions_with_aliases() -> None:
    original = [{"Data": [{"QuestionId": "1", "Question": "Who?", "Answer": {"Value": "A", "Aliases": ["A", "B"]}}]}]
    flat = [{"id": "1", "question": "Who?", "answers": ["A", "B"]}]
    assert fields("open_question", original) == fields("open_question", flat)
    assert fields("open_question", [{"question": "who ", "answer": "A"}])[0]["answers"] == ["A"]


@pytest.mark.parametrize(
    ("reader", "row"),
    [
        ("gsm8k", {"question": "q", "answer": "no mark"}),
        ("open_question", {"question": "q", "answer": []}),
        ("span", {"context": "c", "question": "q", "answers": []}),
        ("lambada", {"text": "one"}),
        ("arc", {"question": "q", "choices": ["a"], "answerKey": "A"}),
        ("hellaswag", {"ctx": "c", "endings": ["a", "b"], "label": ""}),
        ("chid", {"content": "没有空", "candidates": [], "answer": 0}),
    ],
)
def test_a_row_of_no_known_form_is_refused(reader: str, row: dict[str, Any]) -> None:
    with pytest.raises((ValueError, KeyError)):
        read_row(reader, row)


def test_wikitext_is_cut_at_titles_of_the_first_level_and_put_back_as_it_was_written() -> None:
    one = ' = One = \n \n Ten @,@ 000 men ( and " dogs " ) came . \n = = Part = = \n It \'s it . \n \n'
    raw = f" \n{one} = Two = \n \n End . \n"
    pages = expand("wikitext", [{"text": raw}])
    assert "".join(page["page"] for page in pages) == raw.removeprefix(" \n")
    assert len(pages) == 2
    text = detokenised(pages[0]["page"])
    assert 'Ten,000 men (and "dogs") came.' in text
    assert "== Part ==" in text
    assert "It's it." in text


def test_detokenisation_is_that_of_lm_evaluation_harness(shared_data: Path) -> None:
    reference = pytest.importorskip("lm_eval.tasks.wikitext.preprocess_wikitext")
    for page in expand("wikitext", read_file(shared_data / "corpora" / "wikitext2_valid.txt.gz")):
        assert detokenised(page["page"]) == reference.wikitext_detokenizer(page)


@pytest.mark.parametrize(
    "name",
    ["lambada", "hellaswag", "piqa", "arc_challenge", "mmlu", "cmmlu", "c3_m", "c3_d", "chid", "cmrc_cloze", "gsm8k",
     "gsm8k_cot", "nq_open", "triviaqa", "humaneval"],
)  # fmt: skip
def test_every_row_of_the_real_files_is_a_question(shared_data: Path, name: str) -> None:
    found = questions(builtin_tasks()[name], folder=shared_data / "eval")
    # MMLU's file has questions with five choices, of which a prompt with four letters can hold only four.
    assert len(found.items.set_aside) <= (0 if name != "mmlu" else 5), found.items.set_aside[:3]
    assert json.dumps(found.items.items[0].context)


@pytest.mark.parametrize("damage", [lambda data: data[:-20], lambda data: data[:20] + b"\xff" * 20 + data[40:]])
def test_a_gzip_file_that_is_damaged_is_named(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    path = tmp_path / "rows.jsonl.gz"
    path.write_bytes(damage(gzip.compress(json.dumps({"text": "abcdefgh" + "ijklmnop" * 9}).encode() * 50)))
    with pytest.raises(InputError, match="cannot be read") as refused:
        read_file(path)
    assert refused.value.where == str(path)
