"""TFRecord shards: the same tokens, documents and order as our own, readable by others, every byte under a checksum."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from headwater.core.documents import Document, document_id
from headwater.core.errors import CorruptArtifactError, InputError
from headwater.core.files import atomic_write
from headwater.core.jsonl import pretty_json
from headwater.core.tfrecord import masked_crc
from headwater.dataset import Loader, StepOrder, StepSegment, TokenDataset
from headwater.dataset.config import DatasetConfig
from headwater.dataset.files import pack_files
from headwater.dataset.pack import dataset_index, shard_writer
from headwater.dataset.tfrecord_shard import open_shard
from headwater.tokenizer import Tokenizer
from tests.dataset.conftest import SPEC


def write(folder: Path, suffix: str) -> TokenDataset:
    rng = np.random.default_rng(0)
    folder.mkdir()
    (folder / "train").mkdir()
    facts = []
    for shard in range(3):
        name = f"train/web-{shard:05d}.{suffix}"
        with shard_writer(folder / name, SPEC, split="train", domain="web") as writer:
            for number in range(40):
                identity = document_id("web", str(shard), number)
                size = int(rng.integers(1, 300))
                document = Document(identity, "字" * size, source=f"s{number % 3}", lang="zh" if number % 2 else "en")
                writer.add(document, rng.integers(31, 1000, size).tolist())
        facts.append(("train", "web", {"name": name, **writer.counts}))
    atomic_write(folder / "dataset.json", pretty_json(dataset_index(SPEC, facts)))
    return TokenDataset.open(folder)


@pytest.fixture
def both(tmp_path: Path) -> tuple[TokenDataset, TokenDataset]:
    return write(tmp_path / "ours", "tokens"), write(tmp_path / "theirs", "tfrecord")


def test_tokens_and_documents_are_those_of_our_own_shards(both: tuple[TokenDataset, TokenDataset]) -> None:
    ours, theirs = (dataset.split("train").domains["web"] for dataset in both)
    assert (ours.tokens, ours.documents, ours.languages) == (theirs.tokens, theirs.documents, theirs.languages)
    assert np.array_equal(ours.read(0, ours.tokens), theirs.read(0, theirs.tokens))
    rng = np.random.default_rng(1)
    for start in rng.integers(0, ours.tokens - 600, 30):
        stop = start + int(rng.integers(0, 600))
        one, two = ours.window(int(start), int(stop)), theirs.window(int(start), int(stop))
        assert np.array_equal(one.tokens, two.tokens)
        assert np.array_equal(one.documents, two.documents)
    assert [ours.document(n) for n in range(ours.documents)] == [theirs.document(n) for n in range(ours.documents)]
    identity = ours.document(70).id
    assert ours.find(identity) == theirs.find(identity) == [70]
    both[1].verify(deep=True)


def test_a_run_reads_the_same_batches_from_both(both: tuple[TokenDataset, TokenDataset]) -> None:
    batches = []
    for dataset in both:
        split = dataset.split("train")
        order = StepOrder(split.sizes, seed=3, segments=[StepSegment(1, 4, 64)])
        batches.append([batch.tokens for batch in Loader(split, order).iterate(1, 12)])
    assert all(np.array_equal(one, two) for one, two in zip(*batches, strict=True))


def test_a_changed_byte_anywhere_is_found(both: tuple[TokenDataset, TokenDataset], tmp_path: Path) -> None:
    path = tmp_path / "theirs" / "train" / "web-00000.tfrecord"
    good = path.read_bytes()
    for place in (3, 9, 40, len(good) // 2, len(good) - 2):
        path.write_bytes(good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :])
        with pytest.raises(CorruptArtifactError, match=r"record \d+ of 40"):
            open_shard(path).verify()
    path.write_bytes(good[:-1])
    with pytest.raises(CorruptArtifactError):
        open_shard(path).verify()
    path.write_bytes(good)
    documents = path.with_name(path.name + ".documents")
    content = documents.read_bytes()
    documents.write_bytes(content[:-1] + b"!")
    with pytest.raises(CorruptArtifactError, match="documents"):
        open_shard(path)
    documents.unlink()
    with pytest.raises(InputError, match="missing"):
        open_shard(path)


def test_the_package_tfrecord_reads_them(both: tuple[TokenDataset, TokenDataset], tmp_path: Path) -> None:
    reader = pytest.importorskip("tfrecord.reader", reason="the package tfrecord is not installed")
    path = str(tmp_path / "theirs" / "train" / "web-00001.tfrecord")
    kinds = {"tokens": "byte", "id": "byte", "lang": "byte", "units": "int"}
    stream = both[0].split("train").domains["web"]
    rows = list(reader.tfrecord_loader(path, None, kinds))
    assert len(rows) == 40
    by_index = reader.tfrecord_loader(path, path + ".index", kinds)  # begins anywhere and goes round
    assert sorted(bytes(row["id"]) for row in by_index) == sorted(bytes(row["id"]) for row in rows)
    for number, row in enumerate(rows, start=40):
        info = stream.document(number)
        assert bytes(row["id"]).decode() == info.id
        assert int(row["units"][0]) == info.units
        assert np.array_equal(np.frombuffer(bytes(row["tokens"]), "<u2"), stream.read(info.start, info.stop))


def test_the_masked_checksum_is_tensorflows() -> None:
    assert masked_crc(b"") == 0xA282EAD8
    crc = 0xE3069283  # CRC32C's check value, of "123456789"
    assert masked_crc(b"123456789") == (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def test_files_are_packed_as_tfrecord(tokenizer: Tokenizer, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "One document. 一篇。"}\n{"text": "Another one."}\n', "utf-8")
    counts = []
    for kind in ("tokens", "tfrecord"):
        counts.append(pack_files([tmp_path / "a.jsonl"], tokenizer, tmp_path / kind, config=DatasetConfig(format=kind)))  # type: ignore[arg-type]
        TokenDataset.open(tmp_path / kind).verify(deep=True)
    assert counts[0] == counts[1]
    assert {path.suffix for path in (tmp_path / "tfrecord" / "train").iterdir()} == {
        ".tfrecord",
        ".index",
        ".documents",
    }


def test_a_cache_of_tfrecord_is_refused() -> None:
    with pytest.raises(ValueError, match="the cache holds shards of format tokens"):
        DatasetConfig(format="tfrecord", cache_dir="/x")
