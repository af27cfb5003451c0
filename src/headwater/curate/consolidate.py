"""Last step of curation: apply the decisions once, and write the corpus, the list of what was removed, the report.

Output shards are ranges of each domain's documents in the stable order (source, path, position), cut by bytes of text
alone; each is one task, reads only the document shards its range touches, and writes up to three files, one a split.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from headwater.core.documents import Document, DocumentWriter
from headwater.core.files import disk_errors
from headwater.core.shards import ShardFolder
from headwater.curate.attributes import (
    REMOVED,
    RowWriter,
    Texts,
    clean_name,
    column,
    exact_name,
    hashes,
    read_rows,
    texts_name,
)
from headwater.curate.counts import Tally
from headwater.curate.place import surviving
from headwater.curate.split import SPLITS, Limits, sides, split_numbers


@dataclass(frozen=True, slots=True)
class ShardPart:
    """A document shard that an output shard draws on; `before` is the weight of the domain's documents before it."""

    name: str
    documents: Path
    before: int


@dataclass(frozen=True, slots=True)
class WriteTask:
    """One output shard: the documents of a domain whose weight begins in [`low`, `high`).

    A document weighs its bytes plus one, so that empty texts have a place too.
    """

    domain: str
    number: int
    low: int
    high: int
    parts: tuple[ShardPart, ...]
    limits: Limits
    seed: int
    out: ShardFolder


def placed_name(task: WriteTask) -> str:
    """A file that says the task is done, and with which counts."""
    return f"work/placed/{task.domain}-{task.number:05d}.json"


def weights(table: pa.Table) -> NDArray[np.int64]:
    """Weight of each document, int64 [rows]."""
    return column(table, "bytes_out") + 1


def write_shard(task: WriteTask) -> dict[str, Any]:
    """Write the task's files, unless they are there. Returns `kept`: split|domain|lang -> documents, bytes, units."""
    done = placed_name(task)
    if (facts := task.out.done(done)) is not None:
        return facts
    kept = Tally()
    writers: dict[str, tuple[DocumentWriter, Path]] = {}
    try:
        for split, document, size, units in _documents(task):
            if split not in writers:
                temp = task.out.temp(_shard_name(split, task))
                with disk_errors(temp):
                    writers[split] = (DocumentWriter(temp), temp)
            writer, temp = writers[split]
            with disk_errors(temp):
                writer.add(document)
            kept.add(split, document.domain, document.lang, bytes=size, units=units)
        for split, (writer, temp) in writers.items():
            with disk_errors(temp):
                writer.close()
            counts = {"documents": writer.documents, "text_bytes": writer.text_bytes}
            task.out.finish(_shard_name(split, task), temp, **counts)
        return task.out.write(done, b"", kept=kept.rows)
    finally:
        for _, temp in writers.values():
            temp.unlink(missing_ok=True)


def _shard_name(split: str, task: WriteTask) -> str:
    return f"corpus/{split}/{task.domain}-{task.number:05d}.parquet"


def _documents(task: WriteTask) -> Iterator[tuple[str, Document, int, int]]:
    """(split, document, bytes, units) of the task's range, in order."""
    columns = ["lang", "domain", "bytes_out", "units_out", "hash"]
    for part in task.parts:
        attributes, exact = (Path(task.out.dir, name) for name in (clean_name(part.name), exact_name(part.name)))
        table, stays = surviving(attributes, exact, columns)
        stays &= np.array(table.column("domain").to_pylist(), object) == task.domain
        weight = np.where(stays, weights(table), 0)
        begins = part.before + np.cumsum(weight) - weight
        chosen = np.flatnonzero(stays & (begins >= task.low) & (begins < task.high))
        if not len(chosen):
            continue
        table = table.take(chosen)
        split_of = sides(split_numbers(hashes(table), task.seed), task.limits)
        langs, sizes, units = (table.column(name).to_pylist() for name in ("lang", "bytes_out", "units_out"))
        texts = Texts(Path(task.out.dir, texts_name(part.name)))
        for place, (row, raw) in enumerate(zip(chosen.tolist(), _take(part.documents, chosen), strict=True)):
            raw["text"] = texts.get(row, raw["text"])
            raw["lang"] = langs[place]
            raw["meta"] = orjson.loads(raw["meta"])
            yield SPLITS[split_of[place]], Document(**raw), sizes[place], units[place]


def _take(path: Path, rows: NDArray[np.int64]) -> Iterator[dict[str, Any]]:
    """Some rows of a document shard, ascending; row groups without any are not read."""
    with pq.ParquetFile(path) as file:
        start = 0
        for group in range(file.num_row_groups):
            end = start + file.metadata.row_group(group).num_rows
            inside = rows[(rows >= start) & (rows < end)] - start
            if len(inside):
                yield from file.read_row_group(group).take(inside).to_pylist()
            start = end


def plan_output(
    shards: Sequence[tuple[str, Path, dict[str, int]]],
    shard_bytes: int,
    limits_of: dict[str, Limits],
    seed: int,
    out: ShardFolder,
) -> list[WriteTask]:
    """Output shards of all domains. `shards` gives name, path and weight by domain of each document shard, in order."""
    tasks = []
    for domain in sorted(limits_of):
        parts, total = [], 0
        for name, path, weight_of in shards:
            if weight_of.get(domain):
                parts.append((ShardPart(name, path, total), weight_of[domain]))
                total += weight_of[domain]
        count = max(1, -(-total // shard_bytes))
        for number in range(count):
            low, high = number * total // count, (number + 1) * total // count
            touched = tuple(part for part, weight in parts if part.before < high and part.before + weight > low)
            tasks.append(WriteTask(domain, number, low, high, touched, limits_of[domain], seed, out))
    return tasks


def write_removed(out: ShardFolder, shards: Iterable[str]) -> None:
    """Write `removed.parquet`: each removed document once, in order, with the rule that took it."""
    name = "removed.parquet"
    if out.done(name) is not None:
        return
    temp = out.temp(name)
    rows = 0
    try:
        with disk_errors(temp), RowWriter(temp, REMOVED) as writer:
            for shard in shards:
                for row in removed_rows(Path(out.dir, clean_name(shard)), Path(out.dir, exact_name(shard))):
                    values = {**row, "stage": row["rule"].partition(".")[0]}
                    writer.add(*(values[name] for name in REMOVED.names))
                    rows += 1
        out.finish(name, temp, documents=rows)
    finally:
        temp.unlink(missing_ok=True)


def removed_rows(attributes: Path, exact: Path) -> Iterator[dict[str, Any]]:
    """Removed documents of one shard in order: row, id, rule, version, score, kept_id, detail."""
    duplicates = read_rows(exact)
    duplicate = next(duplicates, None)
    for row in read_rows(attributes, ["row", "id", "rule", "version", "score", "detail"]):
        if row["rule"]:
            yield {**row, "kept_id": ""}
        elif duplicate is not None and duplicate["row"] == row["row"]:
            yield {**duplicate, "detail": "same cleaned text"}
            duplicate = next(duplicates, None)
