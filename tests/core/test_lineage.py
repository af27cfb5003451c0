"""Lineage walks from an artifact to the raw content it came from."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from headwater.core.artifacts import Artifact, ArtifactStore, fingerprint
from headwater.core.lineage import lineage


def make(store: ArtifactStore, stage: str, inputs: dict[str, str]) -> Artifact:
    key = fingerprint(stage, 1, {}, inputs)
    with store.writer(stage, key, version=1, identity={}, inputs=inputs) as out:
        return out.commit({"documents": 7})


def test_the_tree_goes_back_to_the_raw_content(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path)
    collect = make(store, "collect", {"raw:web": "ab" * 16})
    curate = make(store, "curate", {"collect": collect.fingerprint})
    tokenizer = make(store, "tokenizer", {"corpus": curate.fingerprint})
    dataset = make(store, "dataset", {"corpus": curate.fingerprint, "tokenizer": tokenizer.fingerprint})
    tree = lineage(store, dataset)
    assert json.loads(json.dumps(tree)) == tree
    assert (tree["kind"], tree["stage"], tree["counts"]) == ("artifact", "dataset", {"documents": 7})
    assert tree["created"].endswith("Z")
    assert tree["inputs"]["tokenizer"]["inputs"]["corpus"] == tree["inputs"]["corpus"]
    raw = tree["inputs"]["corpus"]["inputs"]["collect"]["inputs"]["raw:web"]
    assert raw == {"kind": "content", "fingerprint": "ab" * 16}


def test_a_removed_input_is_called_missing(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path)
    collect = make(store, "collect", {})
    curate = make(store, "curate", {"collect": collect.fingerprint})
    shutil.rmtree(collect.path)
    assert lineage(store, curate)["inputs"]["collect"] == {"kind": "missing", "fingerprint": collect.fingerprint}


def test_what_is_no_artifact_can_be_resolved_by_the_caller(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path)
    export = make(store, "export", {"checkpoint": "0" * 16, "raw": "cd" * 16})

    def resolve(role: str, key: str) -> dict[str, Any] | None:
        return {"kind": "checkpoint", "fingerprint": key, "step": 100} if role == "checkpoint" else None

    inputs = lineage(store, export, resolve)["inputs"]
    assert inputs["checkpoint"] == {"kind": "checkpoint", "fingerprint": "0" * 16, "step": 100}
    assert inputs["raw"]["kind"] == "content"


def test_the_store_knows_its_stages_and_finds_by_fingerprint(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path / "w")
    assert store.stages() == []
    assert store.all("collect") == []
    collect = make(store, "collect", {})
    (tmp_path / "w" / ".cache").mkdir()
    (tmp_path / "w" / "runs" / "a").mkdir(parents=True)
    assert store.stages() == ["collect", "runs"]
    assert store.all("runs") == []
    assert store.locate(collect.fingerprint) == collect
    assert store.locate("f" * 16) is None
