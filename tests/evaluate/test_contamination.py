"""Benchmark items found in training text: made cases, the known overlaps of the shared data, a run's dataset."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headwater.cli.main import run_command
from headwater.core.jsonl import read_jsonl
from headwater.evaluate.contamination import annotate, as_json, check, probe_texts, training_documents
from headwater.evaluate.tasks import find_tasks
from headwater.evaluate.tasks.items import Item
from headwater.evaluate.tasks.run import questions
from headwater.train import RunFolder

from .conftest import World

LONG = "In which year did the old mill by the river burn down for the second and last time"
CHINESE = "河边的老磨坊在哪一年第二次也是最后一次被大火烧毁"


def item(number: int, **row: object) -> Item:
    return Item(str(number), "", (), 0, "", dict(row))


def test_a_question_in_a_document_is_found_with_its_passage() -> None:
    items = [item(1, question=LONG), item(2, question=CHINESE), item(3, question=LONG.replace("mill", "inn") + " ever")]
    documents = [
        ("a", "Nothing here."),
        ("b", f"Quiz: {LONG.upper()}? In 1880."),
        ("c", f"问：{CHINESE}？一八八〇年。"),
    ]
    found = check({"quiz": items}, documents)["quiz"]
    assert found.contaminated == [0, 1]
    assert found.items[0].document == "b"
    assert found.items[0].passage.startswith("IN WHICH YEAR")
    assert found.items[1].passage == CHINESE
    assert 2 not in found.contaminated
    assert (found.checked, found.documents) == (3, 3)


def test_scores_are_given_with_and_without_what_was_found() -> None:
    items = [item(n, question=text) for n, text in enumerate([LONG, CHINESE, "A wholly different question " * 4])]
    found = check({"quiz": items}, [("d", LONG)])["quiz"]
    records = [{"id": str(n), "group": "", "metrics": {"acc": score}} for n, score in enumerate((1.0, 0.0, 0.0))]
    facts = as_json(records, found, "corpus", "multiple_choice")
    assert facts["metrics"]["without_contaminated"]["acc"]["value"] == 0.0
    assert (facts["contaminated"], facts["overlapping"]) == (1, 1)
    annotate(records, found)
    assert records[0]["contamination"]["contaminated"] is True
    assert "contamination" not in records[1]


def test_short_names_and_terms_are_not_looked_for() -> None:
    assert probe_texts(item(1, question=LONG, answers=["the year of the fire"])) == {"question": LONG}
    assert probe_texts(item(1, question="Who?", choices=["a"])) == {}
    short = "一二三四五六七八九"
    assert probe_texts(item(1, question=short, kind="x")) == {"question": short}


def test_the_known_overlaps_of_the_shared_data_are_found(shared_data: Path) -> None:
    # 11 rows share 16 tokens with these corpora by the data's own count; units differ a little from its tokens.
    names = ["lambada", "chid", "cmmlu", "cmrc_cloze"]
    tasks = {}
    for spec in find_tasks(names=names):
        bare = spec.model_copy(update={"fewshot": spec.fewshot.model_copy(update={"count": 0})})
        tasks[spec.name] = questions(bare, folder=shared_data / "eval").items.items
    corpora = [shared_data / "corpora" / f"{name}.jsonl.zst" for name in ("web", "books", "papers", "other")]
    found = check(tasks, training_documents(corpora), width=16)
    assert {name: len(one.items) for name, one in found.items()} == {
        "lambada": 1, "chid": 1, "cmmlu": 3, "cmrc_cloze": 7,
    }  # fmt: skip
    assert [tasks["cmmlu"][place].id for place in found["cmmlu"].contaminated] == ["1568"]


def test_a_run_is_checked_against_its_own_dataset(
    world: World, run: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from headwater.tokenizer import Tokenizer

    tokenizer = Tokenizer.load(world.tokenizer)
    text = max((text for _, text in training_documents([world.dataset], tokenizer)), key=len)
    data = tmp_path / "data"
    data.mkdir()
    rows = [
        {"goal": text, "sol1": "a b", "sol2": "c d", "label": 0},
        {"goal": LONG, "sol1": "a", "sol2": "b", "label": 1},
    ]
    (data / "piqa_valid.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    out = tmp_path / "out"
    line = ["eval", str(run.path), "--tasks", "piqa", "--data", str(data), "--out", str(out), "--json", "-q"]
    assert run_command([*line, "--corpus", str(world.dataset), "--device", "cpu"]) == 0
    found = json.loads(capsys.readouterr().out)["tasks"]["piqa"]["contamination"]
    assert [one["id"] for one in found["items"]] == ["1"]
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text(json.dumps({"text": text}) + "\n")
    assert run_command([*line, "--corpus", str(corpus), "--device", "cpu"]) == 0
    facts = json.loads(capsys.readouterr().out)["tasks"]["piqa"]["contamination"]
    assert (facts["contaminated"], facts["checked"]) == (1, 2)
    head, first, second = read_jsonl(out / "records" / "piqa.jsonl")
    assert first["contamination"]["field"] == "goal"
    assert "contamination" not in second
    assert head["task"] == "piqa"
    assert "## Contamination" in (out / "results.md").read_text()
    assert run_command([*line, "--corpus", str(corpus), "--device", "cpu"]) == 0  # goes on from annotated records
