"""Second step of curation, shard by shard: which documents stay after deduplication, and what they amount to.

In: a shard's decisions and the duplicates found over all shards. Out: `attributes/exact`, and the sums that the split
and the output shards are planned from.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from headwater.core.shards import ShardFolder
from headwater.curate.attributes import EXACT, RowWriter, clean_name, column, exact_name, hashes
from headwater.curate.config import SplitConfig
from headwater.curate.counts import Tally
from headwater.curate.exact import RULE, VERSION, duplicates_of
from headwater.curate.split import split_numbers


@dataclass(frozen=True, slots=True)
class PlaceTask:
    """One shard, its place in the stable order, and the number of partitions duplicates were found in (0: none)."""

    name: str
    ordinal: int
    partitions: int
    split: SplitConfig
    out: ShardFolder


def place_shard(task: PlaceTask) -> dict[str, Any]:
    """Settle a shard's duplicates, unless that was done. Returns the facts of `attributes/exact`: tallies `dropped`
    (rule|lang|domain, as they came in), `kept_in` and `kept_out` (lang|domain, before and after cleaning), and by
    domain the `lowest` and `highest` split numbers."""
    name = exact_name(task.name)
    if (facts := task.out.done(name)) is not None:
        return facts
    table = pq.read_table(Path(task.out.dir, clean_name(task.name)))
    ids = table.column("id").to_pylist()
    kept_ids = duplicates_of(task.out, task.name, task.ordinal, task.partitions, ids) if task.partitions else {}
    stays = _stays(table, np.fromiter(kept_ids, np.int64, len(kept_ids)))
    temp = task.out.temp(name)
    try:
        with RowWriter(temp, EXACT) as writer:
            for row in sorted(kept_ids):
                writer.add(row, ids[row], RULE, VERSION, 1.0, kept_ids[row])
        return task.out.finish(name, temp, **_facts(table, stays, kept_ids, task.split))
    finally:
        temp.unlink(missing_ok=True)


def _stays(table: pa.Table, duplicates: NDArray[np.int64]) -> NDArray[np.bool_]:
    stays = column(table, "version") == 0
    stays[duplicates] = False
    return stays


def surviving(attributes: Path, exact: Path, columns: list[str]) -> tuple[pa.Table, NDArray[np.bool_]]:
    """Decisions of a shard (some columns of them) and which of its rows stay, bool [rows]."""
    table = pq.read_table(attributes, columns=[*columns, "version"])
    return table, _stays(table, column(pq.read_table(exact, columns=["row"]), "row").astype(np.int64))


def _facts(table: pa.Table, stays: NDArray[np.bool_], kept_ids: dict[int, str], split: SplitConfig) -> dict[str, Any]:
    dropped, kept_in, kept_out = Tally(), Tally(), Tally()
    names = ("lang", "domain", "bytes_in", "units_in", "bytes_out", "units_out")
    columns = [table.column(name).to_pylist() for name in names]
    for row, (lang, domain, bytes_in, units_in, bytes_out, units_out) in enumerate(zip(*columns, strict=True)):
        if stays[row]:
            kept_in.add(lang, domain, bytes=bytes_in, units=units_in)
            kept_out.add(lang, domain, bytes=bytes_out, units=units_out)
        elif row in kept_ids:
            dropped.add(RULE, lang, domain, bytes=bytes_in, units=units_in)
    numbers = split_numbers(hashes(table), split.seed)
    domains = np.array(columns[1], object)
    ends: dict[str, dict[str, list[int]]] = {"lowest": {}, "highest": {}}
    for domain in sorted(set(domains[stays].tolist())):
        of_domain = numbers[stays & (domains == domain)].tolist()
        ends["lowest"][domain] = heapq.nsmallest(split.min_documents, of_domain)
        ends["highest"][domain] = heapq.nlargest(split.min_documents, of_domain)
    return {"dropped": dropped.rows, "kept_in": kept_in.rows, "kept_out": kept_out.rows, **ends}
