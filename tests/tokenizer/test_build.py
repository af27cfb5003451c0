"""The stage and the file verb, from corpus to tokenizer folder."""

import gzip
import json
from pathlib import Path

import pytest
import zstandard

from headwater.core.artifacts import Artifact, ArtifactStore
from headwater.core.config import identity
from headwater.core.errors import InputError, RecipeError
from headwater.core.stage import StageContext
from headwater.curate import curate_files
from headwater.tokenizer import Tokenizer
from headwater.tokenizer.build import build
from headwater.tokenizer.config import TokenizerConfig
from headwater.tokenizer.files import train_tokenizer_files
from headwater.tokenizer.inputs import read_inputs

from .texts import chinese, documents, english, python_code, write_corpus

CONFIG = TokenizerConfig(vocab_size=1024, sample_bytes=150_000)


def _corpus(workspace: Path, *, shards: int = 2) -> Artifact:
    store = ArtifactStore(workspace)
    with store.writer("curate", f"{shards:016x}", version=1, identity={}, inputs={}) as out:
        write_corpus(out.scratch / "corpus", documents(), shards=shards)
        for path in sorted((out.scratch / "corpus").rglob("*.parquet")):
            name = path.relative_to(out.scratch).as_posix()
            temp = out.temp(name)
            path.rename(temp)
            out.finish(name, temp)
        return out.commit({"documents": len(documents())})


def _build(workspace: Path, corpus: Artifact, key: str = "b" * 16) -> Artifact:
    store = ArtifactStore(workspace)
    inputs = {"curate": corpus.fingerprint}
    with store.writer("tokenizer", key, version=1, identity=identity(CONFIG), inputs=inputs) as out:
        return out.commit(build(CONFIG, {"curate": corpus}, out, StageContext(workspace)))


def test_the_stage_makes_a_tokenizer_its_export_and_a_report(tmp_path: Path) -> None:
    artifact = _build(tmp_path, _corpus(tmp_path))
    tokenizer = Tokenizer.load(artifact.path)
    assert tokenizer.vocab_size == artifact.counts["vocab_size"] == 1024
    assert Tokenizer.load(artifact.path / "hf").sha256 == tokenizer.sha256
    meta = json.loads(artifact.file("meta.json").read_text())
    assert meta["sha256"] == tokenizer.sha256
    assert meta["embedding_rows"] == 1024
    assert meta["sample"]["all"]["bytes"] <= CONFIG.sample_bytes + (1 << 20)
    report = json.loads(artifact.file("report.json").read_text())
    assert report["measured_on"] == "validation split"
    assert {"all", "books/en", "code/python", "web/en", "web/zh"} >= set(report["compression"])
    for row in report["compression"].values():
        assert row["bytes_per_token"] == pytest.approx(row["bytes"] / row["tokens"], abs=1e-3)
    assert report["compression"]["web/zh"]["bytes_per_token"] > 3


def test_the_tokenizer_does_not_depend_on_how_the_corpus_is_cut_into_shards(tmp_path: Path) -> None:
    first, second = (
        _build(tmp_path, _corpus(tmp_path, shards=2)),
        _build(tmp_path, _corpus(tmp_path, shards=5), "c" * 16),
    )
    for name in first.files():
        assert first.file(name).read_bytes() == second.file(name).read_bytes(), name


def test_a_tokenizer_can_be_trained_straight_from_files(tmp_path: Path) -> None:
    rows = [json.dumps({"text": text, "lang": "zh", "domain": "web"}, ensure_ascii=False) for text in chinese(120)]
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress("\n".join(rows).encode()))
    (tmp_path / "b.jsonl.zst").write_bytes(
        zstandard.compress("\n".join(json.dumps({"text": text}) for text in english()).encode())
    )
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "c.txt").write_text(python_code()[0])
    inputs = [tmp_path / "a.jsonl.gz", tmp_path / "b.jsonl.zst", tmp_path / "code"]
    counts = train_tokenizer_files(inputs, tmp_path / "out", CONFIG)
    assert counts["sample_documents"] > 0
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        *("hf", "meta.json", "report.json", "tokenizer.model"),
    ]
    assert Tokenizer.load(tmp_path / "out").vocab_size == 1024
    with pytest.raises(InputError, match="exists already"):
        train_tokenizer_files(inputs, tmp_path / "out", CONFIG)


def test_a_failed_training_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("短。")
    with pytest.raises(RecipeError):
        train_tokenizer_files([tmp_path / "a.txt"], tmp_path / "out", TokenizerConfig())
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def test_bad_inputs_are_named_with_their_place(tmp_path: Path) -> None:
    good = json.dumps({"text": "好"}).encode()
    cases = {
        "list.jsonl": (good + b"\n[1, 2]\n", "list.jsonl:2"),
        "json.jsonl": (b'{"text": ', "json.jsonl:1"),
        "text.jsonl": (b'{"body": "x"}', "text.jsonl:1"),
        "bytes.txt": (b"ok \xff", "byte 3"),
        "cut.jsonl.gz": (gzip.compress(good * 1000)[:-12], "damaged"),
        "cut.jsonl.zst": (zstandard.compress(good * 1000)[:20], "cut.jsonl.zst"),
        "cut2.jsonl.zst": (zstandard.compress(good) + zstandard.compress(good * 1000)[:-3], "middle of a frame"),
        "image.png": (b"x", "cannot read files"),
    }
    for name, (data, message) in cases.items():
        (tmp_path / name).write_bytes(data)
        with pytest.raises(InputError) as caught:
            list(read_inputs([tmp_path / name]))
        assert message in str(caught.value), name
    with pytest.raises(InputError, match="no such file"):
        list(read_inputs([tmp_path / "missing"]))
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="no file that can be read"):
        list(read_inputs([tmp_path / "empty"]))


def test_a_folder_that_curate_wrote_gives_its_kept_rows(tmp_path: Path) -> None:
    raw = tmp_path / "raw.jsonl"
    rows = [json.dumps({"text": text}) for text in chinese(3)]
    raw.write_text("\n".join([*rows, rows[0], '{"text": "short"}', "no json"]), "utf-8")
    curate_files([raw], tmp_path / "clean")
    assert [document.text for document in read_inputs([tmp_path / "clean"])] == chinese(3)


def test_a_zst_file_of_several_frames_is_read_to_its_end(tmp_path: Path) -> None:
    rows = [json.dumps({"text": text}).encode() + b"\n" for text in chinese(50)]
    frames = [zstandard.compress(b"".join(rows[start : start + 7])) for start in range(0, 50, 7)]
    (tmp_path / "a.jsonl.zst").write_bytes(b"".join(frames))
    assert [document.text for document in read_inputs([tmp_path / "a.jsonl.zst"])] == chinese(50)


def test_ids_of_json_lines_follow_the_offset_not_the_row(tmp_path: Path) -> None:
    rows = [json.dumps({"text": text}).encode() for text in ("一", "二", "三")]
    (tmp_path / "a.jsonl").write_bytes(b"\n".join(rows))
    whole = [document.id for document in read_inputs([tmp_path / "a.jsonl"])]
    (tmp_path / "a.jsonl").write_bytes(rows[0] + b"\n" + b" " * len(rows[1]) + b"\n" + rows[2])
    assert [document.id for document in read_inputs([tmp_path / "a.jsonl"])] == [whole[0], whole[2]]
