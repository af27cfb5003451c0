"""Documents and the shards they live in.

A document is immutable text with where it came from. A *document shard* is one Parquet file with the columns
of `SCHEMA`, zstd level 3, row groups of at most `ROW_GROUP_DOCUMENTS` documents or `ROW_GROUP_BYTES` of text,
written in the order given, so the same documents give the same bytes.

    with DocumentWriter(path) as writer:
        writer.add(Document(id=document_id("web", "a.jsonl", 0), text="...", source="web", lang="en", domain="web"))
    for document in read_documents(path): ...
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

ROW_GROUP_DOCUMENTS = 4096
ROW_GROUP_BYTES = 8 << 20

SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("text", pa.large_string()),
        ("source", pa.string()),
        ("lang", pa.string()),
        ("domain", pa.string()),
        ("url", pa.string()),
        ("license", pa.string()),
        ("meta", pa.string()),  # JSON object, keys sorted
    ]
)

DOMAINS = ("web", "books", "code", "papers", "other")
"""The five domains of the mixture; a recipe may use other names too."""


def document_id(source: str, relative_path: str, position: int) -> str:
    """128-bit id, 32 hex digits: hash of source, path relative to the source's root, and position.

    `position` is the offset in the decompressed stream or the row number; both are stable when an earlier
    stage drops rows. The content plays no part: see `content_hash`.
    """
    key = b"\x00".join((source.encode(), relative_path.encode("utf-8", "surrogateescape"), str(position).encode()))
    return xxhash.xxh3_128_hexdigest(key)


def content_hash(text: str) -> str:
    """128-bit hash of the text's UTF-8 bytes, 32 hex digits."""
    return xxhash.xxh3_128_hexdigest(text.encode("utf-8", "surrogatepass"))


@dataclass(frozen=True, slots=True)
class Document:
    """One text and where it came from. `lang` is an ISO 639-1 code, a programming language, or "" if unknown."""

    id: str
    text: str
    source: str
    lang: str = ""
    domain: str = "other"
    url: str = ""
    license: str = ""
    meta: dict[str, Any] = field(default_factory=dict)


class DocumentWriter:
    """Writes one document shard; rows in the order added; the file is complete after `close`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.documents = 0
        self.text_bytes = 0
        self._rows: list[Document] = []
        self._pending_bytes = 0
        self._writer = pq.ParquetWriter(path, SCHEMA, compression="zstd", compression_level=3, version="2.6")

    def add(self, document: Document) -> None:
        size = len(document.text.encode("utf-8", "surrogatepass"))
        self._rows.append(document)
        self._pending_bytes += size
        self.documents += 1
        self.text_bytes += size
        if len(self._rows) >= ROW_GROUP_DOCUMENTS or self._pending_bytes >= ROW_GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        if not self._rows:
            return
        columns = {name: [getattr(row, name) for row in self._rows] for name in SCHEMA.names if name != "meta"}
        columns["meta"] = [orjson.dumps(row.meta, option=orjson.OPT_SORT_KEYS).decode() for row in self._rows]
        self._writer.write_table(pa.table(columns, schema=SCHEMA))
        self._rows.clear()
        self._pending_bytes = 0

    def close(self) -> None:
        """Flush the last rows and fsync the file."""
        self._flush()
        self._writer.close()
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def __enter__(self) -> DocumentWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self._writer.close()


def read_documents(path: Path) -> Iterator[Document]:
    """Stream a shard in order; memory is bounded by one row group."""
    file = pq.ParquetFile(path)
    for group in range(file.num_row_groups):
        for row in file.read_row_group(group).to_pylist():
            row["meta"] = orjson.loads(row["meta"])
            yield Document(**row)


def read_texts(path: Path, columns: tuple[str, ...] = ("id", "text")) -> Iterator[dict[str, Any]]:
    """Stream only some columns of a shard, as dictionaries."""
    file = pq.ParquetFile(path)
    for group in range(file.num_row_groups):
        yield from file.read_row_group(group, columns=list(columns)).to_pylist()
