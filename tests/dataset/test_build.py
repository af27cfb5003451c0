"""The dataset stage: exact counts, equal bytes with any workers and after any kill, and no work done twice."""

import json
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from headwater.core.artifacts import Artifact, ArtifactStore
from headwater.core.documents import DocumentWriter, read_documents
from headwater.core.errors import InputError, RecipeError
from headwater.core.stage import StageContext
from headwater.core.units import count_units
from headwater.dataset import TokenDataset
from headwater.dataset.build import build
from headwater.dataset.config import DatasetConfig
from headwater.dataset.files import pack_files
from headwater.tokenizer import Tokenizer
from tests.tokenizer.texts import chinese, documents, write_corpus

SCRIPT = Path(__file__).with_name("kill_pack.py")


def _commit(workspace: Path, stage: str, key: str, source: Path) -> Artifact:
    with ArtifactStore(workspace).writer(stage, key * 16, version=1, identity={}, inputs={}) as out:
        for path in sorted(source.rglob("*")):
            if path.is_file():
                out.write(path.relative_to(source).as_posix(), path.read_bytes())
        return out.commit({})


@pytest.fixture
def workspace(tmp_path: Path, tokenizer_folder: Path) -> Path:
    """A committed corpus of 4 x 3 training shards, and a tokenizer."""
    write_corpus(tmp_path / "source" / "corpus", documents(), shards=4)
    _commit(tmp_path / "w", "curate", "c", tmp_path / "source")
    _commit(tmp_path / "w", "tokenizer", "e", tokenizer_folder)
    return tmp_path / "w"


def _inputs(workspace: Path) -> dict[str, Artifact]:
    store = ArtifactStore(workspace)
    return {name: store.all(name)[0] for name in ("curate", "tokenizer")}


def _build(workspace: Path, key: str = "d", config: DatasetConfig | None = None) -> Artifact:
    inputs = _inputs(workspace)
    with ArtifactStore(workspace).writer("dataset", key * 16, version=1, identity={}, inputs={}) as out:
        return out.commit(build(config or DatasetConfig(), inputs, out, StageContext(workspace)))


def _content(artifact: Artifact) -> dict[str, bytes]:
    return {name: artifact.file(name).read_bytes() for name in [*artifact.files()]}


def test_every_document_is_packed_and_counted(workspace: Path, tokenizer: Tokenizer) -> None:
    artifact = _build(workspace)
    dataset = TokenDataset.open(artifact)
    dataset.verify(deep=True)
    dataset.check_tokenizer(tokenizer)
    assert dataset.fingerprint == artifact.fingerprint
    corpus = _inputs(workspace)["curate"]
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for split in dataset.splits:
        for domain, stream in dataset.split(split).domains.items():
            for info, tokens in stream.iter_documents():
                found[split, info.id] = {"domain": domain, "info": info, "tokens": tokens.tolist()}
    for name in corpus.files("corpus/"):
        for document in read_documents(corpus.file(name)):
            row = found.pop((name.split("/")[1], document.id))
            assert row["tokens"] == tokenizer.encode(document.text, bos=True, eos=True)
            assert row["domain"] == document.domain
            info = row["info"]
            assert (info.source, info.lang) == (document.source, document.lang)
            assert (info.bytes, info.units) == (len(document.text.encode()), count_units(document.text))
    assert not found
    counts = artifact.counts
    assert counts["documents"] == len(documents())
    for name in ("documents", "tokens", "bytes", "units"):
        assert counts[name] == sum(r[name] for domains in counts["splits"].values() for r in domains.values())
        for split in dataset.splits:
            for stream in dataset.split(split).domains.values():
                assert getattr(stream, name) == sum(lang[name] for lang in stream.languages.values())


def test_worker_processes_give_the_same_bytes(workspace: Path, killer: Any) -> None:
    inline = _content(_build(workspace, "1"))
    shutil.rmtree(workspace / "dataset")
    assert killer.kill_after([sys.executable, SCRIPT, workspace, "2"], 100) == 0
    (artifact,) = ArtifactStore(workspace).all("dataset")
    assert _content(artifact) == inline


def test_a_stage_killed_again_and_again_ends_with_the_same_bytes(workspace: Path, killer: Any) -> None:
    expected = _content(_build(workspace, "1"))
    hits = 0
    for workers in ("0", "2"):
        command = [sys.executable, SCRIPT, workspace, workers]
        shutil.rmtree(workspace / "dataset")
        started = time.monotonic()
        assert killer.start(command).wait(120) == 0
        whole = time.monotonic() - started  # a kill after a fixed time comes too late on a fast machine
        shutil.rmtree(workspace / "dataset")
        hits += killer.kill_until_done(command, kills=5, shortest=0.25 * whole, longest=0.9 * whole)
        (artifact,) = ArtifactStore(workspace).all("dataset")
        assert _content(artifact) == expected
        TokenDataset.open(artifact).verify(deep=True)
    assert hits > 0


def test_a_resumed_stage_keeps_finished_shards_and_redoes_those_of_another_tokenizer(workspace: Path) -> None:
    inputs, store = _inputs(workspace), ArtifactStore(workspace)
    name = "train/web-00000.tokens"
    with store.writer("dataset", "d" * 16, version=1, identity={}, inputs={}) as out:
        build(DatasetConfig(), inputs, out, StageContext(workspace))
        times = {shard: (out.dir / shard).stat().st_mtime_ns for shard in out.shards()}
        facts = {key: value for key, value in out.done(name).items() if key not in ("name", "size", "sha256")}  # type: ignore[union-attr]
        temp = out.temp(name)
        temp.write_bytes((out.dir / name).read_bytes())
        out.finish(name, temp, **{**facts, "tokenizer_sha256": "00" * 32})  # as if left by another tokenizer
    with store.writer("dataset", "d" * 16, version=1, identity={}, inputs={}) as out:
        build(DatasetConfig(), inputs, out, StageContext(workspace))
        after = {shard: (out.dir / shard).stat().st_mtime_ns for shard in out.shards()}
    changed = {shard for shard in times if after[shard] != times[shard]}
    assert changed == {name, "dataset.json"}


def test_shards_of_an_earlier_dataset_are_taken_over_when_the_corpus_grows(workspace: Path, tmp_path: Path) -> None:
    first = _build(workspace, "1")
    extra = tmp_path / "source" / "corpus" / "train" / "web-00004.parquet"
    with DocumentWriter(extra) as writer:
        for document in documents()[:5]:
            writer.add(document)
    shutil.rmtree(workspace / "curate")
    _commit(workspace, "curate", "f", tmp_path / "source")
    second = _build(workspace, "2")
    new = "train/web-00004.tokens"
    assert set(second.files()) - set(first.files()) == {new}
    for name in first.files("train/"):
        assert os.path.samefile(first.file(name), second.file(name))
    assert second.counts["documents"] == first.counts["documents"] + 5
    taken_over = _content(second)
    shutil.rmtree(workspace / "dataset")
    assert _content(_build(workspace, "2")) == taken_over


def test_a_damaged_shard_of_an_earlier_dataset_is_packed_again(workspace: Path) -> None:
    first = _build(workspace, "1")
    expected = _content(first)
    path = first.file("train/web-00001.tokens")
    data = bytearray(path.read_bytes())
    data[200] ^= 1
    path.write_bytes(data)
    assert _content(_build(workspace, "2")) == expected


def test_a_type_too_small_for_the_vocabulary_is_a_recipe_error(workspace: Path, tokenizer: Tokenizer) -> None:
    assert TokenDataset.open(_build(workspace)).dtype.itemsize == 2
    assert TokenDataset.open(_build(workspace, "3", DatasetConfig(dtype="uint32"))).dtype.itemsize == 4
    from headwater.dataset.pack import spec_for

    class Huge:
        vocab_size, eos_id, sha256 = 100_000, 2, "ab" * 32

    with pytest.raises(RecipeError, match="100,000 tokens do not fit uint16"):
        spec_for(DatasetConfig(dtype="uint16"), Huge())  # type: ignore[arg-type]


def test_files_can_be_packed_without_a_recipe(tmp_path: Path, tokenizer: Tokenizer, tokenizer_folder: Path) -> None:
    rows = [{"text": text, "domain": "law" if n % 2 else "web", "lang": "zh"} for n, text in enumerate(chinese(40))]
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps(row, ensure_ascii=False) for row in rows))
    counts = pack_files([tmp_path / "a.jsonl"], tokenizer_folder, tmp_path / "out", split="validation")
    dataset = TokenDataset.open(tmp_path / "out")
    dataset.verify(deep=True)
    dataset.check_tokenizer(tokenizer)
    assert counts["documents"] == 40
    split = dataset.split("validation")
    assert list(split.domains) == ["law", "web"]
    texts = [tokenizer.decode(tokens.tolist()) for _, tokens in split.domains["web"].iter_documents()]
    assert texts == chinese(40)[::2]
    pack_files([tmp_path / "a.jsonl"], tokenizer, tmp_path / "one", domain="poems")
    assert list(TokenDataset.open(tmp_path / "one").split("train").domains) == ["poems"]
    with pytest.raises(InputError, match="exists already"):
        pack_files([tmp_path / "a.jsonl"], tokenizer, tmp_path / "out")
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(InputError, match="no document"):
        pack_files([tmp_path / "empty.jsonl"], tokenizer, tmp_path / "none")
    with pytest.raises(InputError, match="no split"):
        pack_files([tmp_path / "a.jsonl"], tokenizer, tmp_path / "none", split="dev")
    assert not (tmp_path / "none").exists()


def test_files_are_cut_into_shards_of_bounded_size(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headwater.dataset.files.SHARD_TOKENS", 300)
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in chinese(40)))
    pack_files([tmp_path / "a.jsonl"], tokenizer, tmp_path / "out")
    stream = TokenDataset.open(tmp_path / "out").split("train").domains["other"]
    assert len(list((tmp_path / "out" / "train").iterdir())) == 5
    assert [tokenizer.decode(tokens.tolist()) for _, tokens in stream.iter_documents()] == chinese(40)
