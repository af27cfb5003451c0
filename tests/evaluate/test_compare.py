"""Comparing two results: paired by item, refused across protocols."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headwater.cli.main import run_command
from headwater.core.errors import InputError, UserError
from headwater.evaluate.compare import compare, compare_text


def write(folder: Path, task: str, scores: list[float], *, fingerprint: str = "f" * 16, **more: Any) -> Path:
    path = folder / "records" / f"{task}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [{"fingerprint": fingerprint, "task": task, "model": {}}]
    for number, score in enumerate(scores):
        extra = {name: values[number] for name, values in more.items()}
        rows.append({"id": str(number), "group": "", "context": "q", "metrics": {"acc": score}, **extra})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_the_difference_is_taken_item_by_item(tmp_path: Path) -> None:
    a = write(tmp_path / "a", "piqa", [1, 1, 1, 1, 1, 1, 1, 1, 0, 0] + [1] * 30)
    b = write(tmp_path / "b", "piqa", [0, 0, 0, 0, 0, 0, 0, 0, 1, 1] + [1] * 30)
    found = compare(a, b)["tasks"]["piqa"]
    acc = found["metrics"]["acc"]
    assert acc["difference"] == pytest.approx(-0.15)
    assert acc["mcnemar"]["only_first"] == 8
    assert acc["p_value"] == pytest.approx(112 / 1024)
    assert acc["interval"][0] < -0.15 < acc["interval"][1]
    assert found["items"] == 40
    assert "| piqa | acc | 0.95 | 0.8 | -0.15 |" in compare_text(compare(a, b))


def test_another_protocol_is_refused(tmp_path: Path) -> None:
    a = write(tmp_path / "a", "piqa", [1, 0])
    b = write(tmp_path / "b", "piqa", [1, 0], fingerprint="e" * 16)
    with pytest.raises(UserError, match="two protocols"):
        compare(a, b)


def test_items_that_one_has_not_scored_are_counted_and_left_out(tmp_path: Path) -> None:
    a = write(tmp_path / "a", "piqa", [1, 0, 1], failed=["", "", ""])
    lines = (a / "records" / "piqa.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    for row in rows[1:3]:
        del row["failed"]
    (a / "records" / "piqa.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = compare(a, write(tmp_path / "b", "piqa", [1, 1, 1, 1]))["tasks"]["piqa"]
    assert (found["items"], found["not_scored"], found["not_in_both"]) == (2, 1, 1)


def test_corpus_perplexity_is_compared_by_sums(tmp_path: Path) -> None:
    one = [{"nats": 10.0 * n, "tokens": 10, "whitespace_words": 5, "units": 5, "bytes": 40} for n in (1, 2, 3)]
    two = [{**sums, "nats": sums["nats"] / 2} for sums in one]
    a = write(tmp_path / "a", "wikitext", [0, 0, 0], sums=one)
    b = write(tmp_path / "b", "wikitext", [0, 0, 0], sums=two)
    found = compare(a, b)["tasks"]["wikitext"]["metrics"]["nats_per_token"]
    assert (found["first"], found["second"]) == (2.0, 1.0)
    assert found["interval"][1] < 0


def test_results_without_a_common_task_and_folders_without_records_are_said(tmp_path: Path) -> None:
    a, b = write(tmp_path / "a", "piqa", [1]), write(tmp_path / "b", "arc_easy", [1])
    with pytest.raises(UserError, match="no task in common"):
        compare(a, b)
    (tmp_path / "c").mkdir()
    with pytest.raises(InputError, match="no records"):
        compare(a, tmp_path / "c")


def test_few_items_that_agree_show_nothing_and_say_so(tmp_path: Path) -> None:
    a, b = write(tmp_path / "a", "piqa", [1, 0, 1]), write(tmp_path / "b", "piqa", [1, 0, 1])
    assert "| inf | 3 |" in compare_text(compare(a, b))
    a, b = write(tmp_path / "a", "piqa", [0.5, 0.25]), write(tmp_path / "b", "piqa", [0.5, 0.25])
    assert "| unknown | 2 |" in compare_text(compare(a, b))


@pytest.mark.parametrize(
    ("written", "message"),
    [(None, "has no results.json: its run did not come to its end"), ('{"tasks": {', "results.json cannot be read")],
)
def test_a_result_that_is_not_whole_is_said_beside_its_records(
    tmp_path: Path, written: str | None, message: str
) -> None:
    a, b = write(tmp_path / "a", "piqa", [1, 0]), write(tmp_path / "b", "piqa", [1, 1])
    (a / "results.json").write_text("{}")
    if written is not None:
        (b / "results.json").write_text(written)
    found = compare(a, b)
    assert list(found["notes"]) == [str(b)]
    assert message in found["notes"][str(b)]
    assert message in compare_text(found)


@pytest.mark.parametrize(
    "line",
    ["[1, 2]", "7", '{"id": "x"}', '{"id": "x", "metrics": [1]}', '{"id": "x", "metrics": {"acc": "1"}}',
     '{"id": "x", "metrics": {"acc": null}}', '{"id": "x", "metrics": {"acc": 1}, "sums": {"nats": "a"}}'],
)  # fmt: skip
def test_a_line_that_is_no_record_is_named(tmp_path: Path, line: str) -> None:
    a, b = write(tmp_path / "a", "piqa", [1, 0]), write(tmp_path / "b", "piqa", [1, 0])
    path = b / "records" / "piqa.jsonl"
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(InputError, match="no item's record") as caught:
        compare(a, b)
    assert caught.value.where == f"{path}:4"


def test_a_file_that_is_no_record_says_which_are(tmp_path: Path) -> None:
    a = write(tmp_path / "a", "piqa", [1, 0])
    (a / "results.json").write_text('{\n "tasks": {}\n}\n')
    with pytest.raises(InputError) as caught:
        compare(a / "results.json", a)
    assert "records/TASK.jsonl" in caught.value.mend


def test_items_with_the_same_id_and_question_are_paired_one_by_one(tmp_path: Path) -> None:
    a, b = write(tmp_path / "a", "piqa", [1, 0, 1]), write(tmp_path / "b", "piqa", [1, 0, 1])
    for folder in (a, b):
        path = folder / "records" / "piqa.jsonl"
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        path.write_text("".join(json.dumps({**row, "id": ["same"]} if "id" in row else row) + "\n" for row in rows))
    found = compare(a, b)["tasks"]["piqa"]
    assert (found["items"], found["not_in_both"], found["metrics"]["acc"]["mcnemar"]["only_first"]) == (3, 0, 0)


def test_the_command_prints_one_object(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = write(tmp_path / "a", "piqa", [1, 0, 1]), write(tmp_path / "b", "piqa", [1, 1, 1])
    assert run_command(["eval", "compare", str(a), str(b), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["tasks"]["piqa"]["items"] == 3
    assert run_command(["eval", "compare", str(a), str(b), "--confidence", "1.5"]) == 2
