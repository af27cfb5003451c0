"""What curation decided about each document, in files beside the documents, which stay as they are.

`attributes/clean/SHARD.parquet` has one row a document of the shard, in order; `attributes/corpus/SHARD.parquet` one
row for each document or passage that goes because of another, in order. Working files that only a resumed or later step
needs are under `work/` and go before the commit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from headwater.core.parquet import parquet_writer

CLEAN = pa.schema(
    [
        ("row", pa.uint32()),  # in the document shard
        ("id", pa.string()),
        ("rule", pa.string()),  # that dropped it, or ""
        ("version", pa.uint16()),  # of the rule
        ("score", pa.float64()),  # what the rule compared; fixed decimals
        ("detail", pa.string()),
        ("kept_id", pa.string()),  # the benchmark's question it holds, or ""
        ("spans", pa.list_(pa.list_(pa.int64()))),  # [start, end] of it, in characters
        ("lang", pa.string()),  # found, not claimed
        ("lang_share", pa.float64()),
        ("domain", pa.string()),
        ("bytes_in", pa.int64()),
        ("units_in", pa.int64()),
        ("bytes_out", pa.int64()),  # of the cleaned text; 0 if dropped
        ("units_out", pa.int64()),
        ("hash", pa.binary(16)),  # XXH3-128 of the cleaned text; zeros if dropped
    ]
)

_EVIDENCE = [
    ("rule", pa.string()),
    ("version", pa.uint16()),
    ("score", pa.float64()),
    ("kept_id", pa.string()),  # the document it is a duplicate of, or the question it holds; "" if there is none
    ("spans", pa.list_(pa.list_(pa.int64()))),  # [start, end, start in kept, end in kept] in characters; the first ones
    ("spans_total", pa.uint32()),
    ("detail", pa.string()),
]

DECISIONS = pa.schema(
    [
        ("row", pa.uint32()),
        ("id", pa.string()),
        ("action", pa.string()),  # remove, cut (a passage) or report (a passage that is not cut)
        *_EVIDENCE,
        ("start", pa.int64()),  # of a passage, in bytes of the cleaned text
        ("end", pa.int64()),
    ]
)

REMOVED = pa.schema([("id", pa.string()), ("stage", pa.string()), ("action", pa.string()), *_EVIDENCE])

TEXTS = pa.schema([("row", pa.uint32()), ("text", pa.large_string())])
ROW_GROUP, ROW_GROUP_BYTES = 4096, 8 << 20


def clean_name(shard: str) -> str:
    return f"attributes/clean/{shard}.parquet"


def decisions_name(shard: str) -> str:
    return f"attributes/corpus/{shard}.parquet"


def final_name(shard: str) -> str:
    """What is left of each row of a shard: see `place.FINAL`."""
    return f"work/final/{shard}.npy"


def texts_name(shard: str) -> str:
    """Cleaned texts of the rows that cleaning changed."""
    return f"work/texts/{shard}.parquet"


class RowWriter:
    """Writes dictionaries as Parquet rows, in groups of bounded size."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self._schema = schema
        short = [field.name for field in schema if field.type != pa.large_string()]
        self._writer = parquet_writer(path, schema, dictionaries=short)
        self._rows: list[tuple[Any, ...]] = []
        self._size = 0

    def add(self, *values: Any, size: int = 0) -> None:
        """One row, values in the order of the schema; `size` its bytes, where they matter."""
        self._rows.append(values)
        self._size += size
        if len(self._rows) >= ROW_GROUP or self._size >= ROW_GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._rows:
            columns = [list(column) for column in zip(*self._rows, strict=True)]
            self._writer.write_table(pa.table(columns, schema=self._schema))
            self._rows.clear()
            self._size = 0

    def close(self) -> None:
        self._flush()
        self._writer.close()

    def __enter__(self) -> RowWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        if kind is None:
            self.close()
        else:
            self._writer.close()


def read_rows(path: Path, columns: Sequence[str] | None = None) -> Iterator[dict[str, Any]]:
    """Rows of a Parquet file as dictionaries, one row group in memory."""
    with pq.ParquetFile(path) as file:
        for group in range(file.num_row_groups):
            yield from file.read_row_group(group, columns=columns and list(columns)).to_pylist()


def column(table: pa.Table, name: str) -> NDArray[Any]:
    """A numeric column as a numpy array [rows]."""
    return table.column(name).to_numpy()


def hashes(table: pa.Table) -> NDArray[np.uint64]:
    """The `hash` column as big-endian halves, uint64 [rows, 2]."""
    joined = table.column("hash").combine_chunks()
    data = joined.chunk(0) if isinstance(joined, pa.ChunkedArray) and joined.num_chunks else joined
    if len(data) == 0:
        return np.zeros((0, 2), np.uint64)
    values = np.frombuffer(data.buffers()[1], ">u8", count=2 * len(data), offset=16 * data.offset)
    return values.reshape(-1, 2).astype(np.uint64)
