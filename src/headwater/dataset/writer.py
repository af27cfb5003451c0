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
from typing import Any

import numpy as np
import xxhash

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


class TokenShardWriter:
    """One shard; complete once the `with` block ends without an error (the caller syncs and renames)."""

    def __init__(self, path: Path, spec: ShardSpec, *, split: str, domain: str) -> None:
        self.path, self.spec, self.split, self.domain = path, spec, split, domain
        self.languages: dict[str, dict[str, int]] = {}
        self._dtype = np.dtype("<u2" if spec.dtype == "uint16" else "<u4")
        self._pending = bytearray()
        self._checksums, self._ends, self._bytes, self._units = array("Q"), array("Q"), array("Q"), array("Q")
        self._ids = bytearray()
        self._sources, self._langs = _Names(), _Names()
        self._tokens = 0
        self._file = open(path, "wb")  # noqa: SIM115 - closed by __exit__
        self._file.write(bytes(HEADER.size))

    def add(self, document: Document, tokens: Sequence[int]) -> None:
        """Append a document. InputError for an id that is not 128 bits of hex; ValueError for a token outside."""
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
        before = 0 if self.spec.bos_id is None else 1
        ids = np.empty(before + len(tokens) + 1, dtype=np.int64)
        ids[:before], ids[before:-1], ids[-1] = self.spec.bos_id or 0, tokens, self.spec.eos_id
        if int(ids.min()) < 0 or int(ids.max()) >= self.spec.vocab_size:
            raise ValueError(f"a token of document {document.id} is outside the vocabulary of {self.spec.vocab_size}")
        self._pending += ids.astype(self._dtype).tobytes()
        self._tokens += len(ids)
        size, units = len(document.text.encode("utf-8", "surrogatepass")), count_units(document.text)
        self._ends.append(self._tokens)
        self._bytes.append(size)
        self._units.append(units)
        self._ids += identity
        self._sources.add(document.source)
        self._langs.add(document.lang)
        language = self.languages.setdefault(document.lang, {"documents": 0, "tokens": 0, "bytes": 0, "units": 0})
        for name, amount in (("documents", 1), ("tokens", len(ids)), ("bytes", size), ("units", units)):
            language[name] += amount
        while len(self._pending) >= BLOCK_BYTES:
            self._write_block(BLOCK_BYTES)

    @property
    def tokens(self) -> int:
        """Tokens so far, bos and eos included."""
        return self._tokens

    @property
    def counts(self) -> dict[str, Any]:
        """{documents, tokens (bos and eos included), bytes, units, languages: {lang: the same}}."""
        totals = {
            name: sum(language[name] for language in self.languages.values())
            for name in ("documents", "tokens", "bytes", "units")
        }
        return {**totals, "languages": dict(sorted(self.languages.items()))}

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
        footer, json_bytes = self._footer()
        self._file.write(footer)
        header = Header(
            token_bytes=self._dtype.itemsize,
            vocab_size=self.spec.vocab_size,
            tokens=self._tokens,
            documents=len(self._ends),
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

    def _footer(self) -> tuple[bytes, int]:
        out = io.BytesIO()
        for numbers in (self._checksums, self._ends, self._bytes, self._units):
            out.write(np.frombuffer(numbers, dtype=np.uint64).astype("<u8").tobytes())
        out.write(self._ids)
        halves = np.frombuffer(bytes(self._ids), dtype=">u8").reshape(-1, 2)
        out.write(np.lexsort((halves[:, 1], halves[:, 0])).astype("<u4").tobytes())
        out.write(self._sources.column())
        out.write(self._langs.column())
        names = {
            "split": self.split,
            "domain": self.domain,
            "sources": self._sources.names,
            "langs": self._langs.names,
        }
        text = canonical_json(names)
        out.write(text)
        return out.getvalue(), len(text)

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
