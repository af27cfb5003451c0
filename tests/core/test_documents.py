"""Documents keep their text and id; shards are deterministic; a corpus lists its splits and domains in order."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.core.artifacts import ArtifactStore
from headwater.core.documents import (
    ROW_GROUP_BYTES,
    Corpus,
    Document,
    DocumentWriter,
    content_hash,
    document_id,
    read_documents,
)
from headwater.core.errors import CorruptArtifactError, InputError

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
NAME = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=8)


def document(text: str, position: int = 0, **fields: object) -> Document:
    return Document(id=document_id("web", "a.jsonl", position), text=text, source="web", **fields)  # type: ignore[arg-type]


def write(path: Path, documents: list[Document]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with DocumentWriter(path) as writer:
        for item in documents:
            writer.add(item)
    assert writer.documents == len(documents)
    assert writer.text_bytes == sum(len(item.text.encode()) for item in documents)
    return path


@given(st.tuples(NAME, NAME, st.integers(0)), st.tuples(NAME, NAME, st.integers(0)))
def test_two_places_have_the_same_id_exactly_when_they_are_the_same(
    one: tuple[str, str, int], other: tuple[str, str, int]
) -> None:
    assert (document_id(*one) == document_id(*other)) == (one == other)
    assert len(document_id(*one)) == 32


def test_ids_and_content_hashes_are_the_same_in_every_release() -> None:
    assert document_id("web", "a/b.jsonl.zst", 1234) == "e8b956a0113cc4a65fcddca72ad0fe08"
    assert content_hash("长江 river") == "b476b0a040c6c95ea89227842b6d7d48"


def test_a_path_that_is_not_utf8_has_an_id() -> None:
    assert document_id("web", b"caf\xe9".decode("utf-8", "surrogateescape"), 0) != document_id("web", "café", 0)


@settings(max_examples=30)
@given(st.lists(TEXT, max_size=6), st.dictionaries(TEXT, st.integers(0, 9) | TEXT, max_size=3))
def test_documents_come_back_as_they_were(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], meta: dict[str, object]
) -> None:
    made = [document(text, number, lang="zh", url="u", license="cc0", meta=meta) for number, text in enumerate(texts)]
    folder = tmp_path_factory.mktemp("shard")
    path, again = write(folder / "a.parquet", made), write(folder / "b.parquet", made)
    assert list(read_documents(path)) == made
    assert path.read_bytes() == again.read_bytes()


def test_a_shard_larger_than_a_row_group_streams_in_order(tmp_path: Path) -> None:
    texts = ["长" * (ROW_GROUP_BYTES // 9 + number) for number in range(8)] + ["short"] * 5000
    path = write(tmp_path / "a.parquet", [document(text, number) for number, text in enumerate(texts)])
    assert [item.text for item in read_documents(path)] == texts


@pytest.mark.parametrize("damage", ["a byte", "the end"])
def test_a_damaged_shard_is_named(tmp_path: Path, damage: str) -> None:
    path = write(tmp_path / "a.parquet", [document(f"{number} 长 text", number) for number in range(500)])
    data = bytearray(path.read_bytes())
    if damage == "a byte":
        data[4] ^= 0xFF  # in the header of the first page
    else:
        del data[-20:]
    path.write_bytes(data)
    with pytest.raises(CorruptArtifactError, match=r"a\.parquet: damaged") as caught:
        list(read_documents(path))
    assert caught.value.mend


def test_a_flipped_bit_of_the_text_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "shard.parquet"
    with DocumentWriter(path) as writer:
        for number in range(50):
            text = f"文档 {number} {random.Random(number).random()}"
            writer.add(Document(document_id("s", "a", number), text, "s", "zh"))
    whole, documents = path.read_bytes(), list(read_documents(path))
    noticed = 0
    for position in range(len(whole) // 3, len(whole) // 2, 97):
        damaged = bytearray(whole)
        damaged[position] ^= 1
        path.write_bytes(damaged)
        try:
            assert list(read_documents(path)) == documents  # a bit that means nothing, of a page's statistics
        except CorruptArtifactError:
            noticed += 1
    assert noticed > 5


def test_parquet_of_other_columns_is_no_shard(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["a"]}), tmp_path / "a.parquet")
    with pytest.raises(InputError, match="it has no column 'id'"):
        list(read_documents(tmp_path / "a.parquet"))


@pytest.fixture
def corpus_folder(tmp_path: Path) -> Path:
    for split, domain, number in [
        ("train", "web", 99999),
        ("train", "web", 100000),
        ("train", "zh-news", 0),
        ("train", "books", 0),
        ("test", "web", 0),
    ]:
        name = f"{domain}-{number:05d}"
        write(tmp_path / "corpus" / split / f"{name}.parquet", [document(f"{split}/{name}", domain=domain)])
    (tmp_path / "corpus" / "train" / "notes.txt").write_text("not a shard")
    return tmp_path


def test_a_corpus_lists_splits_domains_and_shards_in_order(corpus_folder: Path) -> None:
    for root in (corpus_folder, corpus_folder / "corpus"):
        corpus = Corpus.open(root)
        assert corpus.splits == ("train", "test")
        assert corpus.domains("train") == ("books", "web", "zh-news")
        assert [path.stem for path in corpus.shards("train")] == [
            "books-00000",
            "web-99999",
            "web-100000",
            "zh-news-00000",
        ]
        assert [path.stem for path in corpus.shards("train", "zh-news")] == ["zh-news-00000"]
        assert [item.text for item in corpus.documents("train", "web")] == ["train/web-99999", "train/web-100000"]
        assert corpus.shards("validation") == []
        assert list(corpus.documents("validation")) == []


def test_a_corpus_opens_from_an_artifact_or_its_folder(corpus_folder: Path, tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path / "w")
    with store.writer("curate", "a" * 16, version=1, identity={}, inputs={}) as out:
        for path in sorted((corpus_folder / "corpus").rglob("*.parquet")):
            with out.shard(path.relative_to(corpus_folder).as_posix()) as temp:
                shutil.copyfile(path, temp)
        artifact = out.commit({})
    for source in (artifact, artifact.path):
        assert len(list(Corpus.open(source).documents("train"))) == 4


def test_what_is_no_corpus_or_no_part_of_it_is_a_clear_error(corpus_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="no corpus here"):
        Corpus.open(tmp_path / "empty")
    store = ArtifactStore(tmp_path / "w")
    with store.writer("curate", "a" * 16, version=1, identity={}, inputs={}) as out:
        nothing = out.commit({"documents": 0})
    with pytest.raises(InputError, match="curation kept no document"):
        Corpus.open(nothing.path)
    corpus = Corpus.open(corpus_folder)
    with pytest.raises(InputError, match="'dev' is no split"):
        corpus.shards("dev")
    with pytest.raises(InputError, match="no domain 'code'") as caught:
        list(corpus.documents("train", "code"))
    assert "books, web, zh-news" in caught.value.mend
