"""All documents of a corpus by number, whatever shards they lie in.

A *position* counts the documents that cleaning left, shard after shard in the stable order; a *number* counts those of
them that are no exact duplicates, in the order of preference: by domain, then by position. About 20 bytes of memory a
document.

    population = Population.of(out, shards, partitions)
    population.id(position)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from headwater.core.jsonl import canonical_json, parse_json
from headwater.core.shards import ShardFolder
from headwater.curate.dedup.signatures import info_name, load_info
from headwater.curate.exact import duplicate_rows

BASES = "work/near/bases.json"
NO_NUMBER = np.uint32(0xFFFFFFFF)


@dataclass(frozen=True)
class Population:
    """`bases` [shards + 1]: position of each shard's first document; `number` [positions], NO_NUMBER for exact
    duplicates; `position_of` [numbers]."""

    out: ShardFolder
    shards: tuple[str, ...]
    bases: NDArray[np.int64]
    number: NDArray[np.uint32]
    position_of: NDArray[np.uint32]

    @classmethod
    def of(cls, out: ShardFolder, shards: Sequence[str], partitions: int) -> Population:
        """From the files of all shards, which are named in the stable order."""
        sizes, ranks = [], []
        for ordinal, shard in enumerate(shards):
            info = load_info(out, shard)
            rank = np.array(info["rank"])
            if partitions:
                twice = duplicate_rows(out, shard, ordinal, partitions)
                rank[np.searchsorted(info["row"], twice)] = np.iinfo(rank.dtype).max
            sizes.append(len(info))
            ranks.append(rank)
        bases = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
        rank = np.concatenate([*ranks, np.empty(0, np.uint16)])
        order = np.argsort(rank, kind="stable").astype(np.uint32)
        position_of = order[: int((rank != np.iinfo(rank.dtype).max).sum())]
        number = np.full(rank.size, NO_NUMBER, np.uint32)
        number[position_of] = np.arange(position_of.size, dtype=np.uint32)
        return cls(out, tuple(shards), bases, number, position_of)

    def save(self) -> None:
        """Write down where each shard's documents begin, for `ids_only`."""
        if self.out.done(BASES) is None:
            self.out.write(BASES, canonical_json({"shards": self.shards, "bases": self.bases.tolist()}))

    @classmethod
    def ids_only(cls, out: ShardFolder) -> Population:
        """Of a population that was saved: knows ids by position, no numbers."""
        saved = parse_json((out.dir / BASES).read_bytes())
        nothing = np.empty(0, np.uint32)
        return cls(out, tuple(saved["shards"]), np.array(saved["bases"], np.int64), nothing, nothing)

    @property
    def documents(self) -> int:
        """Positions there are."""
        return int(self.bases[-1])

    def gather(self, field: str) -> NDArray[np.generic]:
        """A field of INFO of all positions."""
        parts = [np.array(load_info(self.out, shard)[field]) for shard in self.shards]
        return np.concatenate(parts) if parts else np.empty(0)

    @cached_property
    def units(self) -> NDArray[np.int32]:
        """Units of each position, as shingling counts them."""
        return self.gather("units").astype(np.int32)

    def place(self, position: int) -> tuple[int, int]:
        """(shard's place, row of INFO) of a position."""
        shard = int(np.searchsorted(self.bases, position, side="right")) - 1
        return shard, position - int(self.bases[shard])

    def rows(self, shard: int, positions: NDArray[np.int64]) -> NDArray[np.uint32]:
        """Rows in its document shard of positions of one shard."""
        found: NDArray[np.uint32] = load_info(self.out, self.shards[shard])["row"][positions - self.bases[shard]]
        return found

    def id(self, position: int) -> str:
        """A document's id."""
        shard, index = self.place(position)
        identifier: str = load_info(self.out, self.shards[shard])[index]["id"].tobytes().hex()
        return identifier

    def ids(self, positions: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Ids of positions, uint8 [n, 16]."""
        found = np.empty((positions.size, 16), np.uint8)
        shards = np.searchsorted(self.bases, positions, side="right") - 1
        for shard in np.unique(shards).tolist():
            mine = shards == shard
            rows = load_info(self.out, self.shards[shard])["id"][positions[mine] - self.bases[shard]]
            found[mine] = np.frombuffer(rows.tobytes(), np.uint8).reshape(-1, 16)
        return found

    def domains(self, shard: int) -> tuple[list[str], NDArray[np.uint16]]:
        """Names of a shard's domains, and for each document the place of its domain among them."""
        facts = self.out.done(info_name(self.shards[shard]))
        assert facts is not None
        return facts["domains"], load_info(self.out, self.shards[shard])["domain"]
