"""Exact deduplication over all shards: of documents with the same cleaned text one stays.

The order is (priority of the domain, source, path, position), which neither workers nor the grouping into shards can
change. Each shard gives a file of keys sorted by hash; a partition is the same range of hashes in all of them, so
memory is bounded by the partition however large the input. Duplicates inside a shard are settled before, so that a
text repeated a billion times is one key a shard.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headwater.core.shards import ShardFolder
from headwater.curate.dedup.config import DedupConfig

RULE, VERSION = "dedup.exact", 1

KEY = np.dtype([("high", "<u8"), ("low", "<u8"), ("rank", "<u2"), ("row", "<u4"), ("id", "V16")])
LOCAL = np.dtype([("row", "<u4"), ("kept", "<u4")])
DUPLICATE = np.dtype([("shard", "<u4"), ("row", "<u4"), ("kept", "V16")])
_CHUNK = 1 << 16


def keys_name(shard: str) -> str:
    """Keys of a shard's texts, each once, sorted by hash."""
    return f"work/keys/{shard}.npy"


def local_name(shard: str) -> str:
    """Rows that repeat an earlier text of their shard."""
    return f"work/local/{shard}.npy"


def duplicates_name(partition: int) -> str:
    """Rows of any shard that repeat a text of another, sorted by shard and row."""
    return f"work/duplicates/{partition:05d}.npy"


class KeyCollector:
    """Gathers the keys of one shard: 44 bytes a document."""

    def __init__(self, config: DedupConfig) -> None:
        self._ranks = {domain: rank for rank, domain in enumerate(config.priority)}
        self._exact = config.exact
        self._full: list[NDArray[Any]] = []
        self._rows: list[tuple[int, int, int, int, bytes]] = []

    def add(self, row: int, identifier: str, domain: str, digest: bytes) -> None:
        """`digest` is the 128-bit hash of the text, `identifier` the document's id, 32 hex digits."""
        if not self._exact:
            return
        high, low = int.from_bytes(digest[:8], "big"), int.from_bytes(digest[8:], "big")
        rank = self._ranks.get(domain, len(self._ranks))
        self._rows.append((high, low, rank, row, bytes.fromhex(identifier)))
        if len(self._rows) >= _CHUNK:
            self._pack()

    def _pack(self) -> None:
        self._full.append(np.array(self._rows, KEY))
        self._rows.clear()

    def write(self, out: ShardFolder, shard: str) -> None:
        """Write `work/keys` and `work/local` of the shard."""
        self._pack()
        keys = np.concatenate(self._full)
        keys = keys[np.lexsort((keys["row"], keys["rank"], keys["low"], keys["high"]))]
        first = first_of_equal(keys)
        local = np.zeros(int((~first).sum()), LOCAL)
        local["row"] = keys["row"][~first]
        local["kept"] = keys["row"][first][np.cumsum(first) - 1][~first]
        _save(out, local_name(shard), np.sort(local, order="row"))
        _save(out, keys_name(shard), keys[first])


def _save(out: ShardFolder, name: str, array: NDArray[Any]) -> None:
    with out.shard(name) as path:
        np.save(path, array, allow_pickle=False)


def first_of_equal(keys: NDArray[Any]) -> NDArray[np.bool_]:
    """Where a new hash begins in sorted keys, bool [n]."""
    first = np.ones(len(keys), np.bool_)
    first[1:] = (keys["high"][1:] != keys["high"][:-1]) | (keys["low"][1:] != keys["low"][:-1])
    return first


@dataclass(frozen=True, slots=True)
class MatchTask:
    """One of `count` ranges of hashes over all shards, which are named in the stable order."""

    number: int
    count: int
    shards: tuple[str, ...]
    out: ShardFolder


def match_partition(task: MatchTask) -> dict[str, Any]:
    """Find the texts of a range that are in several shards and write all but the first of each."""
    name = duplicates_name(task.number)
    if (facts := task.out.done(name)) is not None:
        return facts
    low, high = task.number * 2**64 // task.count, (task.number + 1) * 2**64 // task.count
    parts, shards = [], []
    for ordinal, shard in enumerate(task.shards):
        keys = np.load(task.out.dir / keys_name(shard), mmap_mode="r")
        start, end = bisect_left(keys["high"], low), bisect_left(keys["high"], high)
        parts.append(np.array(keys[start:end]))
        shards.append(np.full(end - start, ordinal, np.uint32))
    keys, shard_of = np.concatenate(parts), np.concatenate(shards)
    order = np.lexsort((keys["row"], shard_of, keys["rank"], keys["low"], keys["high"]))
    keys, shard_of = keys[order], shard_of[order]
    first = first_of_equal(keys)
    found = np.zeros(int((~first).sum()), DUPLICATE)
    found["shard"], found["row"] = shard_of[~first], keys["row"][~first]
    found["kept"] = keys["id"][first][np.cumsum(first) - 1][~first]
    found = found[np.lexsort((found["row"], found["shard"]))]
    with task.out.shard(name, duplicates=len(found)) as path:
        np.save(path, found, allow_pickle=False)
    return {"duplicates": len(found)}


def partition_count(documents: int, keys_in_memory: int) -> int:
    """How many ranges keep one within `keys_in_memory`; hashes are even, so ranges are."""
    return max(1, -(-documents // keys_in_memory))


def duplicates_of(out: ShardFolder, shard: str, ordinal: int, partitions: int, ids: list[str]) -> dict[int, str]:
    """Row -> id of the kept document, for the duplicates of a shard. `ids` are those of the shard's rows."""
    kept: dict[int, str] = {}
    for number in range(partitions):
        found = np.load(out.dir / duplicates_name(number), mmap_mode="r")
        start, end = bisect_left(found["shard"], ordinal), bisect_left(found["shard"], ordinal + 1)
        for row in found[start:end]:
            kept[int(row["row"])] = row["kept"].tobytes().hex()
    for row, earlier in np.load(out.dir / local_name(shard)).tolist():
        kept[row] = kept.get(earlier) or ids[earlier]
    return kept


def duplicate_rows(out: ShardFolder, shard: str, ordinal: int, partitions: int) -> NDArray[np.int64]:
    """The rows of a shard that are duplicates, sorted."""
    parts = [np.load(out.dir / local_name(shard))["row"].astype(np.int64)]
    for number in range(partitions):
        found = np.load(out.dir / duplicates_name(number), mmap_mode="r")
        start, end = bisect_left(found["shard"], ordinal), bisect_left(found["shard"], ordinal + 1)
        parts.append(found["row"][start:end].astype(np.int64))
    return np.unique(np.concatenate(parts))
