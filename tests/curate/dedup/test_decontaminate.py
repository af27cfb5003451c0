"""Documents that hold a benchmark's question go, and name the question."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest

from headwater.core.errors import InputError
from headwater.curate.dedup.benchmark_files import benchmark_files
from headwater.curate.dedup.benchmarks import BenchmarkIndex, Item, question_of
from headwater.curate.dedup.decontaminate import decontaminate_files, read_items
from headwater.curate.dedup.settings import DecontaminateSettings
from tests.conftest import RunCli

from .reference import edited, outcome, read_zst, sentence, write_jsonl, write_texts

ENGLISH = (
    "Natalia sold clips to 48 of her friends in April, and then she sold half as many clips in May. How many in all?"
)
CHINESE = "梅兰芳是中国著名的京剧演员，有一次在他表演的时候，一位老人说他演得不好，他当时觉得很奇怪。"


def index(*questions: str, **settings: object) -> BenchmarkIndex:
    items = [Item(f"set:{number}", question) for number, question in enumerate(questions)]
    return BenchmarkIndex(items, DecontaminateSettings(**settings))  # type: ignore[arg-type]


@pytest.mark.parametrize("question", [ENGLISH, CHINESE, "混合 question 一共 have 多少 units 在这里 and 那里 呢"])
def test_a_question_in_the_midst_of_a_document_is_found_with_its_span(question: str) -> None:
    random = Random(1)
    found = index(question, "some other question that is nowhere to be seen in any of the documents here")
    text = f"{sentence(random, 500)}。{question} {sentence(random, 500, True)}"
    (match,) = found.find(text)
    assert (match.item.name, match.score) == ("set:0", 1.0)
    start, end = match.span
    assert text[start:end].strip("。？?") == question.strip("。？?")
    assert found.find(text.replace(question, "")) == []


@pytest.mark.parametrize("question", [ENGLISH, CHINESE])
def test_width_case_and_punctuation_do_not_hide_a_question(question: str) -> None:
    wide = "".join(chr(ord(ch) + 0xFEE0) if "!" <= ch <= "~" else ch for ch in question).upper()
    assert [match.score for match in index(question).find(f"问：{wide.replace('，', ' ')}答：")] == [1.0]


def test_most_of_a_question_is_enough_and_half_is_not() -> None:
    random = Random(2)
    question = sentence(random, 100)
    words = question.split()
    found = index(question)
    assert found.find(" ".join(words[:85]))[0].score == 0.85
    assert found.find(" ".join(words[:50])) == []
    assert found.find(edited(random, question, 0.01))[0].score >= 0.8
    # The same words far apart are no question.
    apart = f" {sentence(random, 3000)} ".join([" ".join(words[:45]), " ".join(words[45:])])
    assert found.find(apart) == []


def test_a_short_question_must_occur_whole() -> None:
    found = index("中国的首都是哪一座城", "who wrote the book of old songs", "太短了")
    assert [item.name for item in found.too_short] == ["set:1", "set:2"]
    assert [match.item.name for match in found.find("请问，中国的首都是哪一座城？")] == ["set:0"]
    assert found.find("中国的首都是哪一座山") == []


def test_templates_that_many_questions_share_do_not_count_as_one() -> None:
    head = "According to the passage above which of the following statements about the author is most likely true of "
    found = index(*(head + sentence(Random(number), 30) for number in range(20)))
    assert found.find(head + sentence(Random(99), 200)) == []


def test_the_question_is_found_in_rows_of_many_shapes(tmp_path: Path) -> None:
    assert question_of({"question": {"stem": "why", "choices": []}}, ()) == "why"
    assert question_of({"id": 1, "ctx": "the boy", "endings": []}, ()) == "the boy"
    assert question_of({"context": "c", "question": "q"}, ()) == "q"
    assert question_of({"context": "c", "question": "q"}, ("context", "question")) == "c\nq"
    assert question_of({"answer": "a"}, ()) is None
    with pytest.raises(InputError, match="no row"):
        read_items([write_jsonl(tmp_path / "b.jsonl", [{"answer": "a"}])], DecontaminateSettings())


def test_rows_name_the_item_and_the_others_stay_as_they_were(tmp_path: Path) -> None:
    random = Random(3)
    texts = [
        sentence(random, 200),
        f"{sentence(random, 80)} {ENGLISH} {sentence(random, 80)}",
        f"前言。{CHINESE}后话",
        CHINESE,
    ]
    path = write_texts(tmp_path / "in.jsonl", texts)
    bench = tmp_path / "bench"
    bench.mkdir()
    write_jsonl(bench / "en.jsonl", [{"id": "q-1", "question": ENGLISH}, {"question": "too short"}])
    write_jsonl(bench / "zh.jsonl", [{"question": sentence(random, 40, True)}, {"question": CHINESE}, {"answer": 1}])
    report = decontaminate_files([path], tmp_path / "out", benchmarks=[bench])
    kept, removed = outcome(tmp_path / "out")
    assert kept == {"d00000"}
    assert {name: row["kept_id"] for name, row in removed.items()} == {
        "d00001": "en.jsonl:q-1",
        "d00002": "zh.jsonl:#2",
        "d00003": "zh.jsonl:#2",
    }
    row = removed["d00002"]
    assert (row["rule"], row["version"], row["score"], row["line"]) == ("decontaminate", 1, 1.0, 3)
    ((start, end),) = row["spans"]
    assert texts[2][start:end] == CHINESE.rstrip("。")
    assert report["items"] == {"indexed": 3, "too_short": 1, "without_question": 1}
    assert report["rows"]["removed"] == 3
    assert report["removed_by_benchmark"] == {"en.jsonl": 1, "zh.jsonl": 2}


def test_the_verb_decontaminates(tmp_path: Path, run_cli: RunCli) -> None:
    path = write_texts(tmp_path / "in.jsonl", [ENGLISH, "something else entirely"])
    bench = write_jsonl(tmp_path / "bench.jsonl", [{"q": ENGLISH}])
    run_cli("curate", "decontaminate", path, "--benchmark", bench, "--out", "out", code=2)
    done = run_cli("curate", "decontaminate", path, "--benchmark", bench, "--field", "q", "--out", "out", "--json")
    assert done.json["rows"]["removed"] == 1
    assert read_zst(tmp_path / "out" / "removed.jsonl.zst")[0]["kept_id"] == "bench.jsonl:#1"


def test_benchmarks_are_read_in_the_formats_they_are_published_in(tmp_path: Path) -> None:
    question = "who wrote the long letter that was found under the old stone bridge"
    folder = tmp_path / "benchmarks"
    folder.mkdir()
    squad = {"data": [{"paragraphs": [{"context": f"first {question}", "qas": [{"id": "s1", "question": question}]}]}]}
    (folder / "squad.json").write_text(json.dumps(squad), "utf-8")
    (folder / "c3.json").write_text(json.dumps([[["a dialogue"], [{"question": question, "choice": ["a"]}], "7"]]))
    (folder / "mmlu.csv").write_text(f'"{question}",a,b,c,d,A\n"another, longer question about it",a,b,c,d,B\n')
    (folder / "cmmlu.csv").write_text(f",Question,A\n0,{question},a\n")
    (folder / "nq.tsv").write_text(f"question\tanswer\n{question}\tme\n")
    (folder / "lines.json").write_text(json.dumps({"question": question}) + "\n" + json.dumps({"question": "x"}) + "\n")
    items, _ = read_items(benchmark_files([folder]), DecontaminateSettings())
    names = {item.name for item in items if item.question == question}
    assert names == {"squad.json:s1", "c3.json:#1", "mmlu.csv:#1", "cmmlu.csv:#2", "nq.tsv:#2", "lines.json:#1"}
    (folder / "nq.tsv").write_bytes(b"question\n\xff\n")
    with pytest.raises(InputError, match="not UTF-8"):
        read_items(benchmark_files([folder]), DecontaminateSettings())
