"""How Headwater writes Parquet that it reads again: one set of options, so that equal rows are equal bytes everywhere.

In: a path, a schema, the columns whose values repeat. Out: pyarrow's writer, whose row groups are the caller's.

    with parquet_writer(path, schema, dictionaries=["lang"]) as writer: writer.write_table(table)
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq


def parquet_writer(
    path: Path, schema: pa.Schema, *, dictionaries: Sequence[str], checksums: bool = False
) -> pq.ParquetWriter:
    """`dictionaries`: columns of few different values. Those of texts, and statistics, are of no use, and cost much.
    `checksums`: of pages, for files that are kept as they are for good."""
    import pyarrow.parquet as pq

    return pq.ParquetWriter(
        path, schema, compression="zstd", compression_level=1, version="2.6", write_page_checksum=checksums,
        use_dictionary=list(dictionaries), write_statistics=False,
    )  # fmt: skip
