"""Repeated passages: cut where a kept document has them, or where they repeat at once."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from headwater.curate.dedup.files import dedup_files
from headwater.curate.dedup.settings import DedupSettings

from .reference import outcome, read_zst, sentence, units, write_jsonl, write_texts

NGRAM = DedupSettings(methods=("ngram",))


def texts_of(folder: Path) -> dict[str, str]:
    return {row["id"]: row["text"] for row in read_zst(folder / "kept.jsonl.zst")}


def check_evidence(folder: Path, before: dict[str, str]) -> list[dict[str, object]]:
    """Every span is in the input's text, its units stand at the kept place, and that place was not cut itself."""
    rows = read_zst(folder / "removed.jsonl.zst")
    cut: dict[str, set[int]] = {}
    for row in rows:
        for start, end, _, _ in row["spans"]:
            if row["action"] == "cut":
                cut.setdefault(row["id"], set()).update(range(start, end))
    for row in rows:
        for start, end, kept_start, kept_end in row["spans"]:
            here = [unit for unit, _, _ in units(before[row["id"]][start:end])]
            there = [unit for unit, _, _ in units(before[row["kept_id"]][kept_start:kept_end])]
            assert here == there
            if row["kept_id"] != row["id"]:
                assert not cut.get(row["kept_id"], set()) & set(range(kept_start, kept_end))
    after = texts_of(folder)
    for name, text in after.items():
        expected = "".join(character for at, character in enumerate(before[name]) if at not in cut.get(name, set()))
        assert text == expected
    return rows


@pytest.mark.parametrize("chinese", [False, True], ids=["en", "zh"])
def test_a_passage_of_another_document_is_cut_between_characters(tmp_path: Path, chinese: bool) -> None:
    random = Random(1)
    shared = sentence(random, 80, chinese)
    texts = [f"{sentence(random, 60, chinese)}。\n{shared}。\n{sentence(random, 60, chinese)}" for _ in range(3)]
    path = write_texts(tmp_path / "in.jsonl", texts)
    report = dedup_files([path], tmp_path / "out", settings=NGRAM)
    rows = check_evidence(tmp_path / "out", {f"d{number:05d}": text for number, text in enumerate(texts)})
    assert [(row["id"], row["kept_id"], row["rule"]) for row in rows] == [
        ("d00001", "d00000", "ngram-passage"),
        ("d00002", "d00000", "ngram-passage"),
    ]
    after = texts_of(tmp_path / "out")
    assert after["d00000"] == texts[0]
    assert after["d00001"] == texts[1].replace(shared + "。", "")
    size = 2 * len((shared + "。").encode())
    assert report["passages"] == {"passages": 2, "documents": 2, "bytes": size, "cut_bytes": size}
    assert report["bytes"]["cut_from_kept"] == size


def test_a_passage_shorter_than_asked_stays(tmp_path: Path) -> None:
    random = Random(2)
    shared = sentence(random, 49)
    texts = [f"{sentence(random, 60)} {shared} {sentence(random, 60)}" for _ in range(2)]
    dedup_files([write_texts(tmp_path / "in.jsonl", texts)], tmp_path / "out", settings=NGRAM)
    assert list(texts_of(tmp_path / "out").values()) == texts
    settings = DedupSettings(methods=("ngram",), passage_units=49)
    dedup_files([tmp_path / "in.jsonl"], tmp_path / "shorter", settings=settings)
    assert texts_of(tmp_path / "shorter")["d00001"] != texts[1]


def test_a_passage_that_returns_in_its_own_document_is_cut(tmp_path: Path) -> None:
    random = Random(3)
    passage, bridge = sentence(random, 70, True), sentence(random, 90, True)
    text = f"{passage}\n{bridge}\n{passage}\n尾"
    dedup_files([write_texts(tmp_path / "in.jsonl", [text])], tmp_path / "out", settings=NGRAM)
    assert texts_of(tmp_path / "out")["d00000"] == f"{passage}\n{bridge}\n\n尾"
    check_evidence(tmp_path / "out", {"d00000": text})


def test_lines_that_stand_three_times_in_a_row_are_kept_once(tmp_path: Path) -> None:
    twice = "正在加载请稍候\n" * 2 + "正文开始"
    thrice = "标题\n" + "正在加载请稍候\n" * 5 + "正文开始"
    short = "0\n" * 5 + "end"
    dedup_files([write_texts(tmp_path / "in.jsonl", [twice, thrice, short])], tmp_path / "out", settings=NGRAM)
    after = texts_of(tmp_path / "out")
    assert after["d00000"] == twice
    assert after["d00001"].split() == ["标题", "正在加载请稍候", "正文开始"]
    assert after["d00002"] == short
    check_evidence(tmp_path / "out", {f"d{n:05d}": text for n, text in enumerate([twice, thrice, short])})


def test_a_million_repeats_are_one(tmp_path: Path) -> None:
    random = Random(4)
    page = sentence(random, 500)
    texts = ["哈" * 1_000_000, "click here now " * 100_000, "\n".join([page] * 300), "!" * 1_000_000]
    dedup_files([write_texts(tmp_path / "in.jsonl", texts)], tmp_path / "out", settings=NGRAM)
    after = texts_of(tmp_path / "out")
    assert after["d00000"] == "哈"
    assert after["d00001"].strip() == "click here now"
    assert after["d00002"].strip() == page
    assert after["d00003"] == texts[3]


def test_a_document_that_is_mostly_repeated_passages_goes_whole(tmp_path: Path) -> None:
    random = Random(5)
    parts = [sentence(random, 100) for _ in range(4)]
    texts = [" ".join([sentence(random, 300), part]) for part in parts]
    mosaic = "\n".join([*parts, sentence(random, 20)])
    path = write_texts(tmp_path / "in.jsonl", [*texts, mosaic])
    report = dedup_files([path], tmp_path / "out", settings=NGRAM)
    kept, removed = outcome(tmp_path / "out")
    assert kept == {f"d{n:05d}" for n in range(4)}
    assert removed["d00004"]["rule"] == "ngram-document"
    assert removed["d00004"]["score"] == pytest.approx(400 / 420, abs=1e-3)
    assert report["removed_by_rule"]["ngram-document"]["documents"] == 1


def test_code_is_never_cut_and_an_existing_corpus_neither(tmp_path: Path) -> None:
    random = Random(6)
    licence = sentence(random, 90)
    code = [{"id": f"c{n}", "text": f"{licence}\n{sentence(random, 90)}", "domain": "code"} for n in range(2)]
    old = [{"id": "old", "text": f"{sentence(random, 90)} {licence} {licence}"}]
    report = dedup_files(
        [write_jsonl(tmp_path / "code.jsonl", code)],
        tmp_path / "out",
        against=[write_jsonl(tmp_path / "old.jsonl", old)],
        settings=NGRAM,
    )
    assert read_zst(tmp_path / "out" / "kept.jsonl.zst") == code
    rows = read_zst(tmp_path / "out" / "removed.jsonl.zst")
    assert {(row["id"], row["action"], row["kept_id"]) for row in rows} == {
        ("c0", "report", "old"),
        ("c1", "report", "old"),
    }
    assert report["rows"]["removed"] == 0
    assert report["bytes"]["cut_from_kept"] == 0


def test_reporting_changes_no_row(tmp_path: Path) -> None:
    random = Random(7)
    shared = sentence(random, 200)
    path = write_texts(tmp_path / "in.jsonl", [f"{shared} {sentence(random, 50)}" for _ in range(2)] + [shared])
    settings = DedupSettings(methods=("ngram",), passages="report")
    report = dedup_files([path], tmp_path / "out", settings=settings)
    assert report["rows"]["kept"] == 3
    assert {row["action"] for row in read_zst(tmp_path / "out" / "removed.jsonl.zst")} == {"report"}
    assert read_zst(tmp_path / "out" / "kept.jsonl.zst") == read_lines(path)


def read_lines(path: Path) -> list[dict[str, object]]:
    import json

    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("seed", range(4))
def test_cuts_lean_only_on_text_that_stays_and_twice_is_once(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    blocks = [sentence(random, random.randrange(20, 90), chinese=number % 2 == 0) for number in range(14)]
    texts = {}
    for number in range(25):
        chosen = [random.choice(blocks) for _ in range(random.randrange(1, 4))]
        chosen += [sentence(random, random.randrange(10, 120)) for _ in range(3)]
        random.shuffle(chosen)
        texts[f"d{number:05d}"] = "。\n".join(chosen)
    rows = [{"id": name, "text": text} for name, text in texts.items()]
    dedup_files([write_jsonl(tmp_path / "a.jsonl", rows)], tmp_path / "a", settings=NGRAM)
    check_evidence(tmp_path / "a", texts)
    random.shuffle(rows)
    dedup_files([write_jsonl(tmp_path / "b.jsonl", rows)], tmp_path / "b", settings=NGRAM)
    assert texts_of(tmp_path / "a") == texts_of(tmp_path / "b")
    # What is left holds every unit sequence of 50 that came in, once.
    left = [[unit for unit, _, _ in units(text)] for text in texts_of(tmp_path / "a").values()]
    seen: dict[tuple[str, ...], int] = {}
    for document, words in enumerate(left):
        for at in range(len(words) - 99):
            assert seen.setdefault(tuple(words[at : at + 100]), document) == document
