"""Benchmarks in the formats they are published in: JSON Lines, Parquet, JSON trees, CSV and TSV.

In: a file. Out: rows, each with the number of its line or object. A JSON tree (SQuAD, CMRC, C3) gives every object in
it, at whatever depth, that holds a question; CSV without a header (MMLU) has its question in the first column.

    for number, row in benchmark_rows(Path("dev-v1.1.json"), fields=()): row["question"]
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import orjson

from headwater.core.errors import InputError
from headwater.curate.dedup.benchmarks import QUESTION_FIELDS, question_of
from headwater.curate.dedup.rows import Fields, RowSource, find_files
from headwater.curate.streams import RawStream

TREES, TABLES = (".json", ".json.gz", ".json.zst"), (".csv", ".tsv", ".csv.gz", ".tsv.gz", ".csv.zst", ".tsv.zst")
_LARGEST_TREE = 1 << 30


def benchmark_files(paths: Sequence[Path]) -> list[Path]:
    """Files named, and those below folders in any of the formats, sorted. Raises InputError as `find_files`."""
    found: list[Path] = []
    for path in map(Path, paths):
        if not path.is_dir():
            found += find_files([path])
            continue
        more = sorted(file for file in path.rglob("*") if file.name.endswith((*TREES, *TABLES)) and file.is_file())
        found += more
        try:
            found += find_files([path])
        except InputError:
            if not more:
                raise
    return sorted(dict.fromkeys(found)) if any(Path(path).is_dir() for path in paths) else list(dict.fromkeys(found))


def benchmark_rows(path: Path, fields: Sequence[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    """(number, row) of a benchmark. Raises InputError for a file that is not what its name says."""
    name = path.name.lower()
    if name.endswith(TABLES):
        yield from _table(path, "\t" if ".tsv" in name else ",", fields)
    elif name.endswith(TREES) and (tree := _tree(path)) is not None:
        yield from enumerate((node for node in _nodes(tree) if question_of(node, fields) is not None), start=1)
    else:
        for row in RowSource(path, Fields(), text_needed=False).rows():
            yield row.line, row.value


def _bytes(path: Path) -> bytes:
    stream = RawStream(path)
    try:
        pieces: list[bytes] = []
        for chunk in stream.chunks():
            pieces.append(chunk)
            if stream.total > _LARGEST_TREE:
                raise InputError("a benchmark of more than 1 GiB", where=str(path), mend="turn it into JSON Lines")
    except OSError as error:
        raise InputError(f"cannot read: {error.strerror or error}", where=str(path)) from error
    if stream.damage:
        raise InputError(f"damaged: {stream.damage.detail}", where=str(path), mend="fetch the benchmark again")
    return b"".join(pieces)


def _tree(path: Path) -> Any:
    """The content of a JSON file; None if it is JSON Lines under another name."""
    try:
        return orjson.loads(_bytes(path))
    except orjson.JSONDecodeError:
        return None


def _nodes(value: Any) -> Iterator[dict[str, Any]]:
    """Every object in a JSON value, outer ones first."""
    waiting = [value]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            yield node
            waiting.extend(reversed(list(node.values())))
        elif isinstance(node, list):
            waiting.extend(reversed(node))


def _table(path: Path, separator: str, fields: Sequence[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    try:
        text = _bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"not UTF-8: {error.reason}", where=str(path), mend="save it as UTF-8") from error
    csv.field_size_limit(1 << 27)
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=separator)
    first = next(rows, None)
    if first is None:
        return
    names = [name.strip().lower() for name in first]
    header = bool(set(names) & {name.lower() for name in (*QUESTION_FIELDS, *fields)})
    if not header:
        if fields:
            raise InputError(
                f"no column {fields[0]!r}", where=str(path), mend=f"the first line has {', '.join(first[:6])}"
            )
        yield 1, {"question": first[0]}
    for number, row in enumerate(rows, start=2):
        if row:
            yield number, dict(zip(names, row, strict=False)) if header else {"question": row[0]}
