"""Real near-duplicates and real paraphrases: what is found, and what must not be."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from headwater.curate.dedup.benchmarks import BenchmarkIndex
from headwater.curate.dedup.compare import jaccard
from headwater.curate.dedup.decontaminate import read_items
from headwater.curate.dedup.engine import deduplicate
from headwater.curate.dedup.settings import DecontaminateSettings, DedupSettings

from . import reference

pytestmark = pytest.mark.shared_data


def rows_of(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def test_editions_of_one_text_are_found_in_both_languages(shared_data: Path) -> None:
    documents = rows_of(shared_data / "dedup" / "editions_docs.jsonl.gz")
    pairs = rows_of(shared_data / "dedup" / "editions_pairs.jsonl")
    names = [row["id"] for row in documents]
    texts = {row["id"]: row["text"] for row in documents}
    removals = deduplicate(list(texts.values()), names)
    gone = {names[removal.row] for removal in removals}
    total: Counter[tuple[str, str]] = Counter()
    hit: Counter[tuple[str, str]] = Counter()
    for pair in pairs:
        if pair["jaccard5"] >= 0.7:
            place = pair["lang"], ">=0.8" if pair["jaccard5"] >= 0.8 else "0.7-0.8"
            total[place] += 1
            hit[place] += pair["id1"] in gone or pair["id2"] in gone
    recall = {place: hit[place] / total[place] for place in total}
    for language in ("en", "zh"):
        assert recall[language, ">=0.8"] >= 0.98
        assert recall[language, "0.7-0.8"] >= 0.90
    for removal in removals:
        removed, kept = names[removal.row], names[removal.kept_row]
        assert kept not in gone
        assert removal.score >= 0.7
        assert removal.score == pytest.approx(jaccard(texts[removed], texts[kept]), abs=1e-4)
    for removal in removals[::50]:  # plain Python takes its time
        assert reference.jaccard(texts[names[removal.row]], texts[names[removal.kept_row]]) >= 0.7


def test_paraphrases_that_are_no_duplicates_are_not_merged(shared_data: Path) -> None:
    folder = shared_data / "dedup"
    pairs = [
        (row["id"], round(jaccard(row["s1"], row["s2"]), 2))
        for name in ("pan_pairs.jsonl.gz", "msrp_pairs.jsonl.gz")
        for row in rows_of(folder / name)
        if not row["label"]
    ]
    near = [pair for pair in pairs if pair[1] >= 0.7]
    assert [pair for pair in near if pair[1] >= 0.8] == []
    assert near == [("1396291-1396477", 0.7)]  # one sentence with and without its last clause
    answers = rows_of(folder / "short_answers.jsonl")
    texts = [row["text"] for row in answers]
    for threshold in (0.7, 0.8):
        for removal in deduplicate(texts, settings=DedupSettings(threshold=threshold)):
            sides = answers[removal.row], answers[removal.kept_row]
            assert sides[0]["task"] == sides[1]["task"]
            assert not {side["category"] for side in sides} & {"heavy", "non"}


def test_known_overlaps_of_corpus_and_benchmarks_are_found(shared_data: Path) -> None:
    files = [shared_data / "eval" / name for name in ("gsm8k_test.jsonl", "cmmlu_test.jsonl.gz", "lambada_test.jsonl")]
    items, lacking = read_items(files, DecontaminateSettings())
    assert not lacking
    index = BenchmarkIndex(items, DecontaminateSettings())
    wanted = [item for item in index.items if len(item.question) > 60][::200]
    for item in wanted:
        assert item in [match.item for match in index.find(f"前言 some words. {item.question} 后记 and more.")]
