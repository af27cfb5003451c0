"""Deduplication, decontamination, splits, undo and takedown over the shards of a recipe."""

import json
import random
from pathlib import Path
from typing import Any

import orjson
import pyarrow.parquet as pq
import pytest

from headwater.core.artifacts import Artifact
from headwater.core.documents import Corpus, Document
from headwater.core.errors import InputError, UserError
from headwater.core.executor import ProcessExecutor
from headwater.curate.canaries import canaries_line
from headwater.curate.config import CollectConfig, CurateConfig
from tests.curate.dedup.reference import jaccard as reference_jaccard
from tests.curate.helpers import collect, curate, hashes, write_rows

ENGLISH = (
    "river",
    "mountain",
    "village",
    "teacher",
    "market",
    "letter",
    "garden",
    "winter",
    "doctor",
    "music",
    "island",
)
CHINESE = "今天我们去公园看花他说这本书很好读山上有人家水边种树夜里下雨第二早晨"
QUIET = {"quality": {"rules": []}, "language": {"accepted": []}, "clean": {"boilerplate": False}}


def prose(seed: int, units: int = 120, chinese: bool = False) -> str:
    """Text that no other seed gives."""
    pick = random.Random(seed)
    if chinese:
        return "".join(pick.choice(CHINESE) + ("，" if place % 12 == 11 else "") for place in range(units)) + "。"
    return " ".join(pick.choice(ENGLISH) + str(pick.randrange(40)) for _ in range(units)) + "."


def changed(text: str, places: int, seed: int = 0) -> str:
    """The text with some characters (Chinese) or words (English) replaced."""
    pick = random.Random(seed)
    parts = list(text) if " " not in text else text.split(" ")
    for place in pick.sample(range(len(parts)), places):
        parts[place] = "变" if " " not in text else "changed"
    return ("" if " " not in text else " ").join(parts)


def made(
    tmp_path: Path, rows: list[dict[str, Any]], config: dict[str, Any] | None = None, name: str = "ws"
) -> Artifact:
    """A corpus of rows, in two raw files."""
    half = len(rows) // 2
    for part, mine in enumerate((rows[:half], rows[half:])):
        write_rows(tmp_path / "raw" / f"part-{part}.jsonl", mine)
    source = {"name": "all", "paths": "part-*.jsonl"}
    collected = collect(
        tmp_path / name, CollectConfig(root=str(tmp_path / "raw"), sources=(source,), shard_bytes=20_000)
    )
    return curate(tmp_path / name, collected, CurateConfig(**{**QUIET, **(config or {})}))


def kept(artifact: Artifact) -> dict[str, Document]:
    """Text -> document of all splits."""
    corpus = Corpus.open(artifact)
    return {document.text: document for split in corpus.splits for document in corpus.documents(split)}


def removed(artifact: Artifact) -> list[dict[str, Any]]:
    return pq.read_table(artifact.file("removed.parquet")).to_pylist()


def report(artifact: Artifact) -> dict[str, Any]:
    return orjson.loads(artifact.file("report.json").read_bytes())


def adds_up(artifact: Artifact) -> None:
    found = report(artifact)
    for field in ("documents", "bytes", "units"):
        lost = sum(row[field] for row in found["dropped"].values())
        cut = sum(row[field] for row in found["cut"].values()) if field != "documents" else 0
        assert found["in"][field] == found["out"][field] + lost + cut + found["edited"].get(field, 0)


@pytest.fixture(scope="module")
def near_rows() -> list[dict[str, Any]]:
    """40 documents, and of some a near-duplicate, an exact copy, or a copy of the near-duplicate, in Chinese and
    English."""
    rows = []
    for seed in range(40):
        text = prose(seed, chinese=seed % 2 == 0)
        rows.append({"text": text, "domain": "web"})
        if seed % 4 < 2:
            near = changed(text, 2, seed)
            rows += [{"text": near, "domain": "web"}] * (2 if seed % 8 < 2 else 1)
        if seed % 10 == 3:
            rows.append({"text": text, "domain": "books"})
    random.Random(0).shuffle(rows)
    return rows


def test_near_duplicates_go_in_both_scripts_and_every_removal_says_why(
    tmp_path: Path, near_rows: list[dict[str, Any]]
) -> None:
    artifact = made(tmp_path, near_rows)
    adds_up(artifact)
    by_id = {document.id: document for document in kept(artifact).values()}
    assert len(by_id) == 40
    rows = [row for row in removed(artifact) if row["rule"].startswith("dedup.")]
    assert {row["rule"] for row in rows} == {"dedup.exact", "dedup.minhash"}
    texts = {}
    collected = Artifact.open(next((tmp_path / "ws" / "collect").glob("[0-9a-f]*")))
    for name in collected.files("documents/"):
        texts |= {row["id"]: row["text"] for row in pq.read_table(collected.file(name)).to_pylist()}
    for row in rows:
        assert row["kept_id"] in by_id, "what it was removed for stays"
        assert abs(row["score"] - reference_jaccard(texts[row["id"]], texts[row["kept_id"]])) < 1e-9
        assert row["score"] >= 0.7
        for start, end, kept_start, kept_end in row["spans"]:
            assert texts[row["id"]][start:end] == texts[row["kept_id"]][kept_start:kept_end]
    books = [document for document in by_id.values() if document.domain == "books"]
    assert len(books) == 4, "books are kept before the web"


def test_the_corpus_is_the_same_bytes_with_workers_and_without_canaries(
    tmp_path: Path, near_rows: list[dict[str, Any]]
) -> None:
    config = {"dedup": {"simhash": True, "ngram": True}, "split": {"validation": 0.1}}
    first = made(tmp_path, near_rows, config, "inline")
    collected = Artifact.open(next((tmp_path / "inline" / "collect").glob("[0-9a-f]*")))
    with ProcessExecutor(2) as pool:
        second = curate(tmp_path / "pool", collected, CurateConfig(**{**QUIET, **config}), pool)
    assert hashes(first) == hashes(second)
    third = curate(tmp_path / "off", collected, CurateConfig(**{**QUIET, **config, "canaries": {"documents": 0}}))
    assert third.fingerprint == first.fingerprint, "canaries decide nothing"
    measured = hashes(first)
    assert measured.pop("canaries.json")
    assert hashes(third) == measured


def test_canaries_measure_recall_in_chinese_and_english(tmp_path: Path) -> None:
    rows = [{"text": prose(seed, 200, seed % 2 == 0), "domain": "web"} for seed in range(24)]
    artifact = made(tmp_path, rows, {"canaries": {"documents": 8, "edits": [0.01, 0.2]}, "dedup": {"simhash": True}})
    found = json.loads(artifact.file("canaries.json").read_text())
    assert found["documents"] == {"zh": 8, "en": 8}
    by = {(row["lang"], row["edit"]): row for row in found["duplicates"]}
    for lang in ("zh", "en"):
        assert (by[lang, 0.01]["planted"], by[lang, 0.01]["recall"]) == (8, 1.0)
        assert by[lang, 0.2]["duplicates"] == 0, "a fifth changed is no duplicate"
    found["duplicates"][0] |= {"duplicates": 8, "found": 6}
    line = "canaries: 6 of 8 near-duplicates found in en (0.750), 8 of 8 near-duplicates found in zh (1.000)"
    assert canaries_line(found) == line
    assert canaries_line({"documents": {"zh": 0}, "questions": []}) == ""


def test_questions_of_benchmarks_go_and_name_the_item(tmp_path: Path) -> None:
    questions = [prose(1000, 40), prose(1001, 40, chinese=True)]
    benchmark = write_rows(
        tmp_path / "benchmarks" / "quiz.jsonl", [{"id": f"q{n}", "question": text} for n, text in enumerate(questions)]
    )
    rows = [{"text": prose(seed, chinese=seed % 2 == 0), "domain": "web"} for seed in range(12)]
    rows += [{"text": f"{prose(50)}\n{questions[0]}\n{prose(51)}"}, {"text": f"{prose(52)}{questions[1]}"}]
    config = {"decontaminate": {"root": str(tmp_path / "benchmarks"), "benchmarks": ["quiz.jsonl"]}}
    artifact = made(tmp_path, rows, config)
    adds_up(artifact)
    found = {row["kept_id"]: row for row in removed(artifact) if row["rule"] == "decontaminate.question"}
    assert set(found) == {"quiz.jsonl:q0", "quiz.jsonl:q1"}
    (start, end) = found["quiz.jsonl:q1"]["spans"][0]
    assert rows[-1]["text"][start:end].rstrip("。") == questions[1].rstrip("。")
    planted = json.loads(artifact.file("canaries.json").read_text())["questions"]
    assert planted[0] == {"edit": 0.0, "planted": 2, "found": 2, "recall": 1.0}
    before = artifact.fingerprint
    write_rows(benchmark, [{"id": "q0", "question": prose(77)}])
    assert made(tmp_path, rows, config).fingerprint != before, "another benchmark is another corpus"
    with pytest.raises(InputError, match="no such file"):
        made(tmp_path, rows, {"decontaminate": {"benchmarks": ["missing.jsonl"]}})


def test_repeated_passages_are_cut_out_of_prose_and_never_out_of_code(tmp_path: Path) -> None:
    shared = prose(500, 80)
    rows = [
        {"text": f"{prose(seed, 150)}\n\n{shared}\n\n{prose(seed + 50, 150)}", "domain": "web"} for seed in range(4)
    ]
    rows += [{"text": f"{prose(seed, 150)}\n{shared}", "domain": "code", "lang": "python"} for seed in range(60, 62)]
    artifact = made(tmp_path, rows, {"dedup": {"ngram": True}})
    adds_up(artifact)
    texts = kept(artifact)
    assert sum(shared in text for text in texts) == 2, "both programs keep it"
    assert sum(shared in text for text, document in texts.items() if document.domain == "code") == 2
    cuts = [row for row in removed(artifact) if row["rule"] == "dedup.ngram-passage"]
    assert {row["action"] for row in cuts} == {"cut", "report"}
    assert report(artifact)["cut"]["dedup.ngram-passage"]["documents"] == 4
    listed = made(tmp_path, rows, {"dedup": {"ngram": True, "passages": "report"}})
    assert sum(shared in text for text in kept(listed)) == 6


def test_what_is_near_to_held_out_text_leaves_train_even_where_nothing_is_deduplicated(
    tmp_path: Path, near_rows: list[dict[str, Any]]
) -> None:
    off = {"dedup": {"exact": False, "minhash": False}, "split": {"validation": 0.3, "seed": 1}}
    artifact = made(tmp_path, near_rows, off)
    adds_up(artifact)
    corpus = Corpus.open(artifact)
    train = [document.text for document in corpus.documents("train")]
    held = list(corpus.documents("validation"))
    assert held
    assert max(reference_jaccard(text, other.text) for text in train for other in held) < 0.7
    gone = [row for row in removed(artifact) if row["rule"] == "split.near-held-out"]
    assert gone
    assert {row["kept_id"] for row in gone} <= {document.id for document in held}
    together = {**off, "split": {**off["split"], "separate": False}}
    assert len(kept(made(tmp_path, near_rows, together))) > len(kept(artifact))


@pytest.mark.parametrize("rule", ["dedup.minhash", "dedup.exact", "clean.too-short"])
def test_undo_brings_back_what_a_rule_removed_and_changes_nothing_else(
    tmp_path: Path, near_rows: list[dict[str, Any]], rule: str
) -> None:
    rows = [*near_rows, {"text": "short one", "domain": "web"}]
    whole = {"split": {"validation": 0.0}}
    before = made(tmp_path, rows, whole)
    after = made(tmp_path, rows, {**whole, "undo": [rule]})
    gone = [row for row in removed(before) if row["rule"] == rule]
    assert gone
    lost, still = ({row["id"]: row["rule"] for row in removed(artifact)} for artifact in (before, after))
    others = {identifier: name for identifier, name in lost.items() if name != rule}
    copies = {identifier: name for identifier, name in still.items() if identifier not in others}
    assert {identifier: name for identifier, name in still.items() if identifier in others} == others
    assert set(copies.values()) <= {"dedup.exact"}, "of equal documents that come back one stays"
    assert report(after)["out"]["documents"] == report(before)["out"]["documents"] + len(gone) - len(copies)
    with pytest.raises(UserError, match="no rule that can be taken back"):
        made(tmp_path, rows, {"undo": ["dedup.magic"]})


def test_a_takedown_leaves_the_rest_of_the_corpus_as_it_was(tmp_path: Path, near_rows: list[dict[str, Any]]) -> None:
    config = {"split": {"validation": 0.2}, "shard_bytes": 6_000}
    before = made(tmp_path, near_rows, config)
    victim = next(document for document in kept(before).values() if document.domain == "web")
    ids = tmp_path / "ids.txt"
    ids.write_text(f"{victim.id} because it was asked for\n\n")
    after = made(tmp_path, near_rows, {**config, "takedown": [str(ids)]})
    adds_up(after)
    assert kept(before).keys() - kept(after).keys() == {victim.text}
    (row,) = [row for row in removed(after) if row["rule"] == "takedown.id"]
    assert row["id"] == victim.id
    was, now = hashes(before), hashes(after)
    corpus = [name for name in was if name.startswith("corpus/")]
    assert sum(was[name] != now.get(name) for name in corpus) == 1, "one file held it"
