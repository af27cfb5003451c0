"""Signatures of one document shard: the keys by which its documents are proposed as near-duplicates, on disk.

They depend on the shard's cleaned texts and a few settings alone, so they are made once and used again when other
shards come. `work/info/SHARD.npy` has one row (`INFO`) for each document that cleaning left, in order;
`work/signatures/SHARD.bin` the keys, each band sorted, with the place in `INFO` of each.

    collector = SignatureCollector(config); collector.add(...); collector.write(out, shard)
    keys, places = signature_run(out, shard, "minhash", band)
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from headwater.core.shards import ShardFolder
from headwater.curate.dedup.config import DedupConfig
from headwater.curate.dedup.minhash import minhash_keys_of
from headwater.curate.dedup.runs import Pairs
from headwater.curate.dedup.simhash import KEYS, SIMHASH_WIDTH, block_keys, simhash_of

INFO = np.dtype(
    [
        ("row", "<u4"),  # in the document shard
        ("bytes", "<u4"),  # of the cleaned text
        ("characters", "<u4"),
        ("units", "<i4"),
        ("rank", "<u2"),  # of the domain: 0 is kept before 1
        ("domain", "<u2"),  # place in the sidecar's `domains`
        ("high", "<u8"),  # hash of the cleaned text
        ("low", "<u8"),
        ("id", "V16"),
    ]
)
BATCH_BYTES = 8 << 20


def info_name(shard: str) -> str:
    return f"work/info/{shard}.npy"


def signatures_name(shard: str) -> str:
    return f"work/signatures/{shard}.bin"


class SignatureCollector:
    """Gathers the documents of one shard. `near` asks for the keys of `minhash`, whatever the configuration says."""

    def __init__(self, config: DedupConfig, near: bool = False) -> None:
        self._config = config
        self._ranks = {domain: rank for rank, domain in enumerate(config.priority)}
        self._minhash, self._simhash = config.minhash or (near and not config.simhash), config.simhash
        self._domains: dict[str, int] = {}
        self._info: list[tuple[Any, ...]] = []
        self._texts: list[bytes] = []
        self._held = 0
        self._keys: list[NDArray[np.uint64]] = []
        self._bits: list[NDArray[np.uint64]] = []
        self._units: list[NDArray[np.int32]] = []

    @property
    def documents(self) -> int:
        """How many were added."""
        return len(self._info)

    def add(self, row: int, identifier: str, domain: str, digest: bytes, data: bytes, characters: int) -> None:
        """One document: `digest` is the 128-bit hash of its text, `data` its text of so many characters, `identifier`
        32 hex digits."""
        high, low = int.from_bytes(digest[:8], "big"), int.from_bytes(digest[8:], "big")
        place = self._domains.setdefault(domain, len(self._domains))
        rank = self._ranks.get(domain, len(self._ranks))
        self._info.append((row, len(data), characters, 0, rank, place, high, low, bytes.fromhex(identifier)))
        if self._minhash or self._simhash:
            self._texts.append(data)
            self._held += len(data)
            if self._held >= BATCH_BYTES:
                self._hash()

    def _hash(self) -> None:
        config = self._config
        data = np.frombuffer(bytearray(b"".join(self._texts)), np.uint8)
        offsets = np.zeros(len(self._texts) + 1, np.int64)
        np.cumsum([len(text) for text in self._texts], out=offsets[1:])
        bands = config.bands if self._minhash else 1
        keys, units = minhash_keys_of(
            data, offsets, bands=bands, rows=config.rows, width=config.width, simplify=config.fold_traditional
        )
        self._keys.append(keys)
        self._units.append(units)
        if self._simhash:
            width = min(SIMHASH_WIDTH, config.width)
            self._bits.append(simhash_of(data, offsets, width=width, simplify=config.fold_traditional))
        self._texts.clear()
        self._held = 0

    def write(self, out: ShardFolder, shard: str) -> None:
        """Write both files of the shard."""
        if self._texts:
            self._hash()
        info = np.array(self._info, INFO)
        signed = bool(self._units)
        if signed:
            info["units"] = np.concatenate(self._units)
        short = info["units"] < self._config.width
        facts: dict[str, int] = {"documents": len(info), "short": 0, "minhash": 0, "simhash": 0, "bits": 0}
        words: list[NDArray[np.uint64]] = []
        places: list[NDArray[np.uint32]] = []

        def band(keys: NDArray[np.uint64], chosen: NDArray[np.bool_]) -> None:
            where = np.flatnonzero(chosen).astype(np.uint32)
            order = np.argsort(keys[chosen], kind="stable")
            words.append(keys[chosen][order])
            places.append(where[order])

        if signed:
            keys = np.concatenate(self._keys, axis=1)
            facts["short"] = int(short.sum())
            if self._simhash:
                bits = np.concatenate(self._bits)
                words.append(bits)
                facts["bits"] = bits.size
            band(keys[0], short)
            if self._minhash:
                facts["minhash"] = len(keys)
                for row in keys:
                    band(row, ~short)
            if self._simhash:
                facts["simhash"] = len(KEYS)
                for row in block_keys(bits):
                    band(row, ~short)
        with out.shard(signatures_name(shard), **facts) as path, open(path, "wb") as file:
            file.writelines(array.tobytes() for array in words)
            file.writelines(array.tobytes() for array in places)
        with out.shard(info_name(shard), domains=list(self._domains)) as path:
            np.save(path, info, allow_pickle=False)


def load_info(out: ShardFolder, shard: str) -> NDArray[Any]:
    """The shard's `INFO` rows, not read before they are looked at."""
    array: NDArray[Any] = np.load(out.dir / info_name(shard), mmap_mode="r")
    return array


class Signatures:
    """The keys of one shard, read where they lie."""

    def __init__(self, out: ShardFolder, shard: str) -> None:
        name = signatures_name(shard)
        facts = out.done(name)
        assert facts is not None, f"{name} is missing"
        self._path = out.dir / name
        self.documents, self.short = facts["documents"], facts["short"]
        self.bands = {"short": 1, "minhash": facts["minhash"], "simhash": facts["simhash"]}
        self._bits = facts["bits"]
        self._words = self._bits + sum(bands * self._members(kind) for kind, bands in self.bands.items())

    def _members(self, kind: str) -> int:
        return self.short if kind == "short" else self.documents - self.short

    def run(self, kind: str, band: int) -> Pairs:
        """(keys, places in INFO) of one band of `short`, `minhash` or `simhash`, in order of keys."""
        count, before = self._members(kind), 0
        for other, bands in self.bands.items():
            if other == kind:
                break
            before += bands * self._members(other)
        before += band * count
        if not count or band >= self.bands[kind]:
            return np.empty(0, np.uint64), np.empty(0, np.uint32)
        keys = np.memmap(self._path, np.uint64, "r", 8 * (self._bits + before), (count,))
        places = np.memmap(self._path, np.uint32, "r", 8 * self._words + 4 * before, (count,))
        return keys, places

    def bits(self) -> NDArray[np.uint64]:
        """SimHash of each document; empty if there are none."""
        if not self._bits:
            return np.empty(0, np.uint64)
        return np.memmap(self._path, np.uint64, "r", 0, (self._bits,))
