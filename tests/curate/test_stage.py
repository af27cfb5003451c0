import json
import random
import sys
from pathlib import Path
from typing import Any

import orjson
import pyarrow.parquet as pq
import pytest

from headwater.core.artifacts import Artifact
from headwater.core.documents import Corpus, document_id, read_documents
from headwater.core.errors import InputError, RecipeError
from headwater.core.executor import ProcessExecutor
from headwater.curate.config import CollectConfig, CurateConfig
from tests.curate.helpers import collect, curate, hashes, read_zst, sentence, write_rows

FIELDS = ("documents", "bytes", "units")


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    """Two sources with duplicates, a foreign language, short texts and bad lines in them."""
    root = tmp_path / "raw"
    rows = [{"text": sentence(number), "domain": "web", "id": f"w{number}"} for number in range(400)]
    rows += [{"text": f"<p>{sentence(number)}</p>", "domain": "web"} for number in range(0, 100, 3)]
    rows += [{"text": "Der schnelle braune Fuchs springt über den faulen Hund und läuft.", "domain": "web"}]
    rows += [{"text": "short", "domain": "web"}, {"text": "", "domain": "web"}]
    for part in range(3):
        write_rows(root / f"web-{part}.jsonl", rows[part::3])
    books = write_rows(root / "books.jsonl", [{"text": sentence(number)} for number in range(0, 40, 5)])
    with open(books, "ab") as file:
        file.write(b"\xff\n[1]\n\n")
    return root


def config_of(root: Path, **fields: Any) -> CollectConfig:
    sources = ({"name": "web", "paths": "web-*.jsonl"}, {"name": "books", "paths": "books.jsonl", "domain": "books"})
    return CollectConfig(root=str(root), sources=sources, **fields)


def removed(artifact: Artifact) -> list[dict[str, Any]]:
    return pq.read_table(artifact.file("removed.parquet")).to_pylist()


def report(artifact: Artifact) -> dict[str, Any]:
    return orjson.loads(artifact.file("report.json").read_bytes())


def test_documents_bytes_and_units_add_up_from_raw_files_to_corpus(tmp_path: Path, raw: Path) -> None:
    collected = collect(tmp_path / "ws", config_of(raw))
    counts = collected.counts
    for name, source in counts["sources"].items():
        bad = [row for kind in ("quarantined", "passed_over") for row in source[kind].values()]
        assert source["records"] == source["documents"] + sum(row["records"] for row in bad)
        assert source["raw_bytes"] == source["document_raw_bytes"] + sum(row["raw_bytes"] for row in bad)
        assert source["raw_bytes"] == sum(path.stat().st_size for path in raw.glob(f"{name}*"))
    assert {reason: row["records"] for reason, row in counts["sources"]["books"]["quarantined"].items()} == {
        "bad-utf8": 1,
        "not-an-object": 1,
    }
    curated = curate(tmp_path / "ws", collected)
    found = report(curated)
    for field in FIELDS:
        lost = sum(row[field] for row in found["dropped"].values())
        assert found["in"][field] == counts[field] == found["out"][field] + lost + found["edited"].get(field, 0)
        for table in ("by_language", "by_domain"):
            assert sum(row["in"][field] for row in found[table].values()) == found["in"][field]
            assert sum(row["out"][field] for row in found[table].values()) == found["out"][field]
        assert sum(row[field] for split in found["splits"].values() for row in split.values()) == found["out"][field]
    corpus = Corpus.open(curated)
    texts = [document.text for split in corpus.splits for document in corpus.documents(split)]
    assert len(texts) == len(set(texts)) == found["out"]["documents"] == 400
    assert sum(len(text.encode()) for text in texts) == found["out"]["bytes"]
    assert len(removed(curated)) == sum(row["documents"] for row in found["dropped"].values())


def test_every_removed_document_names_its_rule_and_the_kept_one(tmp_path: Path, raw: Path) -> None:
    curated = curate(tmp_path / "ws", collect(tmp_path / "ws", config_of(raw)))
    corpus = Corpus.open(curated)
    kept = {document.id: document for split in corpus.splits for document in corpus.documents(split)}
    rows = removed(curated)
    assert not kept.keys() & {row["id"] for row in rows}
    by_rule = {rule: [row for row in rows if row["rule"] == rule] for rule in {row["rule"] for row in rows}}
    assert {rule: len(found) for rule, found in by_rule.items()} == {
        "dedup.exact": 34 + 8,
        "clean.too-short": 2,
        "language.not-accepted": 1,
    }
    assert all(row["kept_id"] in kept and row["score"] == 1.0 for row in by_rule["dedup.exact"])
    books = [row for row in by_rule["dedup.exact"] if kept[row["kept_id"]].domain == "books"]
    assert len(books) >= 8  # the web's copies went, the books stayed
    assert sum(document.domain == "books" for document in kept.values()) == 8


def test_the_quarantine_names_file_line_offset_and_reason(tmp_path: Path, raw: Path) -> None:
    collected = collect(tmp_path / "ws", config_of(raw))
    rows = [json.loads(line) for line in collected.file("quarantine.jsonl").read_text().splitlines()]
    assert [(row["file"], row["line"], row["reason"]) for row in rows] == [
        ("books.jsonl", 9, "bad-utf8"),
        ("books.jsonl", 10, "not-an-object"),
    ]
    data = (raw / "books.jsonl").read_bytes()
    assert data[rows[0]["offset"]] == 0xFF
    assert data[rows[1]["offset"] :].startswith(b"[1]")


def test_ids_are_those_of_source_path_and_offset(tmp_path: Path, raw: Path) -> None:
    collected = collect(tmp_path / "ws", config_of(raw))
    (shard,) = (collected.file(name) for name in collected.files("documents/books"))
    offset = 0
    for document, line in zip(read_documents(shard), (raw / "books.jsonl").read_bytes().split(b"\n"), strict=False):
        assert document.id == document_id("books", "books.jsonl", offset)
        offset += len(line) + 1


def test_any_number_of_workers_gives_the_same_bytes(tmp_path: Path, raw: Path) -> None:
    settings = config_of(raw, shard_bytes=15_000)
    curating = CurateConfig(shard_bytes=30_000, split={"validation": 0.1, "test": 0.05}, dedup={"keys_in_memory": 200})
    first = collect(tmp_path / "one", settings)
    one = curate(tmp_path / "one", first, curating)
    with ProcessExecutor(2) as pool:
        second = collect(tmp_path / "two", settings, pool)
        two = curate(tmp_path / "two", second, curating, pool)
    assert hashes(first) == hashes(second)
    assert hashes(one) == hashes(two)
    assert one.counts == two.counts
    assert len(one.files("corpus/train/web")) > 1
    assert len(first.files("documents/web")) > 2  # slices of files that are not compressed


def test_shards_of_another_size_leave_the_same_documents(tmp_path: Path, raw: Path) -> None:
    def outcome(name: str, collecting: int, curating: int, keys: int) -> Any:
        collected = collect(tmp_path / name, config_of(raw, shard_bytes=collecting))
        config = CurateConfig(shard_bytes=curating, split={"test": 0.05}, dedup={"keys_in_memory": keys})
        artifact = curate(tmp_path / name, collected, config)
        corpus = Corpus.open(artifact)
        kept = {split: [(d.id, d.text, d.lang) for d in corpus.documents(split)] for split in corpus.splits}
        quarantine = collected.file("quarantine.jsonl").read_bytes()
        return kept, removed(artifact), artifact.counts, quarantine

    whole = outcome("whole", 1 << 26, 1 << 27, 1_000_000)
    assert outcome("small", 9000, 21_000, 101) == whole


def test_the_order_of_sources_and_paths_does_not_choose_the_survivors(tmp_path: Path, raw: Path) -> None:
    config = config_of(raw)
    turned = CollectConfig(root=config.root, sources=config.sources[::-1])
    outcomes = [curate(tmp_path / "ws", collect(tmp_path / "ws", each)) for each in (config, turned)]
    assert hashes(outcomes[0]) == hashes(outcomes[1])


def test_curating_what_was_curated_removes_nothing(tmp_path: Path, raw: Path) -> None:
    curated = curate(tmp_path / "ws", collect(tmp_path / "ws", config_of(raw)))
    corpus = Corpus.open(curated)
    rows = [
        {"text": d.text, "domain": d.domain, "lang": d.lang} for split in corpus.splits for d in corpus.documents(split)
    ]
    write_rows(tmp_path / "again" / "all.jsonl", rows)
    source = {"name": "again", "paths": "all.jsonl"}
    again = curate(
        tmp_path / "ws", collect(tmp_path / "ws", CollectConfig(root=str(tmp_path / "again"), sources=(source,)))
    )
    assert again.counts["documents"] == len(rows)
    assert again.counts["dropped"] == {}
    assert again.counts["edited"] == {"bytes": 0, "units": 0}


def test_every_domain_with_enough_documents_has_validation_data(tmp_path: Path, raw: Path) -> None:
    curated = curate(tmp_path / "ws", collect(tmp_path / "ws", config_of(raw)))
    splits = report(curated)["splits"]
    assert splits["validation"]["web"]["documents"] >= 8
    assert "books" not in splits["validation"]  # 8 documents: a tenth is none
    assert splits["train"]["books"]["documents"] == 8


def test_deduplication_can_be_turned_off(tmp_path: Path, raw: Path) -> None:
    collected = collect(tmp_path / "ws", config_of(raw))
    off = CurateConfig(dedup={"exact": False, "minhash": False}, split={"separate": False})
    curated = curate(tmp_path / "ws", collected, off)
    assert "dedup.exact" not in report(curated)["dropped"]
    assert curated.counts["documents"] == collected.counts["documents"] - 3


def test_a_source_that_gives_nothing_stops_with_the_reasons(tmp_path: Path, raw: Path) -> None:
    wrong = CollectConfig(root=str(raw), sources=({"name": "web", "paths": "web-*.jsonl", "text_field": "body"},))
    for _ in range(2):  # the second time the shards are there already
        with pytest.raises(InputError, match="missing-field") as error:
            collect(tmp_path / "ws", wrong)
        assert "text_field" in str(error.value)
    with pytest.raises(InputError, match="of its records in quarantine"):
        collect(tmp_path / "ws", config_of(raw, max_quarantine_ratio=0.01))
    with pytest.raises(RecipeError, match="nothing to collect"):
        collect(tmp_path / "ws", CollectConfig())


SCRIPT = """
import sys
from pathlib import Path
sys.path.insert(0, {root!r})
from headwater.core.executor import make_executor
from tests.curate.helpers import collect, curate
from tests.curate.test_stage import config_of
from headwater.curate.config import CurateConfig
workspace, raw = Path(sys.argv[1]), Path(sys.argv[2])
with make_executor("process", 2) as pool:
    collected = collect(workspace, config_of(raw, shard_bytes=15_000), pool)
    curate(workspace, collected, CurateConfig(shard_bytes=30_000, dedup={{"keys_in_memory": 150}}), pool)
"""


def test_killed_at_random_moments_it_ends_with_the_same_bytes(tmp_path: Path, raw: Path, killer: Any) -> None:
    script = tmp_path / "run.py"
    script.write_text(SCRIPT.format(root=str(Path(__file__).resolve().parents[2])))
    command = [sys.executable, str(script)]
    killer.kill_until_done([*command, tmp_path / "killed", raw], kills=4, shortest=0.4, longest=2.0)
    settings = config_of(raw, shard_bytes=15_000)
    curating = CurateConfig(shard_bytes=30_000, dedup={"keys_in_memory": 150})
    expected = [collect(tmp_path / "whole", settings)]
    expected.append(curate(tmp_path / "whole", expected[0], curating))
    found = [collect(tmp_path / "killed", settings)]
    found.append(curate(tmp_path / "killed", found[0], curating))
    assert [hashes(artifact) for artifact in found] == [hashes(artifact) for artifact in expected]


def test_five_real_domains_go_through_with_exact_counts(tmp_path: Path, shared_data: Path) -> None:
    picked = random.Random(0)
    root = tmp_path / "corpora"
    for domain in ("web", "books", "code", "papers", "other"):
        rows = read_zst(shared_data / "corpora" / f"{domain}.jsonl.zst")
        write_rows(root / f"{domain}.jsonl", picked.sample(rows, 80))
    sources = tuple({"name": name, "paths": f"{name}.jsonl"} for name in ("web", "books", "code", "papers", "other"))
    collected = collect(tmp_path / "ws", CollectConfig(root=str(root), sources=sources))
    assert collected.counts["documents"] == 400
    assert collected.counts["quarantined"] == 0
    curated = curate(tmp_path / "ws", collected)
    assert set(Corpus.open(curated).domains("train")) == {"web", "books", "code", "papers", "other"}
    assert set(Corpus.open(curated).domains("validation")) == {"web", "books", "code", "papers", "other"}
    found = report(curated)
    assert found["out"]["documents"] > 375
    assert {"zh", "en", "python", "javascript"} <= set(found["by_language"])
