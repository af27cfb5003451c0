"""Deduplication of files: rows in, kept and removed rows and a report out."""

from __future__ import annotations

import gzip
import json
import time
from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from headwater.core.errors import InputError
from headwater.curate.dedup import buckets, engine, files, runs
from headwater.curate.dedup.files import dedup_files
from headwater.curate.dedup.settings import DedupSettings
from tests.conftest import Killer, RunCli, cli_command

from .reference import edited, outcome, read_zst, sentence, write_jsonl, write_texts


def near_duplicates(count: int, seed: int = 1) -> list[str]:
    """Groups of a text and two edits of it, Chinese and English by turns."""
    random = Random(seed)
    texts = []
    for number in range(count):
        chinese = number % 2 == 0
        text = sentence(random, 120, chinese)
        texts += [text, edited(random, text, 0.02, chinese), edited(random, text, 0.04, chinese)]
    return texts


def test_kept_rows_are_the_bytes_that_came_in(tmp_path: Path) -> None:
    lines = [
        b'{"text": "one  text \\u00e9", "id": 7, "n": 1.50, "extra": {"b": 1, "a": [1, 2]}}',
        b'  {"id":"x","text":"another text","domain":"web"}  ',
        b'{"text": "one  text \\u00e9", "id": 8}',
        b'{"text": "without an id"}',
        b'{"id": null, "text": "\\ud800 lone"}',
    ]
    (tmp_path / "in.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    report = dedup_files([tmp_path / "in.jsonl"], tmp_path / "out")
    with open(tmp_path / "out" / "kept.jsonl.zst", "rb") as file:
        kept = zstandard.ZstdDecompressor().stream_reader(file).read()
    assert kept == b"\n".join(line.strip() for number, line in enumerate(lines) if number != 2) + b"\n"
    assert report["rows"] == {
        "read": 5, "unusable": 0, "blank_lines": 0, "documents": 5, "kept": 4, "removed": 1, "against": 0,
    }  # fmt: skip
    assert json.loads((tmp_path / "out" / "report.json").read_text()) == report


def test_a_removed_row_says_why(tmp_path: Path) -> None:
    text = "前面不同的话。" + "天地玄黄宇宙洪荒日月盈昃辰宿列张寒来暑往秋收冬藏" * 1
    path = write_jsonl(tmp_path / "in.jsonl", [{"id": "a", "text": text[2:]}, {"id": "b", "text": text}])
    dedup_files([path], tmp_path / "out")
    (row,) = read_zst(tmp_path / "out" / "removed.jsonl.zst")
    assert {key: row[key] for key in ("id", "kept_id", "rule", "version", "file", "line", "action", "kept_in")} == {
        "id": "b", "kept_id": "a", "rule": "minhash", "version": 1, "file": str(path), "line": 2, "action": "remove",
        "kept_in": "inputs",
    }  # fmt: skip
    assert 0.7 <= row["score"] < 1
    ((start, end, kept_start, kept_end),) = row["spans"]
    assert text[start:end] == text[2:][kept_start:kept_end]
    assert end == len(text)
    assert row["spans_total"] == 1


def test_files_shards_and_workers_do_not_change_the_survivors(tmp_path: Path) -> None:
    texts = near_duplicates(40)
    rows = [{"id": f"{number * 7919 % 1000:04d}", "text": text} for number, text in enumerate(texts)]
    whole = write_jsonl(tmp_path / "whole.jsonl", rows)
    (tmp_path / "parts").mkdir()
    for part in range(4):
        write_jsonl(tmp_path / "parts" / f"{part}.jsonl", rows[::-1][part::4])
    settings = DedupSettings(methods=("exact", "minhash", "simhash"))
    dedup_files([whole], tmp_path / "a", settings=settings)
    dedup_files([tmp_path / "parts"], tmp_path / "b", settings=DedupSettings(methods=settings.methods, workers=3))
    first, second = outcome(tmp_path / "a"), outcome(tmp_path / "b")
    assert first[0] == second[0]
    why = [
        {key: (row["kept_id"], row["score"], row["rule"], row["spans"]) for key, row in side[1].items()}
        for side in (first, second)
    ]
    assert why[0] == why[1]
    assert len(first[1]) >= 40


def test_the_same_command_gives_the_same_bytes(tmp_path: Path) -> None:
    path = write_texts(tmp_path / "in.jsonl", near_duplicates(10))
    for name in ("a", "b"):
        dedup_files([path], tmp_path / name, settings=DedupSettings(workers=1 if name == "a" else 2))
    for file in ("kept.jsonl.zst", "removed.jsonl.zst", "report.json"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


def test_memory_bounds_do_not_change_the_outcome(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_texts(tmp_path / "in.jsonl", near_duplicates(16))
    methods = DedupSettings(methods=("exact", "minhash", "simhash", "ngram"))
    dedup_files([path], tmp_path / "a", settings=methods)
    for name, pairs in (("RUN_PAIRS", 16), ("MOST_RUN_PAIRS", 16), ("PART_PAIRS", 40), ("MOST_PART_PAIRS", 40)):
        monkeypatch.setattr(runs, name, pairs)
    monkeypatch.setattr(buckets, "HELD_MEMBERS", 1)
    monkeypatch.setattr(files, "BATCH_ROWS", 7)
    monkeypatch.setattr(engine, "COMPARE_PAIRS", 3)
    dedup_files([path], tmp_path / "b", settings=methods)
    for file in ("kept.jsonl.zst", "removed.jsonl.zst"):
        assert read_zst(tmp_path / "a" / file) == read_zst(tmp_path / "b" / file)


def test_what_stands_in_an_existing_corpus_goes_and_the_corpus_stays(tmp_path: Path) -> None:
    random = Random(2)
    old = [sentence(random, 100) for _ in range(6)]
    corpus = write_texts(tmp_path / "corpus.jsonl", [*old, old[0]], prefix="z-old-", domain="web")
    new = write_texts(
        tmp_path / "new.jsonl", [edited(random, old[1], 0.02), sentence(random, 100), old[0]], domain="books"
    )
    report = dedup_files([new], tmp_path / "out", against=[corpus])
    kept, removed = outcome(tmp_path / "out")
    assert kept == {"d00001"}
    assert (removed["d00000"]["kept_id"], removed["d00000"]["kept_in"]) == ("z-old-00001", "against")
    assert removed["d00002"]["kept_id"] == "z-old-00000"
    assert report["rows"]["against"] == 7
    dedup_files(
        [write_texts(tmp_path / "more.jsonl", [old[2]], prefix="m")], tmp_path / "again", against=[tmp_path / "out"]
    )
    assert outcome(tmp_path / "again")[0] == {"m00000"}


def test_books_stay_before_the_web(tmp_path: Path) -> None:
    text = "the very same text of several units in both"
    web = write_texts(tmp_path / "web.jsonl", [text], prefix="a", domain="web")
    books = write_texts(tmp_path / "books.jsonl", [text], prefix="b", domain="books")
    dedup_files([web, books], tmp_path / "out")
    assert outcome(tmp_path / "out")[0] == {"b00000"}


def test_bad_rows_are_counted_and_cost_nothing_else(tmp_path: Path) -> None:
    good = [f'{{"id": "g{number}", "text": "good text number {number} of them"}}'.encode() for number in range(4)]
    bad = [
        b'{"id": "x", "text": "bad \xff byte"}', b"[1, 2]", b'{"id": "y"}', b'{"id": "z", "text": 5}', b"{broken",
        b'{"id": "n", "text": null}',
    ]  # fmt: skip
    mixed = [line for pair in zip(good, bad[:4], strict=True) for line in pair] + bad[4:] + [b"", b"   "]
    (tmp_path / "a.jsonl").write_bytes(b"\xef\xbb\xbf" + b"\r\n".join(mixed))
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(b'{"id": "t", "text": "in a torn file"}\n' * 3000)[:-40])
    (tmp_path / "empty.jsonl").write_bytes(b"")
    report = dedup_files([tmp_path / name for name in ("a.jsonl", "b.jsonl.gz", "empty.jsonl")], tmp_path / "out")
    kept, _ = outcome(tmp_path / "out")
    assert kept == {"g0", "g1", "g2", "g3", "t"}
    quarantine = [json.loads(line) for line in (tmp_path / "out" / "quarantine.jsonl").read_text().splitlines()]
    assert [row["reason"] for row in quarantine[:6]] == [
        "bad-utf8", "not-an-object", "missing-field", "wrong-type", "bad-json", "wrong-type",
    ]  # fmt: skip
    assert quarantine[-1]["reason"] == "truncated"
    rows = report["rows"]
    assert rows["read"] == rows["documents"] + rows["unusable"]
    assert rows["documents"] == rows["kept"] + rows["removed"]


def test_parquet_rows_come_out_as_json(tmp_path: Path) -> None:
    table = pa.table({"id": ["a", "b", "c"], "text": ["the same", "the same", None], "n": [1, 2, 3]})
    pq.write_table(table, tmp_path / "in.parquet")
    report = dedup_files([tmp_path], tmp_path / "out")
    assert read_zst(tmp_path / "out" / "kept.jsonl.zst") == [{"id": "a", "text": "the same", "n": 1}]
    assert report["rows"]["unusable"] == 1


def test_inputs_that_are_not_there_or_would_be_overwritten_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        dedup_files([tmp_path / "none.jsonl"], tmp_path / "out")
    (tmp_path / "folder").mkdir()
    with pytest.raises(InputError, match="no file to read"):
        dedup_files([tmp_path / "folder"], tmp_path / "out")
    path = write_texts(tmp_path / "in.jsonl", ["a text"])
    dedup_files([path], tmp_path / "out")
    with pytest.raises(InputError, match="replaced"):
        dedup_files([tmp_path / "out"], tmp_path / "out")
    assert not list((tmp_path / "out").glob(".tmp*"))


def test_nothing_in_gives_nothing_out(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_bytes(b"")
    settings = DedupSettings(methods=("exact", "minhash", "simhash", "ngram"))
    report = dedup_files([tmp_path / "in.jsonl"], tmp_path / "out", settings=settings)
    assert report["rows"]["documents"] == 0
    assert outcome(tmp_path / "out") == (set(), {})


def test_the_verb_answers_ten_documents_at_once(tmp_path: Path, run_cli: RunCli) -> None:
    texts = [
        "ten short documents",
        *(f"text number {number} is not like the others" for number in range(8)),
        "ten short documents",
    ]
    path = write_texts(tmp_path / "in.jsonl", texts)
    started = time.monotonic()
    report = run_cli("curate", "dedup", path, "--out", tmp_path / "out", "--json").json
    assert time.monotonic() - started < 60  # a loaded machine; alone it takes under 2 seconds, the first time ever 4
    assert (report["rows"]["kept"], report["removed_by_rule"]["exact"]["documents"]) == (9, 1)
    assert outcome(tmp_path / "out")[1].keys() == {"d00009"}


def test_the_verb_says_what_is_wrong_with_an_option(tmp_path: Path, run_cli: RunCli) -> None:
    path = write_texts(tmp_path / "in.jsonl", ["a text"])
    done = run_cli("curate", "dedup", path, "--out", "out", "--method", "minhash,magic", "--json", code=2)
    assert "magic" in done.json["error"]["what"]
    assert "--out" in run_cli("curate", "dedup", path, code=2).stderr


def test_a_killed_run_leaves_nothing_behind_and_the_next_one_is_whole(tmp_path: Path, killer: Killer) -> None:
    path = write_texts(tmp_path / "in.jsonl", near_duplicates(2000))
    command = [*cli_command(), "curate", "dedup", path, "--out", tmp_path / "out", "--quiet"]
    dedup_files([path], tmp_path / "whole")
    killer.kill_until_done(command, kills=3, shortest=0.6, longest=4.0)
    for file in ("kept.jsonl.zst", "removed.jsonl.zst", "report.json"):
        assert (tmp_path / "out" / file).read_bytes() == (tmp_path / "whole" / file).read_bytes()
    assert sorted(item.name for item in (tmp_path / "out").iterdir()) == [
        "kept.jsonl.zst", "removed.jsonl.zst", "report.json",
    ]  # fmt: skip


def test_an_output_that_cannot_be_a_folder_is_refused(tmp_path: Path) -> None:
    path = write_texts(tmp_path / "in.jsonl", ["a text"])
    with pytest.raises(InputError, match="cannot write"):
        dedup_files([path], path)
    with pytest.raises(InputError, match="cannot write"):
        dedup_files([path], Path("/proc/nothing"))
