"""Writes one token shard: documents in the order added, equal input to equal bytes.

In: documents and their token ids. Out: a file as `shard_format.py` describes it. Memory: one block of tokens plus
about 100 bytes a document.

    with TokenShardWriter(path, spec, split="train", domain="web") as writer:
        writer.add(document, token_ids)         # of its text: the writer adds bos and eos
    writer.counts["tokens"]
"""

from __future__ import annotations

import io
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import numpy as np
import xxhash
from numpy.typing import NDArray

from headwater.core.documents import Document
from headwater.core.errors import InputError
from headwater.core.jsonl import canonical_json
from headwater.core.units import count_units
from headwater.dataset.shard_format import BLOCK_BYTES, HEADER, Header, TokenType


@dataclass(frozen=True, slots=True)
class ShardSpec:
    """What all shards of a dataset share."""

    dtype: TokenType
    vocab_size: int
    eos_id: int
    tokenizer_sha256: str
    bos_id: int | None = None
    """Before each document; None: nothing."""


class ShardWriter(Protocol):
    """What writes one shard, in whichever format."""

    path: Path
    split: str
    domain: str

    @property
    def tokens(self) -> int: ...

    @property
    def counts(self) -> dict[str, Any]: ...

    def add(self, document: Document, tokens: Sequence[int]) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def packed_ids(spec: ShardSpec, document_id: str, tokens: Sequence[int]) -> NDArray[np.int64]:
    """A document's tokens with bos, if the tokenizer has one, and eos, int64. ValueError for a token outside the
    vocabulary."""
    before = 0 if spec.bos_id is None else 1
    ids = np.empty(before + len(tokens) + 1, dtype=np.int64)
    ids[:before], ids[before:-1], ids[-1] = spec.bos_id or 0, tokens, spec.eos_id
    if int(ids.min()) < 0 or int(ids.max()) >= spec.vocab_size:
        raise ValueError(f"a token of document {document_id} is outside the vocabulary of {spec.vocab_size}")
    return ids


def shard_counts(languages: dict[str, dict[str, int]]) -> dict[str, Any]:
    """{documents, tokens (bos and eos included), bytes, units, languages: {lang: the same}}."""
    totals = {
        name: sum(language[name] for language in languages.values())
        for name in ("documents", "tokens", "bytes", "units")
    }
    return {**totals, "languages": dict(sorted(languages.items()))}


class DocumentColumns:
    """The columns of a shard's documents, in the order added."""

    def __init__(self) -> None:
        self.ends, self._bytes, self._units = array("Q"), array("Q"), array("Q")
        self._ids = bytearray()
        self._sources, self._langs = _Names(), _Names()

    def add(self, document: Document, end: int, tokens: int, languages: dict[str, dict[str, int]]) -> tuple[int, int]:
        """Note a document whose tokens end at `end`, and add it to `languages`. Returns bytes and units of its text;
        InputError for an id that is not 128 bits of hex."""
        try:
            identity = bytes.fromhex(document.id)
            if len(identity) != 16:
                raise ValueError
        except ValueError:
            raise InputError(
                f"document id {document.id!r} is not 32 hexadecimal digits",
                where=document.source,
                mend="make ids with headwater.core.documents.document_id",
            ) from None
        size, units = len(document.text.encode("utf-8", "surrogatepass")), count_units(document.text)
        self.ends.append(end)
        self._bytes.append(size)
        self._units.append(units)
        self._ids += identity
        self._sources.add(document.source)
        self._langs.add(document.lang)
        language = languages.setdefault(document.lang, {"documents": 0, "tokens": 0, "bytes": 0, "units": 0})
        for name, amount in (("documents", 1), ("tokens", tokens), ("bytes", size), ("units", units)):
            language[name] += amount
        return size, units

    def pack(self, first: bytes, *, split: str, domain: str) -> tuple[bytes, int]:
        """The footer, whose first column is given, and the length of the JSON at its end."""
        out = io.BytesIO()
        out.write(first)
        for numbers in (self.ends, self._bytes, self._units):
            out.write(np.frombuffer(numbers, dtype=np.uint64).astype("<u8").tobytes())
        out.write(self._ids)
        halves = np.frombuffer(bytes(self._ids), dtype=">u8").reshape(-1, 2)
        out.write(np.lexsort((halves[:, 1], halves[:, 0])).astype("<u4").tobytes())
        out.write(self._sources.column())
        out.write(self._langs.column())
        names = {"split": split, "domain": domain, "sources": self._sources.names, "langs": self._langs.names}
        text = canonical_json(names)
        out.write(text)
        return out.getvalue(), len(text)


class TokenShardWriter:
    """One shard; complete once the `with` block ends without an error (the caller syncs and renames)."""

    def __init__(self, path: Path, spec: ShardSpec, *, split: str, domain: str) -> None:
        self.path, self.spec, self.split, self.domain = path, spec, split, domain
        self.languages: dict[str, dict[str, int]] = {}
        self._dtype = np.dtype("<u2" if spec.dtype == "uint16" else "<u4")
        self._pending = bytearray()
        self._checksums, self._columns = array("Q"), DocumentColumns()
        self._tokens = 0
        self._file = open(path, "wb")  # noqa: SIM115 - closed by __exit__
        self._file.write(bytes(HEADER.size))

    def add(self, document: Document, tokens: Sequence[int]) -> None:
        """Append a document. InputError for an id that is not 128 bits of hex; ValueError for a token outside."""
        ids = packed_ids(self.spec, document.id, tokens)
        self._columns.add(document, self._tokens + len(ids), len(ids), self.languages)
        self._pending += ids.astype(self._dtype).tobytes()
        self._tokens += len(ids)
        while len(self._pending) >= BLOCK_BYTES:
            self._write_block(BLOCK_BYTES)

    @property
    def tokens(self) -> int:
        """Tokens so far, bos and eos included."""
        return self._tokens

    @property
    def counts(self) -> dict[str, Any]:
        """{documents, tokens (bos and eos included), bytes, units, languages: {lang: the same}}."""
        return shard_counts(self.languages)

    def _write_block(self, size: int) -> None:
        block = bytes(self._pending[:size])
        del self._pending[:size]
        self._checksums.append(xxhash.xxh3_64_intdigest(block))
        self._file.write(block)

    def close(self) -> None:
        """Write the last block, the footer and the header."""
        if self._pending:
            self._write_block(len(self._pending))
        offset = -(-self._file.tell() // 8) * 8  # columns of 8-byte numbers are mapped, so they must be aligned
        self._file.write(bytes(offset - self._file.tell()))
        checksums = np.frombuffer(self._checksums, dtype=np.uint64).astype("<u8").tobytes()
        footer, json_bytes = self._columns.pack(checksums, split=self.split, domain=self.domain)
        self._file.write(footer)
        header = Header(
            token_bytes=self._dtype.itemsize,
            vocab_size=self.spec.vocab_size,
            tokens=self._tokens,
            documents=len(self._columns.ends),
            footer_offset=offset,
            footer_bytes=len(footer),
            tokenizer_sha256=self.spec.tokenizer_sha256,
            eos_id=self.spec.eos_id,
            bos_id=self.spec.bos_id,
            footer_hash=xxhash.xxh3_64_intdigest(footer),
            json_bytes=json_bytes,
        )
        self._file.seek(0)
        self._file.write(header.pack())
        self._file.close()

    def __enter__(self) -> TokenShardWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self._file.close()


class _Names:
    """A column of repeated strings: 16-bit indices into the list of those seen, in order of first use."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._column = array("H")

    @property
    def names(self) -> list[str]:
        return list(self._numbers)

    def add(self, name: str) -> None:
        number = self._numbers.setdefault(name, len(self._numbers))
        if number > 0xFFFF:
            raise InputError(
                "a shard holds at most 65,536 different sources or languages",
                where=name,
                mend="make `source` the name of a collection, and keep file names in `url`",
            )
        self._column.append(number)

    def column(self) -> bytes:
        return np.frombuffer(self._column, dtype=np.uint16).astype("<u2").tobytes()
