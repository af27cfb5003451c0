"""Writes token shards as TFRecord files, which `tfrecord_shard.py` reads as directly as `.tokens`.

with TfrecordWriter(path, spec, split="train", domain="web") as writer: writer.add(document, token_ids)
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import xxhash

from headwater.core.documents import Document
from headwater.core.tfrecord import frame
from headwater.dataset.shard_format import HEADER, Header
from headwater.dataset.tfrecord_format import DOCUMENTS_SUFFIX, INDEX_SUFFIX, SUFFIX, example
from headwater.dataset.writer import DocumentColumns, ShardSpec, packed_ids, shard_counts


def companions(name: str) -> tuple[str, ...]:
    """Names of the files that belong to a shard beside itself; none for `.tokens`."""
    return (name + INDEX_SUFFIX, name + DOCUMENTS_SUFFIX) if name.endswith(SUFFIX) else ()


class TfrecordWriter:
    """One shard and its two companions, with the interface of `TokenShardWriter`."""

    def __init__(self, path: Path, spec: ShardSpec, *, split: str, domain: str) -> None:
        self.path, self.spec, self.split, self.domain = path, spec, split, domain
        self.languages: dict[str, dict[str, int]] = {}
        self.tokens = 0
        self._dtype = np.dtype("<u2" if spec.dtype == "uint16" else "<u4")
        self._columns = DocumentColumns()
        self._offsets, self._position = array("Q"), 0
        self._file = open(path, "wb")  # noqa: SIM115 - closed by __exit__
        self._index = open(f"{path}{INDEX_SUFFIX}", "w", encoding="ascii")  # noqa: SIM115

    def add(self, document: Document, tokens: Sequence[int]) -> None:
        """Append a document. Raises as `TokenShardWriter.add`."""
        ids = packed_ids(self.spec, document.id, tokens)
        self.tokens += len(ids)
        size, units = self._columns.add(document, self.tokens, len(ids), self.languages)
        record = frame(
            example(
                id=document.id,
                lang=document.lang,
                source=document.source,
                bytes_=size,
                units=units,
                dtype=self.spec.dtype,
                tokens=ids.astype(self._dtype).tobytes(),
            )
        )
        self._file.write(record)
        self._index.write(f"{self._position} {len(record)}\n")
        self._offsets.append(self._position)
        self._position += len(record)

    @property
    def counts(self) -> dict[str, Any]:
        """As `TokenShardWriter.counts`."""
        return shard_counts(self.languages)

    def close(self) -> None:
        """Write the companions."""
        self._file.close()
        self._index.close()
        offsets = np.frombuffer(self._offsets, dtype=np.uint64).astype("<u8").tobytes()
        footer, json_bytes = self._columns.pack(offsets, split=self.split, domain=self.domain)
        header = Header(
            token_bytes=self._dtype.itemsize,
            vocab_size=self.spec.vocab_size,
            tokens=self.tokens,
            documents=len(self._offsets),
            footer_offset=HEADER.size,
            footer_bytes=len(footer),
            tokenizer_sha256=self.spec.tokenizer_sha256,
            eos_id=self.spec.eos_id,
            bos_id=self.spec.bos_id,
            footer_hash=xxhash.xxh3_64_intdigest(footer),
            json_bytes=json_bytes,
        )
        Path(f"{self.path}{DOCUMENTS_SUFFIX}").write_bytes(header.pack() + footer)

    def __enter__(self) -> TfrecordWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self._file.close()
            self._index.close()
