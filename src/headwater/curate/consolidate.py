"""Last step of curation: apply the decisions once, and write the corpus, the list of what was removed, the report.

Output shards are ranges of each domain's documents in the stable order (source, path, position), cut by bytes of text
alone; each is one task, reads only the document shards its range touches, and writes up to three files, one a split.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from headwater.core.files import disk_errors
from headwater.core.shards import ShardFolder
from headwater.curate.attributes import (
    REMOVED,
    RowWriter,
    clean_name,
    decisions_name,
    final_name,
    hashes,
    read_rows,
    texts_name,
)
from headwater.curate.counts import Tally
from headwater.curate.place import GONE, STAYS
from headwater.curate.split import SPLITS, Limits, sides, split_numbers
from headwater.curate.texts import ChangedTexts, column_bytes
from headwater.curate.writing import TableWriter, text_column


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


def write_shard(task: WriteTask) -> dict[str, Any]:
    """Write the task's files, unless they are there. Returns `kept`: split|domain|lang -> documents, bytes, units."""
    done = placed_name(task)
    if (facts := task.out.done(done)) is not None:
        return facts
    kept = Tally()
    writers: dict[str, tuple[TableWriter, Path]] = {}
    try:
        for split, table, sizes, units in _tables(task):
            if split not in writers:
                temp = task.out.temp(_shard_name(split, task))
                with disk_errors(temp):
                    writers[split] = (TableWriter(temp), temp)
            writer, temp = writers[split]
            with disk_errors(temp):
                writer.add(table, sizes)
            langs, places = np.unique(np.array(table.column("lang").to_pylist(), object), return_inverse=True)
            for number, lang in enumerate(langs.tolist()):
                mine = places == number
                count = int(mine.sum())
                kept.add(
                    split,
                    task.domain,
                    lang,
                    documents=count,
                    bytes=int(sizes[mine].sum()),
                    units=int(units[mine].sum()),
                )
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


Rows = tuple[str, pa.Table, NDArray[np.int64], NDArray[np.int64]]


def _tables(task: WriteTask) -> Iterator[Rows]:
    """(split, documents, bytes, units) of the task's range, in order, some rows at a time."""
    for part in task.parts:
        final = np.load(task.out.dir / final_name(part.name), mmap_mode="r")
        table = pq.read_table(task.out.dir / clean_name(part.name), columns=["lang", "domain", "hash"])
        mine = pc.equal(table.column("domain"), task.domain).to_numpy() & (final["state"] != GONE)
        weight = np.where(mine, final["bytes"] + 1, 0)
        begins = part.before + np.cumsum(weight) - weight
        inside = mine & (final["state"] == STAYS) & (begins >= task.low) & (begins < task.high)
        chosen = np.flatnonzero(inside)
        if not chosen.size:
            continue
        split_of = sides(split_numbers(hashes(table.take(chosen)), task.seed), task.limits)
        langs = table.column("lang")
        changed = ChangedTexts(task.out.dir / texts_name(part.name))
        cuts = row_cuts(task.out.dir / decisions_name(part.name))
        for rows, raw in _take(part.documents, chosen):
            texts: list[bytes | memoryview] = []
            for row, text in zip(rows.tolist(), column_bytes(raw.column("text")), strict=True):
                edited = changed.get(row)
                found = text if edited is None else edited
                texts.append(without(found, cuts[row]) if row in cuts else found)
            sides_here = split_of[np.searchsorted(chosen, rows)]
            for number in np.unique(sides_here).tolist():
                picked = np.flatnonzero(sides_here == number)
                column, sizes = text_column([texts[index] for index in picked.tolist()])
                part_rows = raw.take(picked)
                for name, values in (("text", column), ("lang", langs.take(rows[picked]))):
                    part_rows = part_rows.set_column(part_rows.schema.get_field_index(name), name, values)
                yield SPLITS[number], part_rows, sizes, final["units"][rows[picked]]


def _take(path: Path, rows: NDArray[np.int64]) -> Iterator[tuple[NDArray[np.int64], pa.Table]]:
    """Some rows of a document shard, ascending; row groups without any are not read."""
    with pq.ParquetFile(path) as file:
        start = 0
        for group in range(file.num_row_groups):
            end = start + file.metadata.row_group(group).num_rows
            inside = rows[(rows >= start) & (rows < end)]
            if inside.size:
                yield inside, file.read_row_group(group).take(inside - start)
            start = end


def row_cuts(decisions: Path) -> dict[int, list[tuple[int, int]]]:
    """Row -> passages to take out of its text, in bytes, in order."""
    found: dict[int, list[tuple[int, int]]] = {}
    for row in read_rows(decisions, ["row", "action", "start", "end"]):
        if row["action"] == "cut":
            found.setdefault(row["row"], []).append((row["start"], row["end"]))
    return found


def without(text: bytes | memoryview, cuts: Sequence[tuple[int, int]]) -> bytes:
    """A text without some passages, which are given in order."""
    pieces, at = [], 0
    for start, end in cuts:
        pieces.append(bytes(text[at:start]))
        at = end
    return b"".join([*pieces, bytes(text[at:])])


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
                for row in removed_rows(out, shard):
                    values = {**row, "stage": row["rule"].partition(".")[0]}
                    writer.add(*(values[name] for name in REMOVED.names))
                    rows += 1
        out.finish(name, temp, documents=rows)
    finally:
        temp.unlink(missing_ok=True)


def removed_rows(out: ShardFolder, shard: str) -> Iterator[dict[str, Any]]:
    """What one shard lost, in order: row, id, action, rule, version, score, kept_id, spans, spans_total, detail."""
    later = read_rows(out.dir / decisions_name(shard))
    names = ["row", "id", "rule", "version", "score", "detail", "kept_id", "spans"]
    alone = ({**row, "action": "remove", "spans_total": len(row["spans"])} for row in _alone(out, shard, names))
    yield from heapq.merge(alone, later, key=lambda row: row["row"])


def _alone(out: ShardFolder, shard: str, names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Documents that went for what they are."""
    with pq.ParquetFile(out.dir / clean_name(shard)) as file:
        for group in range(file.num_row_groups):
            table = file.read_row_group(group, columns=list(names))
            yield from table.filter(pc.not_equal(table.column("rule"), "")).to_pylist()
