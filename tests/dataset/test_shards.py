"""Token shards: what goes in comes out, equal input gives equal bytes, and no damage goes unseen."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.core.documents import Document, document_id
from headwater.core.errors import CorruptArtifactError, InputError
from headwater.dataset.shard import TokenShard
from headwater.dataset.shard_format import BLOCK_BYTES, HEADER, token_type
from headwater.dataset.writer import ShardSpec, TokenShardWriter

from .conftest import SPEC


def _document(number: int, text: str = "一 two") -> Document:
    return Document(document_id("s", "made", number), text, source=f"s{number % 2}", lang="zh" if number % 3 else "en")


def _write(path: Path, rows: list[list[int]], spec: ShardSpec = SPEC) -> TokenShard:
    with TokenShardWriter(path, spec, split="train", domain="web") as writer:
        for number, tokens in enumerate(rows):
            writer.add(_document(number), tokens)
    return TokenShard(path)


@given(st.lists(st.lists(st.integers(0, 999), max_size=30), max_size=30), st.sampled_from(["uint16", "uint32"]))
@settings(max_examples=50)
def test_documents_come_back_with_all_that_is_known_of_them(
    tmp_path_factory: pytest.TempPathFactory, rows: list[list[int]], dtype: str
) -> None:
    folder = tmp_path_factory.mktemp("shard")
    spec = ShardSpec(dtype, 1000, 2, "ab" * 32)  # type: ignore[arg-type]
    shard = _write(folder / "a.tokens", rows, spec)
    assert shard.header.documents == len(rows)
    assert shard.header.tokens == sum(len(row) + 1 for row in rows)
    assert (shard.split, shard.domain) == ("train", "web")
    for number, row in enumerate(rows):
        info = shard.document(number)
        assert shard.tokens(info.start, info.stop).tolist() == [*row, 2]
        document = _document(number)
        assert (info.id, info.source, info.lang) == (document.id, document.source, document.lang)
        assert (info.bytes, info.units) == (7, 2)
        assert shard.find(document.id) == [number]
    assert shard.find("00" * 16) == []
    shard.verify()
    _write(folder / "b.tokens", rows, spec)
    assert (folder / "a.tokens").read_bytes() == (folder / "b.tokens").read_bytes()


def test_two_documents_with_one_id_are_both_found(tmp_path: Path) -> None:
    with TokenShardWriter(tmp_path / "a", SPEC, split="train", domain="web") as writer:
        for number in (5, 1, 5, 3):
            writer.add(_document(number), [number])
    assert TokenShard(tmp_path / "a").find(_document(5).id) == [0, 2]


def test_every_damaged_byte_is_found_and_its_place_named(tmp_path: Path) -> None:
    rows = [[number % 900] * 3000 for number in range(40)]  # 240 KB: four blocks
    path = tmp_path / "a.tokens"
    header = _write(path, rows).header
    good = path.read_bytes()
    assert header.blocks == 4
    for block in range(4):
        path.write_bytes(_flip(good, 128 + block * BLOCK_BYTES + 11))
        shard = TokenShard(path)
        with pytest.raises(CorruptArtifactError, match=rf"block {block} of 4") as caught:
            shard.tokens(0, header.tokens)
        assert caught.value.where == str(path)
        with pytest.raises(CorruptArtifactError, match=f"block {block} of 4"):
            TokenShard(path).verify()
        other = (block + 1) % 4 * BLOCK_BYTES // 2
        assert len(shard.tokens(other, other + 10)) == 10  # the rest can still be read
    for place in [*range(128), *range(header.footer_offset, header.file_bytes, 97)]:
        path.write_bytes(_flip(good, place))
        with pytest.raises(CorruptArtifactError, match="damaged"):
            TokenShard(path)
    for data in (good[:-1], good + b"x", good[:1000], b"", good[:50]):
        path.write_bytes(data)
        with pytest.raises(CorruptArtifactError, match="damaged"):
            TokenShard(path)
    path.unlink()
    with pytest.raises(InputError, match="missing"):
        TokenShard(path)


def _flip(data: bytes, place: int) -> bytes:
    return data[:place] + bytes([data[place] ^ 0x40]) + data[place + 1 :]


def test_the_index_is_checked_against_the_tokens(tmp_path: Path) -> None:
    path = tmp_path / "a.tokens"
    with TokenShardWriter(path, SPEC, split="train", domain="web") as writer:
        writer.add(_document(0), [5, 6, 7])
        writer._columns.ends[0] = 3  # a writer gone wrong, with right checksums
    with pytest.raises(CorruptArtifactError, match="does not cover"):
        TokenShard(path).verify()


def test_bad_documents_are_refused(tmp_path: Path) -> None:
    with TokenShardWriter(tmp_path / "a", SPEC, split="train", domain="web") as writer:
        with pytest.raises(InputError, match="32 hexadecimal digits"):
            writer.add(Document("7", "x", source="s"), [1])
        for bad in (-1, 1000):
            with pytest.raises(ValueError, match="outside the vocabulary"):
                writer.add(_document(0), [bad])
        writer.add(_document(0), [])
    assert TokenShard(tmp_path / "a").tokens(0, 1).tolist() == [2]


def test_sixteen_bits_are_taken_when_the_vocabulary_fits() -> None:
    assert token_type(65_536, "auto") == "uint16"
    assert token_type(65_537, "auto") == "uint32"
    assert token_type(100, "uint32") == "uint32"
    with pytest.raises(ValueError, match="do not fit"):
        token_type(65_537, "uint16")


def test_the_largest_tokens_survive(tmp_path: Path) -> None:
    wide = ShardSpec("uint32", 200_000, 199_999, "ab" * 32)
    assert _write(tmp_path / "w", [[0, 150_000]], wide).tokens(0, 3).tolist() == [0, 150_000, 199_999]
    full = ShardSpec("uint16", 65_536, 2, "ab" * 32)
    tokens = _write(tmp_path / "f", [[65_535, 0]], full).tokens(0, 3)
    assert tokens.tolist() == [65_535, 0, 2]
    assert tokens.dtype == np.uint16
    assert not tokens.flags.writeable


def test_a_document_without_its_bos_is_corruption(tmp_path: Path) -> None:
    spec = ShardSpec("uint16", 1000, 2, "ab" * 32, bos_id=1)
    path = tmp_path / "with-bos.tokens"
    document = Document(document_id("web", "a", 0), "two words", "web")
    with TokenShardWriter(path, spec, split="train", domain="web") as writer:
        writer.add(document, [7, 8])
    shard = TokenShard(path)
    assert shard.tokens(0, 4).tolist() == [1, 7, 8, 2]
    assert shard.header.bos_id == 1
    shard.verify()
    liar = tmp_path / "liar.tokens"
    with TokenShardWriter(liar, replace(spec, bos_id=None), split="train", domain="web") as writer:
        writer.add(document, [7, 8])
    damaged = bytearray(liar.read_bytes())
    damaged[: HEADER.size] = replace(TokenShard(liar).header, bos_id=1).pack()
    liar.write_bytes(damaged)
    with pytest.raises(CorruptArtifactError, match="begin-of-text"):
        TokenShard(liar).verify()
