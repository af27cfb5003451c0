"""Decontamination of files: rows that hold a benchmark's question go, and name the item.

report = decontaminate_files([Path("web.jsonl.zst")], Path("out"), benchmarks=[Path("gsm8k_test.jsonl")])
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from headwater.core.artifacts import fingerprint
from headwater.core.errors import InputError
from headwater.core.progress import SILENT, Reporter
from headwater.curate.dedup.benchmark_files import benchmark_files, benchmark_rows
from headwater.curate.dedup.benchmarks import BenchmarkIndex, Item, question_of, require_items
from headwater.curate.dedup.files import BATCH_BYTES, BATCH_ROWS, LISTED_BAD, refuse_overwriting
from headwater.curate.dedup.rows import (
    KEPT,
    REMOVED,
    Fields,
    Row,
    RowSource,
    RowWriter,
    empty_files,
    find_files,
    row_counts,
)
from headwater.curate.dedup.settings import VERSION, DecontaminateSettings
from headwater.curate.dedup.workplace import begun, workplace
from headwater.curate.results import commit, contents, finished, write_report

LISTED_ITEMS = 32
_ID_FIELDS = ("id", "task_id", "example_id", "question_id", "ind")


def read_items(files: Sequence[Path], settings: DecontaminateSettings) -> tuple[list[Item], dict[str, int]]:
    """Questions of benchmark files, and how many rows had none; an item is named FILE:ID, or FILE:#LINE without an id.

    Raises InputError for a file in which no row has a question.
    """
    items: list[Item] = []
    lacking: dict[str, int] = {}
    for path in files:
        before = len(items)
        for number, row in benchmark_rows(path, settings.fields):
            question = question_of(row, settings.fields)
            if question is None:
                lacking[str(path)] = lacking.get(str(path), 0) + 1
                continue
            known = next((row[name] for name in _ID_FIELDS if isinstance(row.get(name), str | int)), None)
            items.append(Item(f"{path.name}:{known if known is not None else f'#{number}'}", question))
        if len(items) == before:
            raise InputError(
                "no row of this benchmark has a question",
                where=str(path),
                mend="name the field that holds it (--field)",
            )
    return items, lacking


def decontaminate_files(
    inputs: Sequence[Path | str],
    out: Path | str,
    *,
    benchmarks: Sequence[Path | str],
    settings: DecontaminateSettings | None = None,
    reporter: Reporter = SILENT,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Remove rows that hold questions of `benchmarks`; writes as `dedup_files` does and returns the report.

    Memory: about 50 bytes for each n-gram of the benchmarks, and one batch of the corpus.
    """
    settings, out = settings or DecontaminateSettings(), Path(out)
    files = find_files([Path(path) for path in inputs])
    asked = benchmark_files([Path(path) for path in benchmarks])
    refuse_overwriting([*files, *asked], out)
    made_from = contents([*files, *asked])
    said = {"settings": settings.to_json(), "inputs": [*map(str, files)], "benchmarks": [*map(str, asked)]}
    key = fingerprint("decontaminate", VERSION, said, made_from)
    if (report := finished(out, key, overwrite=overwrite, begun=begun(out, key))) is not None:
        return report
    items, lacking = read_items(asked, settings)
    index = BenchmarkIndex(items, settings)
    require_items(index, [str(path) for path in asked])
    counts = {"documents": 0, "kept": 0, "removed": 0}
    bytes_ = {"documents": 0, "kept": 0}
    found: dict[str, int] = {}
    sources = [RowSource(path, Fields(settings.text_field, settings.id_field)) for path in files]
    with (
        workplace(out, key) as place,
        RowWriter(out / KEPT, place) as kept,
        RowWriter(out / REMOVED, place) as removed,
    ):
        with reporter.progress("look for questions", unit="rows") as bar:
            for source in sources:
                for rows in _batches(source):
                    marked = set(_scan(index, rows).tolist())
                    for number, row in enumerate(rows):
                        evidence = _evidence(index, source, row) if number in marked else None
                        counts["documents"] += 1
                        bytes_["documents"] += len(row.text)
                        if evidence is None:
                            counts["kept"] += 1
                            bytes_["kept"] += len(row.text)
                            kept.write(row.data)
                            continue
                        counts["removed"] += 1
                        name = evidence["kept_id"].partition(":")[0]
                        found[name] = found.get(name, 0) + 1
                        removed.write_object(evidence)
                    bar.advance(len(rows))
        bad = [row for source in sources for row in source.bad]
        report = {
            "verb": "decontaminate",
            "version": VERSION,
            **said,
            "contents": made_from,
            "items": {
                "indexed": len(index.items),
                "too_short": len(index.too_short),
                "without_question": sum(lacking.values()),
            },
            "rows": {**row_counts(sources), **counts},
            "bytes": bytes_,
            "removed_by_benchmark": dict(sorted(found.items())),
            "empty_files": empty_files(sources),
            "unusable_examples": [
                {"file": row.file, "line": row.line, "reason": row.reason, "detail": row.detail}
                for row in bad[:LISTED_BAD]
            ],
        }
        commit(kept, removed, bad, out)
    return write_report(out, key, report)


def _batches(source: RowSource) -> Iterator[list[Row]]:
    rows: list[Row] = []
    size = 0
    for row in source.rows():
        rows.append(row)
        size += len(row.data)
        if size >= BATCH_BYTES or len(rows) >= BATCH_ROWS:
            yield rows
            rows, size = [], 0
    if rows:
        yield rows


def _scan(index: BenchmarkIndex, rows: Sequence[Row]) -> Any:
    offsets = np.zeros(len(rows) + 1, np.int64)
    np.cumsum([len(row.text) for row in rows], out=offsets[1:])
    data = np.frombuffer(bytearray(b"".join([row.text for row in rows])), np.uint8)
    return index.scan(data, offsets)


def _evidence(index: BenchmarkIndex, source: RowSource, row: Row) -> dict[str, Any] | None:
    """The row of removed.jsonl, or None if the document holds no item after all."""
    matches = index.find(row.text.decode("utf-8", "surrogatepass"))
    if not matches:
        return None
    best = matches[0]
    return {
        "id": row.id,
        "action": "remove",
        "rule": "decontaminate",
        "version": VERSION,
        "score": best.score,
        "kept_id": best.item.name,
        "kept_in": "benchmarks",
        "spans": [list(best.span)],
        "items": [
            {"item": match.item.name, "score": match.score, "span": list(match.span)}
            for match in matches[:LISTED_ITEMS]
        ],
        "items_total": len(matches),
        "file": str(source.path),
        "line": row.line,
    }
