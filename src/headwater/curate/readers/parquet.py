"""Parquet: one document a row, streamed; a broken row group costs its rows and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson

from headwater.curate.config import SourceConfig
from headwater.curate.readers.jsonl import RowError, row_record
from headwater.curate.records import Bad, Item, Reason
from headwater.curate.sources import SourceFile

BATCH_ROWS = 256


def read_parquet(file: SourceFile, source: SourceConfig) -> Iterator[Item]:
    """Rows of a file, or of the slice of it from row `start` to `end`, whole row groups. `Record.position` and
    `Bad.offset` are row numbers in the file, from 0."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.ParquetFile(file.path, pre_buffer=False, buffer_size=1 << 20)
    except (pa.ArrowException, OSError, ValueError) as error:
        yield Bad(Reason.CORRUPT, f"{error}", records=0)
        return
    with table:
        names = set(table.schema_arrow.names)
        columns = [name for name in table.schema_arrow.names if source.keep_rows or name in _wanted(source)]
        total = file.end - file.start if file.end else table.metadata.num_rows
        if source.text_field not in names:
            have = ", ".join(table.schema_arrow.names[:8])
            yield Bad(Reason.MISSING_FIELD, f"no column {source.text_field!r}; it has {have}", records=total)
            return
        if not total:
            yield Bad(Reason.EMPTY_FILE, "no rows", records=0)
        row = 0
        for group in range(table.num_row_groups):
            end = row + table.metadata.row_group(group).num_rows
            if file.end and not file.start <= row < file.end:
                row = end
                continue
            try:
                for batch in table.iter_batches(BATCH_ROWS, row_groups=[group], columns=columns):
                    for values in _rows(batch):
                        yield _item(values, source, row)
                        row += 1
            except (pa.ArrowException, OSError) as error:
                yield Bad(Reason.CORRUPT, f"row group {group}: {error}", row, records=end - row)
            row = end


def _wanted(source: SourceConfig) -> set[str]:
    return {
        source.text_field,
        source.id_field,
        source.domain_field,
        source.lang_field,
        source.license_field,
        source.url_field,
        source.source_field,
    }


def _rows(batch: Any) -> Iterator[dict[str, Any]]:
    try:
        yield from batch.to_pylist()
    except UnicodeDecodeError:  # a string column with bytes that are no UTF-8: find the rows
        for number in range(batch.num_rows):
            yield {name: _value(batch.column(name), number) for name in batch.schema.names}


def _value(column: Any, number: int) -> Any:
    try:
        return column[number].as_py()
    except UnicodeDecodeError:
        return column.cast("large_binary" if "large" in str(column.type) else "binary")[number].as_py()


def _item(values: dict[str, Any], source: SourceConfig, row: int) -> Item:
    text = values[source.text_field]
    if isinstance(text, bytes):
        try:
            values[source.text_field] = text = text.decode()
        except UnicodeDecodeError as error:
            return Bad(Reason.BAD_UTF8, f"byte 0x{text[error.start]:02x} at {error.start}", row, raw_bytes=len(text))
    size = len(text.encode("utf-8", "surrogatepass")) if isinstance(text, str) else 0
    if size > source.max_document_bytes:
        limit = f"{size:,} bytes, over max_document_bytes {source.max_document_bytes:,}"
        return Bad(Reason.TOO_LARGE, limit, row, raw_bytes=size)
    try:
        record = row_record(values, source, row, size)
    except RowError as error:
        return Bad(error.reason, error.detail, row, raw_bytes=size)
    if source.keep_rows:
        record.meta["row"] = orjson.dumps(values, default=_plain, option=orjson.OPT_NON_STR_KEYS).decode()
    return record


def _plain(value: Any) -> Any:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
