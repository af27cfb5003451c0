"""Evidence of cleaning and rules in a corpus a recipe made."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from headwater.core.documents import content_hash, read_documents
from headwater.curate.config import CollectConfig, CurateConfig
from tests.curate.helpers import collect, curate, write_rows
from tests.curate.quality.test_rules import CHINESE, ENGLISH


def test_scores_and_edits_of_every_document_lie_beside_the_corpus(tmp_path: Path) -> None:
    raw = [f"{ENGLISH} Write to jane@company.org.", CHINESE, "buy now " * 40, "short"]
    write_rows(tmp_path / "raw" / "in.jsonl", [{"text": text} for text in raw])
    source = {"name": "web", "paths": ["*.jsonl"], "domain": "web"}
    collected = collect(tmp_path / "w", CollectConfig(root=str(tmp_path / "raw"), sources=[source]))  # type: ignore[arg-type, list-item]
    made = curate(tmp_path / "w", collected, CurateConfig())
    (name,) = made.files("attributes/quality/")
    table = pq.read_table(made.path / name).to_pylist()
    assert [row["row"] for row in table] == [0, 1, 2, 3]
    assert json.loads(table[0]["edits"]) == {"email": 1}
    assert table[1]["gopher.length"] == pytest.approx(len([c for c in CHINESE if c >= "\u4e00"]) / 1.6, rel=0.2)
    assert table[2]["gopher.stop-words"] == 0
    assert table[3]["gopher.length"] is None  # cleaning took it before
    report = json.loads((made.path / "report.json").read_bytes())
    assert report["edits"] == {"email": {"documents": 1, "number": 1}}
    assert report["rules"]["gopher.length"] == 1
    assert set(report["dropped"]) == {"gopher.stop-words", "clean.too-short"}
    kept = [document.text for shard in made.files("corpus/") for document in read_documents(made.path / shard)]
    assert {content_hash(text) for text in kept} == {
        content_hash(text.replace("jane@company.org", "[EMAIL]")) for text in raw[:2]
    }  # lineage: what the attributes say of a text is true of the text that is trained on
