"""Megatron pairs: the bytes its specification says, and back the same tokens."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from headwater.core.errors import CorruptArtifactError, InputError
from headwater.dataset import TokenDataset
from headwater.dataset.files import pack_files
from headwater.dataset.megatron import MegatronReader, export_megatron, import_megatron
from headwater.tokenizer import Tokenizer
from tests.dataset.conftest import MakeDataset


def test_the_bytes_are_those_of_the_specification(make_dataset: MakeDataset, tmp_path: Path) -> None:
    dataset = make_dataset({("train", "web"): [[3, 1], [5]]})
    counts = export_megatron(dataset, tmp_path / "out")
    assert counts == {"train-web": {"documents": 3, "tokens": 12, "bytes": 24}}
    stream = dataset.split("train").domains["web"]
    index = (tmp_path / "out" / "train-web.idx").read_bytes()
    assert index[:9] == b"MMIDIDX\x00\x00"
    assert struct.unpack_from("<Q", index, 9) == (1,)
    assert index[17] == 8  # uint16
    assert struct.unpack_from("<QQ", index, 18) == (3, 4)
    assert struct.unpack_from("<3i", index, 34) == (4, 2, 6)  # tokens and the end of the document
    assert struct.unpack_from("<3q", index, 46) == (0, 8, 12)
    assert struct.unpack_from("<4q", index, 70) == (0, 1, 2, 3)
    assert len(index) == 102
    content = (tmp_path / "out" / "train-web.bin").read_bytes()
    assert content == stream.read(0, stream.tokens).astype("<u2").tobytes()


def test_packed_text_goes_out_and_comes_back(tokenizer: Tokenizer, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(
        '{"text": "One document. 一篇。", "lang": "en"}\n{"text": "另一篇文档，长一些。", "lang": "en"}\n', "utf-8"
    )
    pack_files([tmp_path / "a.jsonl"], tokenizer, tmp_path / "ours", domain="web")
    export_megatron(TokenDataset.open(tmp_path / "ours"), tmp_path / "theirs")
    counts = import_megatron(
        tmp_path / "theirs" / "train-web.idx", tokenizer, tmp_path / "back", domain="web", lang="en"
    )
    ours, back = (TokenDataset.open(tmp_path / name).split("train").domains["web"] for name in ("ours", "back"))
    assert np.array_equal(ours.read(0, ours.tokens), back.read(0, back.tokens))
    assert (ours.bytes, ours.units, ours.languages) == (back.bytes, back.units, back.languages)
    assert counts["documents"] == 2
    TokenDataset.open(tmp_path / "back").verify(deep=True)


def test_documents_of_several_sequences_and_other_types_are_read(tmp_path: Path) -> None:
    """As an older preprocessing wrote them: a sequence a sentence, int32."""
    sequences = [[5, 6], [7], [8, 9, 10]]
    data = b"".join(np.array(row, "<i4").tobytes() for row in sequences)
    (tmp_path / "old.bin").write_bytes(data)
    index = b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, 4, 3, 3)
    index += struct.pack("<3i3q3q", 2, 1, 3, 0, 8, 12, 0, 2, 3)
    (tmp_path / "old.idx").write_bytes(index)
    reader = MegatronReader(tmp_path / "old")
    assert [row.tolist() for row in reader.documents()] == [[5, 6, 7], [8, 9, 10]]


@pytest.mark.parametrize("damage", ["magic", "short", "outside", "documents", "type"])
def test_a_damaged_index_is_refused(make_dataset: MakeDataset, tmp_path: Path, damage: str) -> None:
    export_megatron(make_dataset({("train", "web"): [[3, 1], [5]]}), tmp_path / "out")
    path = tmp_path / "out" / "train-web.idx"
    data = bytearray(path.read_bytes())
    if damage == "magic":
        data[0] = 0
    elif damage == "short":
        data = data[:-8]
    elif damage == "outside":
        struct.pack_into("<q", data, 62, 1000)
    elif damage == "documents":
        struct.pack_into("<q", data, 94, 9)
    else:
        data[17] = 7
    path.write_bytes(data)
    with pytest.raises(CorruptArtifactError):
        MegatronReader(tmp_path / "out" / "train-web")


def test_the_wrong_tokenizer_and_a_missing_file_are_said(tokenizer: Tokenizer, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no Megatron dataset here"):
        import_megatron(tmp_path / "none", tokenizer, tmp_path / "out")
    (tmp_path / "big.bin").write_bytes(np.array([60_000], "<u2").tobytes())
    index = b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, 8, 1, 2) + struct.pack("<iq2q", 1, 0, 0, 1)
    (tmp_path / "big.idx").write_bytes(index)
    with pytest.raises(InputError, match="token 60,000"):
        import_megatron(tmp_path / "big", tokenizer, tmp_path / "out")
