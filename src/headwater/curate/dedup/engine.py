"""Documents in, decisions out: which documents go, because of which kept one, by which rule, with which score.

Keys propose pairs (`runs`, `stars`), exact comparison decides (`compare`). The outcome depends on the documents alone:
not on their order, on how they lie in files, or on workers.

    removals = deduplicate(["some text", "some text"], ids=["b", "a"])      # b goes, a is kept
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import xxhash
from numpy.typing import NDArray

from headwater.curate.dedup.buckets import Buckets, Chunk
from headwater.curate.dedup.compare import Measure, score_pairs, span_arrays
from headwater.curate.dedup.kernels import small
from headwater.curate.dedup.minhash import minhash_keys_of
from headwater.curate.dedup.runs import RunStore
from headwater.curate.dedup.settings import MEASURES, VERSION, DedupSettings
from headwater.curate.dedup.simhash import MAX_DISTANCE, SIMHASH_WIDTH, block_keys, simhash_of
from headwater.curate.dedup.spool import Spool
from headwater.curate.dedup.stars import Graph, propose
from headwater.curate.dedup.tokens import Offsets

RULES = ("exact", "short", "minhash", "simhash")
"""In the order they are tried; `short` compares documents of fewer units than a shingle as whole texts."""

COMPARE_PAIRS = 4096
COMPARE_BYTES = 64 << 20
_Hashes = dict[str, NDArray[np.uint64] | NDArray[np.int32]]
_NO_BITS = np.empty(0, np.uint64)
Score = Callable[[NDArray[np.int64], NDArray[np.int64], Measure], NDArray[np.float64]]
"""(kept rows, removed rows, measure) -> scores; pairs come sorted by their kept side's number."""


@dataclass(frozen=True)
class Batch:
    """Documents to add: UTF-8 texts, ids, and for each the class of preference, 0 first."""

    texts: Sequence[bytes]
    ids: Sequence[bytes]
    classes: Sequence[int]


@dataclass(frozen=True)
class Removal:
    """Why a document goes. Spans are (start, end, start in kept, end in kept) in characters, the first ones of
    `spans_total`."""

    row: int
    kept_row: int
    rule: str
    score: float
    spans: tuple[tuple[int, int, int, int], ...] = ()
    spans_total: int = 0
    version: int = VERSION


@dataclass
class Decisions:
    """The outcome by row; removals in the order of rows."""

    removed: NDArray[np.int64]
    kept: NDArray[np.int64]
    scores: NDArray[np.float64]
    rules: NDArray[np.uint8]
    counts: dict[str, int] = field(default_factory=dict)

    @classmethod
    def none(cls) -> Decisions:
        empty = np.empty(0, np.int64)
        return cls(empty, empty, np.empty(0, np.float64), np.empty(0, np.uint8))


class DocumentDedup:
    """Takes batches of documents, then decides. `frozen_classes` is how many of the first classes are never removed."""

    def __init__(self, settings: DedupSettings, folder: Path, spool: Spool, frozen_classes: int = 0) -> None:
        self.settings, self.folder, self.spool = settings, folder, spool
        self.frozen_classes = frozen_classes
        self._frozen = 0
        self._units: list[NDArray[np.int32]] = []
        near = {"minhash", "simhash"} & set(settings.methods)
        bands = {"exact": 1} if "exact" in settings.methods else {}
        bands |= {"short": 1} if near else {}
        bands |= {"minhash": settings.bands} if "minhash" in near else {}
        bands |= {"simhash": 10} if "simhash" in near else {}
        self._stores: dict[str, RunStore] = {}
        for name, count in bands.items():
            (folder / name).mkdir()
            self._stores[name] = RunStore(folder / name, count)
        self._bits: list[NDArray[np.uint64]] = []
        self._pool = ThreadPoolExecutor(settings.workers) if settings.workers > 1 else None

    def add_all(self, batches: Iterable[Batch]) -> None:
        """Spool and hash batches, in order."""
        waiting: list[tuple[int, Future[_Hashes]]] = []
        for batch in batches:
            row = self.spool.documents
            self.spool.add(batch.texts, batch.ids, batch.classes)
            self._frozen += sum(number < self.frozen_classes for number in batch.classes)
            if self._pool is None:
                self._store(row, self._hash(batch))
                continue
            waiting.append((row, self._pool.submit(self._hash, batch)))
            while len(waiting) > 2 * self.settings.workers:
                first, future = waiting.pop(0)
                self._store(first, future.result())
        for first, future in waiting:
            self._store(first, future.result())

    def _hash(self, batch: Batch) -> _Hashes:
        settings = self.settings
        made: _Hashes = {}
        if "exact" in self._stores:
            made["exact"] = np.fromiter(map(xxhash.xxh3_64_intdigest, batch.texts), np.uint64, len(batch.texts))
        data = np.frombuffer(bytearray(b"".join(batch.texts)), np.uint8)
        offsets = np.zeros(len(batch.texts) + 1, np.int64)
        np.cumsum(np.fromiter(map(len, batch.texts), np.int64, len(batch.texts)), out=offsets[1:])
        bands = settings.bands if "minhash" in self._stores else 1
        made["minhash"], made["units"] = minhash_keys_of(
            data, offsets, bands=bands, rows=settings.rows, width=settings.width, simplify=settings.fold_traditional
        )
        if "simhash" in self._stores:
            width = min(SIMHASH_WIDTH, settings.width)
            made["simhash"] = simhash_of(data, offsets, width=width, simplify=settings.fold_traditional)
        return made

    def _store(self, row: int, made: _Hashes) -> None:
        if "exact" in made:
            keys = np.asarray(made["exact"], np.uint64)
            self._stores["exact"].add(keys[None, :], np.arange(row, row + keys.size, dtype=np.uint32))
        self._units.append(np.asarray(made["units"], np.int32))
        if "short" not in self._stores:
            return
        short = made["units"] < self.settings.width
        rows = np.arange(row, row + short.size, dtype=np.uint32)
        keys = np.asarray(made["minhash"], np.uint64)
        self._stores["short"].add(keys[:1, short], rows[short])
        if "minhash" in self._stores:
            self._stores["minhash"].add(keys[:, ~short], rows[~short])
        if "simhash" in made:
            bits = np.asarray(made["simhash"], np.uint64)
            self._bits.append(bits)
            self._stores["simhash"].add(block_keys(bits[~short]), rows[~short])

    def units(self) -> NDArray[np.int32]:
        """Units of each row."""
        if len(self._units) != 1:
            self._units = [np.concatenate([*self._units, np.empty(0, np.int32)])]
        return self._units[0]

    def decide(self) -> tuple[Decisions, NDArray[np.uint32]]:
        """Decisions, and the row of each number (the order of preference)."""
        self.spool.finish()
        number, row_of = self.spool.numbering()
        buckets = {name: self._buckets(name, store, number) for name, store in self._stores.items()}
        bits = np.concatenate(self._bits)[row_of] if self._bits else _NO_BITS
        return sweep(buckets, row_of, self._frozen, bits, self.settings, self._scores), row_of

    def _buckets(self, name: str, store: RunStore, number: NDArray[np.uint32]) -> list[Buckets]:
        made = []
        for band in range(store.bands):
            made.append(Buckets.of(store.sorted(band), number, self.folder / name / f"{band:03d}.buckets"))
            store.drop(band)
        return made

    def _scores(self, kept: NDArray[np.int64], removed: NDArray[np.int64], measure: Measure) -> NDArray[np.float64]:
        """Scores of pairs of rows sorted by their kept side, in slices of bounded text."""
        data, offsets, settings, units = self.spool.data, self.spool.offsets, self.settings, self.units()

        def compare(part: slice) -> NDArray[np.float64]:
            return score_pairs(
                data, offsets, kept[part], removed[part],
                width=settings.width, measure=measure, simplify=settings.fold_traditional, units=units,
            )  # fmt: skip

        parts = list(slices(offsets, kept, removed))
        made = list(self._pool.map(compare, parts)) if self._pool is not None else [compare(part) for part in parts]
        self.spool.release()
        return np.concatenate(made)

    def evidence(self, decisions: Decisions) -> Iterator[Removal]:
        """Every removal with its spans, in the order of rows."""
        data, offsets, settings, units = self.spool.data, self.spool.offsets, self.settings, self.units()
        for part in slices(offsets, decisions.kept, decisions.removed, 1024):
            kept, removed = decisions.kept[part], decisions.removed[part]
            spans, totals = span_arrays(
                data, offsets, kept, removed, width=settings.width, most=settings.spans,
                simplify=settings.fold_traditional, units=units,
            )  # fmt: skip
            for index, total in enumerate(totals.tolist()):
                score = float(decisions.scores[part][index])
                yield Removal(
                    row=int(removed[index]),
                    kept_row=int(kept[index]),
                    rule=RULES[decisions.rules[part][index]],
                    score=score,
                    spans=tuple(map(tuple, spans[index, : min(total, settings.spans)].tolist())),
                    spans_total=total,
                )
            self.spool.release()

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()


def sweep(
    buckets: Mapping[str, Sequence[Iterable[Chunk]]],
    row_of: NDArray[np.uint32],
    frozen: int,
    bits: NDArray[np.uint64],
    settings: DedupSettings,
    score: Score,
) -> Decisions:
    """Go over all buckets, comparing what they propose, until nothing new is proposed.

    `buckets`: rule -> for each band its chunks of (starts [buckets + 1], members by number); `row_of` maps a number to
    the row `score` knows; numbers below `frozen` are never removed; `bits` are SimHashes by number or empty.
    """
    graph = Graph(row_of.size)
    tested = {measure: np.empty(0, np.uint64) for measure in Measure}
    counts = {"pairs_compared": 0, "pairs_left_out": 0, "sweeps": 0}
    changed = True
    while changed:
        changed = False
        counts["sweeps"] += 1
        counts["pairs_left_out"] = 0
        for name, bands in buckets.items():
            measure = Measure.IDENTICAL if name == "exact" else MEASURES[settings.measure]
            near = bits if name == "simhash" else _NO_BITS
            limit = len(graph.alive) if name in ("exact", "short") else settings.representatives
            for starts, members in (chunk for band in bands for chunk in band):
                out = np.empty(members.size, np.uint64)
                found, left = small(propose, members.size)(
                    starts, members, graph.alive, frozen, tested[measure], near, MAX_DISTANCE, limit, out
                )
                counts["pairs_left_out"] += left
                pairs = np.unique(out[:found])
                if not pairs.size:
                    continue
                changed = True
                counts["pairs_compared"] += pairs.size
                kept, removed = row_of[pairs >> np.uint64(32)], row_of[pairs & np.uint64(0xFFFFFFFF)]
                scores = score(kept.astype(np.int64), removed.astype(np.int64), measure)
                tested[measure] = merge(tested[measure], pairs)
                good = scores >= settings.threshold
                if good.any():
                    graph.add(pairs[good], scores[good], RULES.index(name))
    later, earlier, scores, rules = graph.removals()
    removed, kept = row_of[later].astype(np.int64), row_of[earlier].astype(np.int64)
    order = np.argsort(removed)
    return Decisions(removed[order], kept[order], scores[order], rules[order], counts)


def merge(old: NDArray[np.uint64], new: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Two sorted arrays without common values as one."""
    joined = np.concatenate([old, new])
    joined.sort(kind="stable")
    return joined


def slices(
    offsets: Offsets, kept: NDArray[np.int64], removed: NDArray[np.int64], most: int = COMPARE_PAIRS
) -> Iterator[slice]:
    """Cut pairs so that no slice has more than `most` of them; one with a very long text stands alone."""
    sizes = np.maximum(offsets[kept + 1] - offsets[kept], offsets[removed + 1] - offsets[removed])
    start = 0
    while start < kept.size:
        end = min(start + most, kept.size)
        long = np.flatnonzero(sizes[start:end] > COMPARE_BYTES)
        if long.size:
            end = start + max(1, int(long[0]))
        yield slice(start, end)
        start = end


def deduplicate(
    texts: Sequence[str],
    ids: Sequence[str] | None = None,
    domains: Sequence[str] | None = None,
    settings: DedupSettings | None = None,
) -> list[Removal]:
    """Decide over texts in memory; ids default to the positions as ten digits, domains to none. `ngram` is a matter of
    `passages` and ignored here."""
    settings = settings or DedupSettings()
    ids = ids if ids is not None else [f"{position:010d}" for position in range(len(texts))]
    classes = [domain_class(domain, settings.priority) for domain in (domains or [""] * len(texts))]
    with tempfile.TemporaryDirectory(prefix="headwater-dedup-") as place, Spool(Path(place)) as spool:
        engine = DocumentDedup(settings, Path(place), spool)
        data = [text.encode("utf-8", "surrogatepass") for text in texts]
        engine.add_all([Batch(data, [name.encode("utf-8", "surrogatepass") for name in ids], classes)])
        decisions, _ = engine.decide()
        removals = list(engine.evidence(decisions))
        engine.close()
        return removals


def domain_class(domain: str, priority: Sequence[str]) -> int:
    """Place of a domain in the order of preference, from 1; 0 is for documents that are never removed."""
    return 1 + (list(priority).index(domain) if domain in priority else len(priority))
