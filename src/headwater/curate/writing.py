"""Writes document shards from Arrow tables: the same files as `core.documents.DocumentWriter`, without a Python object
for each document.

    writer = TableWriter(path); writer.add(table, sizes); writer.close()
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headwater.core.documents import ROW_GROUP_BYTES, ROW_GROUP_DOCUMENTS, SCHEMA, shard_writer


def text_column(texts: Sequence[bytes | memoryview]) -> tuple[pa.Array, NDArray[np.int64]]:
    """UTF-8 texts as a large_string array, and the size of each in bytes."""
    sizes = np.fromiter(map(len, texts), np.int64, len(texts))
    offsets = np.zeros(sizes.size + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    buffers = [None, pa.py_buffer(offsets.tobytes()), pa.py_buffer(b"".join(texts))]
    return pa.Array.from_buffers(pa.large_string(), sizes.size, buffers), sizes


class TableWriter:
    """One document shard; rows in the order added, in row groups cut after the document that fills one."""

    def __init__(self, path: Path) -> None:
        self.documents = 0
        self.text_bytes = 0
        self._tables: list[pa.Table] = []
        self._sizes = np.empty(0, np.int64)
        self._writer = shard_writer(path)

    def add(self, table: pa.Table, sizes: NDArray[np.int64]) -> None:
        """Rows with the columns of SCHEMA and the bytes of their texts."""
        self.documents += len(sizes)
        self.text_bytes += int(sizes.sum())
        self._tables.append(table.select(SCHEMA.names).cast(SCHEMA))
        self._sizes = np.concatenate([self._sizes, sizes])
        while True:
            full = int(np.searchsorted(np.cumsum(self._sizes), ROW_GROUP_BYTES)) + 1
            full = min(full, ROW_GROUP_DOCUMENTS)
            if full > self._sizes.size:
                return
            self._flush(full)

    def _flush(self, rows: int) -> None:
        table = pa.concat_tables(self._tables)
        self._writer.write_table(table.slice(0, rows).combine_chunks())
        rest = table.slice(rows)
        self._tables = [rest] if rest.num_rows else []
        self._sizes = self._sizes[rows:]

    def close(self) -> None:
        """Write the last rows."""
        if self._sizes.size:
            self._flush(self._sizes.size)
        self._writer.close()
