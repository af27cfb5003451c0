"""Canaries: near-duplicates made on purpose, with a known share of their units changed, that measure in every run how
many near-duplicates, and how many planted benchmark questions, are found.

They are made of real documents of the corpus, after everything is decided: they decide nothing, and the corpus is the
same bytes without them. A canary asks the signatures on disk what a new document would ask: is a document that stays
proposed to it, and does the exact comparison agree?

    found = measure_canaries(config, near, removals)      # a JSON value
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headwater.core.jsonl import canonical_json, parse_json
from headwater.core.shards import ShardFolder
from headwater.curate.config import CurateConfig
from headwater.curate.dedup.benchmarks import BenchmarkIndex
from headwater.curate.dedup.compare import Measure, score_pairs
from headwater.curate.dedup.minhash import minhash_keys_of
from headwater.curate.dedup.population import NO_NUMBER
from headwater.curate.dedup.signatures import Signatures
from headwater.curate.dedup.simhash import MAX_DISTANCE, SIMHASH_WIDTH, block_keys, simhash_of
from headwater.curate.dedup.tokens import unit_hashes
from headwater.curate.near import NearDedup, kinds_of
from headwater.curate.questions import benchmark_index

LANGUAGES = ("zh", "en")
LEAST_UNITS, MOST_UNITS, MOST_BYTES = 50, 2000, 8192
QUESTIONS = 32
QUESTION_EDITS = (0.0, 0.05, 0.1)


def probes_name(shard: str) -> str:
    """Documents of a shard that canaries may be made of: those with the lowest hashes."""
    return f"work/probes/{shard}.json"


class ProbeCollector:
    """Keeps the documents with the lowest hashes of each language."""

    def __init__(self, documents: int) -> None:
        self._most = documents
        self._heaps: dict[str, list[tuple[int, int, str]]] = {lang: [] for lang in LANGUAGES}

    def add(self, place: int, lang: str, digest: bytes, text: str, units: int, size: int) -> None:
        """A document that stays so far; `place` counts those of its shard."""
        heap = self._heaps.get(lang)
        if heap is None or not self._most or not LEAST_UNITS <= units <= MOST_UNITS or size > MOST_BYTES:
            return
        entry = (-int.from_bytes(digest[:8], "big"), place, text)
        if len(heap) < self._most:
            heapq.heappush(heap, entry)
        elif entry > heap[0]:
            heapq.heapreplace(heap, entry)

    def write(self, out: ShardFolder, shard: str) -> None:
        rows = {lang: [[-key, place, text] for key, place, text in sorted(heap)] for lang, heap in self._heaps.items()}
        out.write(probes_name(shard), canonical_json(rows))


@dataclass(frozen=True)
class _Canary:
    lang: str
    edit: float
    position: int
    text: str


def measure_canaries(config: CurateConfig, near: NearDedup, removals: NDArray[Any]) -> dict[str, Any]:
    """What share of the canaries is found, by language and edit; of questions too, if benchmarks are looked for.

    A canary counts as a duplicate if its exact score against its source, or the document kept for that, reaches the
    threshold. Those below it that go are counted as well: that must be none.
    """
    sources = _sources(near, config.canaries.documents)
    result: dict[str, Any] = {"threshold": config.dedup.threshold, "documents": {}, "questions": []}
    result["documents"] = {lang: len(rows) for lang, rows in sources.items()}
    if config.dedup.near:
        canaries = list(_plant(sources, config.canaries.edits))
        result["duplicates"] = _found(config, near, removals, canaries, sources) if canaries else []
    index = benchmark_index(config.decontaminate)
    if index is not None:
        result["questions"] = _questions(index, [text for rows in sources.values() for _, text in rows])
    return result


def canaries_line(measured: dict[str, Any]) -> str:
    """What canaries measured, in a line for people; "" if none could be planted."""
    parts = []
    for lang in sorted(measured["documents"]):
        rows = [row for row in measured.get("duplicates", ()) if row["lang"] == lang]
        planted, found = (sum(row[name] for row in rows) for name in ("duplicates", "found"))
        if planted:
            parts.append(f"{found} of {planted} near-duplicates found in {lang} ({found / planted:.3f})")
    parts += [
        f"{row['found']} of {row['planted']} questions found"
        for row in measured["questions"]
        if row["planted"] and not row["edit"]
    ]
    return f"canaries: {', '.join(parts)}" if parts else ""


def _sources(near: NearDedup, most: int) -> dict[str, list[tuple[int, str]]]:
    """(position, text) of the documents of each language with the lowest hashes."""
    population = near.population
    best: dict[str, list[tuple[int, int, str]]] = {lang: [] for lang in LANGUAGES}
    for ordinal, shard in enumerate(population.shards):
        base = int(population.bases[ordinal])
        for lang, rows in parse_json((population.out.dir / probes_name(shard)).read_bytes()).items():
            mine = [(key, base + place, text) for key, place, text in rows]
            unique = [row for row in mine if population.number[row[1]] != NO_NUMBER]
            best[lang] = heapq.nsmallest(most, [*best[lang], *unique])
    return {lang: [(position, text) for _, position, text in rows] for lang, rows in best.items()}


def edited(text: str, share: float, pool: Sequence[bytes], seed: int) -> str:
    """The text with a share of its units, at least one unless it is 0, replaced by units of the pool."""
    data = text.encode()
    _, starts, ends = unit_hashes(text)
    count = min(starts.size, max(1, round(share * starts.size))) if share else 0
    random = np.random.Generator(np.random.PCG64(seed))
    pieces, at = [], 0
    for unit in sorted(random.choice(starts.size, count, replace=False).tolist()):
        old = data[starts[unit] : ends[unit]]
        new = old
        while new == old:
            new = pool[int(random.integers(len(pool)))]
        pieces += [data[at : starts[unit]], new]
        at = int(ends[unit])
    return b"".join([*pieces, data[at:]]).decode()


def _pool(texts: Sequence[str]) -> list[bytes]:
    """Units that stand in some texts, each once, sorted."""
    found: set[bytes] = {"一".encode(), b"one"}
    for text in texts:
        data = text.encode()
        _, starts, ends = unit_hashes(text)
        found.update(data[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True))
    return sorted(found)


def _plant(sources: dict[str, list[tuple[int, str]]], edits: Sequence[float]) -> Iterator[_Canary]:
    for lang, rows in sources.items():
        pool = _pool([text for _, text in rows])
        for number, (position, text) in enumerate(rows):
            for step, share in enumerate(edits):
                yield _Canary(lang, share, position, edited(text, share, pool, seed=number * 1000 + step))


def _joined(texts: Sequence[str]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    data = [text.encode() for text in texts]
    offsets = np.zeros(len(data) + 1, np.int64)
    np.cumsum([len(text) for text in data], out=offsets[1:])
    return np.frombuffer(bytearray(b"".join(data)), np.uint8), offsets


def _found(
    config: CurateConfig,
    near: NearDedup,
    removals: NDArray[Any],
    canaries: list[_Canary],
    sources: dict[str, list[tuple[int, str]]],
) -> list[dict[str, Any]]:
    kept_of = dict(zip(removals["position"].tolist(), removals["kept"].tolist(), strict=True))
    text_of = {position: text for rows in sources.values() for position, text in rows}
    others = sorted({kept_of[canary.position] for canary in canaries if canary.position in kept_of})
    text_of |= near.read_texts(others)
    targets = [kept_of.get(canary.position, canary.position) for canary in canaries]
    data, offsets = _joined([canary.text for canary in canaries] + [text_of[target] for target in targets])
    rows = np.arange(len(canaries))
    settings = near.settings
    scores = score_pairs(
        data, offsets, rows + len(canaries), rows, width=settings.width,
        measure=Measure.CONTAINMENT if settings.measure == "containment" else Measure.JACCARD,
        simplify=settings.fold_traditional,
    )  # fmt: skip
    proposed = _proposed(config, near, removals, canaries, np.array(targets))
    groups: dict[tuple[str, float], list[int]] = {}
    for canary, score, seen in zip(canaries, scores.tolist(), proposed.tolist(), strict=True):
        counts = groups.setdefault((canary.lang, canary.edit), [0, 0, 0])
        counts[0] += 1
        counts[1] += score >= settings.threshold
        counts[2] += score >= settings.threshold and seen
    return [
        {
            "lang": lang,
            "edit": edit,
            "planted": planted,
            "duplicates": duplicates,
            "found": found,
            "recall": round(found / duplicates, 4) if duplicates else None,
        }
        for (lang, edit), (planted, duplicates, found) in sorted(groups.items())
    ]


def _proposed(
    config: CurateConfig, near: NearDedup, removals: NDArray[Any], canaries: list[_Canary], targets: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Whether the keys on disk propose a canary's target to it, among the first few documents that stay."""
    population, settings, dedup = near.population, near.settings, config.dedup
    gone = np.zeros(population.documents, np.bool_)
    gone[removals["position"]] = True
    texts = _joined([canary.text for canary in canaries])
    fold = settings.fold_traditional
    kinds = kinds_of(config)
    keys, _ = minhash_keys_of(
        *texts, bands=kinds.get("minhash", 1), rows=settings.rows, width=settings.width, simplify=fold
    )
    wanted: dict[str, NDArray[np.uint64]] = {"minhash": keys} if dedup.minhash else {}
    bits = np.empty(0, np.uint64)
    if dedup.simhash:
        bits = simhash_of(*texts, width=min(SIMHASH_WIDTH, settings.width), simplify=fold)
        wanted["simhash"] = block_keys(bits)
    shards = [Signatures(population.out, shard) for shard in population.shards]
    found = np.zeros(len(canaries), np.bool_)
    for kind, bands in wanted.items():
        for band, mine in enumerate(bands):
            before = np.zeros(len(canaries), np.int64)  # documents of the bucket that come before the target
            there = np.zeros(len(canaries), np.bool_)
            for base, shard in zip(population.bases.tolist(), shards, strict=False):
                run, places = shard.run(kind, band)
                low, high = np.searchsorted(run, mine, "left"), np.searchsorted(run, mine, "right")
                for index in np.flatnonzero(high > low).tolist():
                    positions = places[low[index] : high[index]].astype(np.int64) + base
                    live = positions[(population.number[positions] != NO_NUMBER) & ~gone[positions]]
                    target = targets[index]
                    there[index] |= bool((live == target).any())
                    before[index] += int((population.number[live] < population.number[target]).sum())
            if kind == "simhash":
                there &= _near_bits(near, bits, targets)
            found |= there & (before < settings.representatives)
    return found


def _near_bits(near: NearDedup, bits: NDArray[np.uint64], targets: NDArray[np.int64]) -> NDArray[np.bool_]:
    theirs = near.bits()[near.population.number[targets]]
    return np.bitwise_count(bits ^ theirs) <= MAX_DISTANCE


def _questions(index: BenchmarkIndex, texts: Sequence[str]) -> list[dict[str, Any]]:
    """Benchmark questions planted in real documents: how many are found again."""
    chosen = index.items[:: max(1, len(index.items) // QUESTIONS)][:QUESTIONS]
    pool = _pool(texts or [item.question for item in chosen])
    rows = []
    for share in QUESTION_EDITS:
        hits = 0
        for number, item in enumerate(chosen):
            around = texts[number % len(texts)] if texts else ""
            middle = len(around) // 2
            planted = f"{around[:middle]}\n{edited(item.question, share, pool, seed=number)}\n{around[middle:]}"
            hits += any(match.item.name == item.name for match in index.find(planted))
        rows.append({"edit": share, "planted": len(chosen), "found": hits, "recall": round(hits / len(chosen), 4)})
    return rows
