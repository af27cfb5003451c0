"""Megatron's `.bin`/`.idx` pairs (MMapIndexedDataset, version 1), written and read.

`.bin` holds the tokens of all sequences without gaps. `.idx`, little-endian:

    b"MMIDIDX\\0\\0" | uint64 version 1 | uint8 type | uint64 sequences | uint64 documents + 1
    int32 length of each sequence | int64 byte offset of each in .bin
    int64 first sequence of each document, and the number of sequences

Types: 1 uint8, 2 int8, 3 int16, 4 int32, 5 int64, 8 uint16. We write a sequence a document, tokens with the end-of-
document token (Megatron's `--append-eod`), as uint16, or as int32 where a token does not fit.

    write_megatron(stream, Path("web"))               # web.bin, web.idx
    for tokens in MegatronReader(Path("web")).documents(): ...

Source: Megatron-LM, `megatron/core/datasets/indexed_dataset.py`.
"""

from __future__ import annotations

import mmap
import os
import struct
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headwater.core.documents import SPLITS, Document, document_id
from headwater.core.errors import CorruptArtifactError, InputError
from headwater.core.files import atomic_write, disk_errors
from headwater.core.jsonl import pretty_json
from headwater.core.progress import SILENT, Reporter
from headwater.dataset.config import DatasetConfig
from headwater.dataset.dataset import INDEX, DomainStream, TokenDataset
from headwater.dataset.pack import dataset_index, index_counts, shard_writer, spec_for
from headwater.tokenizer import Tokenizer
from headwater.tokenizer.files import new_folder

MAGIC = b"MMIDIDX\x00\x00"
VERSION = 1
_HEAD = struct.Struct("<9sQBQQ")
_TYPES = {1: "<u1", 2: "<i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
SHARD_TOKENS = 1 << 28


def write_megatron(stream: DomainStream, prefix: Path, vocab_size: int) -> dict[str, int]:
    """Write one domain of one split as `PREFIX.bin` and `PREFIX.idx`. Returns documents, tokens and bytes."""
    code, dtype = (8, np.dtype("<u2")) if vocab_size <= 65_536 else (4, np.dtype("<i4"))
    lengths, pointers = array("i"), array("q")
    position = 0
    bin_path = prefix.with_name(prefix.name + ".bin")
    with disk_errors(bin_path), open(bin_path, "wb") as file:
        for _, tokens in stream.iter_documents():
            pointers.append(position)
            lengths.append(len(tokens))
            position += file.write(tokens.astype(dtype).tobytes())
        file.flush()
        os.fsync(file.fileno())
    count = len(lengths)
    index = b"".join(
        [
            _HEAD.pack(MAGIC, VERSION, code, count, count + 1),
            np.frombuffer(lengths, np.int32).astype("<i4").tobytes(),
            np.frombuffer(pointers, np.int64).astype("<i8").tobytes(),
            np.arange(count + 1, dtype="<i8").tobytes(),
        ]
    )
    atomic_write(prefix.with_name(prefix.name + ".idx"), index)
    return {"documents": count, "tokens": position // dtype.itemsize, "bytes": position}


def export_megatron(dataset: TokenDataset, out: Path, reporter: Reporter = SILENT) -> dict[str, Any]:
    """Every domain of every split as `OUT/SPLIT-DOMAIN.bin` and `.idx`; `out` must be new. Returns counts."""
    counts: dict[str, Any] = {}
    with new_folder(out) as folder:
        for split in dataset.splits:
            for name, stream in dataset.split(split).domains.items():
                reporter.info(f"{split}/{name}: {stream.tokens:,} tokens")
                counts[f"{split}-{name}"] = write_megatron(stream, folder / f"{split}-{name}", dataset.vocab_size)
    return counts


class MegatronReader:
    """An open pair. InputError if a file is missing, CorruptArtifactError if the index contradicts itself or `.bin`."""

    def __init__(self, prefix: Path) -> None:
        text = str(prefix)
        self.prefix = Path(text[:-4]) if text.endswith((".bin", ".idx")) else Path(prefix)
        self._bin = self.prefix.with_name(self.prefix.name + ".bin")
        index_path = self.prefix.with_name(self.prefix.name + ".idx")
        try:
            data = index_path.read_bytes()
            size = self._bin.stat().st_size
        except OSError as error:
            raise InputError(
                f"no Megatron dataset here: {error.strerror}",
                where=str(error.filename),
                mend="give the path of a .bin and .idx pair, without the suffix",
            ) from error
        if len(data) < _HEAD.size or data[:9] != MAGIC:
            raise self._corrupt("the index does not begin as Megatron's do (MMIDIDX)")
        _, version, code, sequences, documents = _HEAD.unpack(data[: _HEAD.size])
        if version != VERSION or code not in _TYPES:
            raise self._corrupt(f"version {version}, type {code}; version 1 with integers is read")
        wanted = _HEAD.size + sequences * 12 + documents * 8
        if len(data) not in (wanted, wanted + sequences):  # multimodal indices have a byte a sequence more
            raise self._corrupt(f"the index has {len(data):,} bytes instead of {wanted:,}")
        self.dtype = np.dtype(_TYPES[code])
        at = _HEAD.size
        self.lengths = np.frombuffer(data, "<i4", sequences, at)
        self.pointers = np.frombuffer(data, "<i8", sequences, at + 4 * sequences)
        self.document_starts = np.frombuffer(data, "<i8", documents, at + 12 * sequences)
        ends = self.pointers + self.lengths.astype(np.int64) * self.dtype.itemsize
        good_ends = not sequences or (int(self.pointers.min()) >= 0 and int(ends.max()) <= size)
        starts = self.document_starts
        good_documents = (
            documents > 0 and starts[0] == 0 and starts[-1] == sequences and not np.any(np.diff(starts) < 0)
        )
        if np.any(self.lengths < 0) or not good_ends or not good_documents:
            raise self._corrupt("the index points outside of the .bin file, or its documents do not cover it")
        with open(self._bin, "rb") as file:
            self._map: Any = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b""

    def __len__(self) -> int:
        """Documents."""
        return len(self.document_starts) - 1

    def document(self, number: int) -> NDArray[np.int64]:
        """Tokens of a document, all its sequences joined, int64."""
        first, last = int(self.document_starts[number]), int(self.document_starts[number + 1])
        parts = [
            np.frombuffer(self._map, self.dtype, int(self.lengths[index]), int(self.pointers[index]))
            for index in range(first, last)
        ]
        return np.concatenate([*parts, np.zeros(0, self.dtype)]).astype(np.int64)

    def documents(self) -> Iterator[NDArray[np.int64]]:
        """Every document in order."""
        return (self.document(number) for number in range(len(self)))

    def _corrupt(self, what: str) -> CorruptArtifactError:
        return CorruptArtifactError(what, where=str(self.prefix), mend="restore the pair from a copy, or make it again")


def import_megatron(
    prefix: Path,
    tokenizer: Tokenizer,
    out: Path,
    *,
    split: str = "train",
    domain: str = "other",
    lang: str = "",
    config: DatasetConfig | None = None,
    reporter: Reporter = SILENT,
) -> dict[str, Any]:
    """A pair as a dataset of ours in the new folder `out`; returns counts as the dataset stage does.

    `tokenizer` must be the one the tokens were made with: it says what ends a document and how many bytes and units its
    text has. Begin and end tokens at a document's ends are taken for ours. Raises InputError for a token that the
    tokenizer does not have, or a split that is none.
    """
    if split not in SPLITS:
        raise InputError(f"{split!r} is no split", mend=f"give one of {', '.join(SPLITS)}")
    config = config or DatasetConfig()
    reader = MegatronReader(prefix)
    spec = spec_for(config, tokenizer)
    facts: list[tuple[str, str, dict[str, Any]]] = []
    with new_folder(out) as folder, reporter.progress("import", total=len(reader), unit="documents") as bar:
        (folder / split).mkdir()
        number = 0
        while number < len(reader) or not facts:
            name = f"{split}/{domain}-{len(facts):05d}.{config.format}"
            with shard_writer(folder / name, spec, split=split, domain=domain) as writer:
                while number < len(reader) and writer.tokens < SHARD_TOKENS:
                    tokens = _text_tokens(reader.document(number), spec.bos_id, spec.eos_id)
                    if len(tokens):
                        writer.add(_document(tokens, number, reader, tokenizer, domain, lang), tokens.tolist())
                    number += 1
                    bar.advance(1)
            facts.append((split, domain, {"name": name, **writer.counts}))
        index = dataset_index(spec, facts)
        atomic_write(folder / INDEX, pretty_json(index))
    return index_counts(index)


def _text_tokens(tokens: NDArray[np.int64], bos: int | None, eos: int) -> NDArray[np.int64]:
    if bos is not None and len(tokens) and tokens[0] == bos:
        tokens = tokens[1:]
    return tokens[:-1] if len(tokens) and tokens[-1] == eos else tokens


def _document(
    tokens: NDArray[np.int64], number: int, reader: MegatronReader, tokenizer: Tokenizer, domain: str, lang: str
) -> Document:
    if int(tokens.min()) < 0 or int(tokens.max()) >= tokenizer.vocab_size:
        raise InputError(
            f"document {number} has token {int(tokens.max()):,}; the tokenizer has {tokenizer.vocab_size:,}",
            where=str(reader.prefix),
            mend="give the tokenizer that the tokens were made with",
        )
    name = reader.prefix.name
    text = tokenizer.decode(tokens.tolist(), skip_special=False)
    return Document(document_id("megatron", name, number), text, source="megatron", lang=lang, domain=domain)
