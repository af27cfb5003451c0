"""Near-duplicates and repeated passages over all shards of a corpus: which documents go, and what is cut.

In: the signatures of each shard (`dedup.signatures`). Each band is sorted into buckets by a task of its own; texts that
share a bucket are put into one scratch file; then one process goes over the buckets and decides, while workers compare.
The outcome depends on texts, domains and the stable order alone.

    near = NearDedup(config, population, documents, context)
    near.duplicates(buckets := near.buckets(), near.texts(members_of(buckets, numbers)))
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headwater.core.artifacts import SCRATCH
from headwater.core.files import disk_errors
from headwater.core.shards import ShardFolder
from headwater.core.stage import StageContext
from headwater.curate.attributes import texts_name
from headwater.curate.config import CurateConfig
from headwater.curate.dedup.buckets import Chunk, chunks, read_chunks
from headwater.curate.dedup.compare import Measure, score_pairs
from headwater.curate.dedup.config import DedupConfig
from headwater.curate.dedup.engine import RULES, Decisions, slices, sweep
from headwater.curate.dedup.passages import PassageDedup
from headwater.curate.dedup.population import NO_NUMBER, Population
from headwater.curate.dedup.runs import Pairs, merged
from headwater.curate.dedup.settings import MEASURES, DedupSettings
from headwater.curate.dedup.signatures import Signatures
from headwater.curate.dedup.simhash import KEYS
from headwater.curate.texts import CorpusTexts, FillTask, cleaned_texts, fill, mapped

REMOVAL = np.dtype([("position", "<u4"), ("kept", "<u4"), ("rule", "u1"), ("score", "<f8")])
CUT = np.dtype(
    [
        ("position", "<u4"),
        ("start", "<i8"),  # bytes
        ("end", "<i8"),
        ("kept", "<u4"),
        ("kept_start", "<i8"),
        ("kept_end", "<i8"),
        ("rule", "u1"),
    ]
)
RULE_NAMES = (
    *(f"dedup.{rule}" for rule in RULES),
    "dedup.ngram-document",
    "dedup.ngram-passage",
    "dedup.ngram-repeat",
    "split.near-held-out",
)
NGRAM_DOCUMENT, NGRAM_PASSAGE, NGRAM_REPEAT, HELD_OUT = range(len(RULES), len(RULE_NAMES))
REMOVALS, CUTS, NUMBER = "work/near/removals.npy", "work/near/cuts.npy", "work/near/number.npy"
SPREAD_PAIRS = 1 << 15
"""From this many pairs on a comparison is divided among workers."""


def settings_of(config: DedupConfig) -> DedupSettings:
    """The same parameters as the verb on files has them."""
    names = {"exact": config.exact, "minhash": config.minhash, "simhash": config.simhash, "ngram": config.ngram}
    return DedupSettings(
        methods=[name for name, wanted in names.items() if wanted] or ["minhash"],
        threshold=config.threshold,
        measure=config.measure,
        width=config.width,
        bands=config.bands,
        rows=config.rows,
        representatives=config.representatives,
        priority=config.priority,
        fold_traditional=config.fold_traditional,
        passage_units=config.passage_units,
        passages=config.passages,
    )


def kinds_of(config: CurateConfig) -> dict[str, int]:
    """Kind of key -> bands of it that are looked at."""
    wanted = {"short": 1}
    if config.dedup.minhash or (needs_signatures(config) and not config.dedup.simhash):
        wanted["minhash"] = config.dedup.bands
    if config.dedup.simhash:
        wanted["simhash"] = len(KEYS)
    return wanted


def needs_signatures(config: CurateConfig) -> bool:
    """Whether any step compares documents that are not the same."""
    return config.dedup.near or (config.split.separate and config.split.validation + config.split.test > 0)


@dataclass(frozen=True, slots=True)
class BandTask:
    """One band of keys over all shards."""

    kind: str
    band: int
    shards: tuple[str, ...]
    bases: tuple[int, ...]
    out: ShardFolder


def bucket_name(kind: str, band: int) -> str:
    return f"work/buckets/{kind}-{band:03d}.bin"


def make_buckets(task: BandTask) -> dict[str, Any]:
    """Sort a band into buckets, unless that was done."""
    name = bucket_name(task.kind, task.band)
    if (facts := task.out.done(name)) is not None:
        return facts
    number = mapped(task.out.dir / NUMBER)
    runs = [Signatures(task.out, shard).run(task.kind, task.band) for shard in task.shards]
    sizes = []
    temp = task.out.temp(name)
    try:
        with disk_errors(temp), open(temp, "wb") as file:
            for starts, members in chunks(_numbered(merged(runs, bases=task.bases), number), number):
                file.write(starts.tobytes())
                file.write(members.tobytes())
                sizes.append([starts.size, members.size])
        return task.out.finish(name, temp, sizes=sizes)
    finally:
        temp.unlink(missing_ok=True)


def _numbered(parts: Iterator[Pairs], number: NDArray[np.uint32]) -> Iterator[Pairs]:
    """Without exact duplicates."""
    for keys, positions in parts:
        stays = number[positions] != NO_NUMBER
        yield (keys, positions) if stays.all() else (keys[stays], positions[stays])


@dataclass(frozen=True, slots=True)
class ScoreTask:
    """Pairs of positions to compare, sorted by their kept side."""

    kept: NDArray[np.int64]
    removed: NDArray[np.int64]
    measure: Measure
    width: int
    simplify: bool
    folder: Path


def score(task: ScoreTask) -> NDArray[np.float64]:
    """Scores of the pairs, float64 [n]."""
    texts = CorpusTexts(task.folder)
    try:
        return _score(texts, task)
    finally:
        texts.close()


def _score(texts: CorpusTexts, task: ScoreTask) -> NDArray[np.float64]:
    units = texts.units()
    found = []
    for part in slices(texts.offsets, task.kept, task.removed):
        found.append(
            score_pairs(
                texts.data, texts.offsets, task.kept[part], task.removed[part],
                width=task.width, measure=task.measure, simplify=task.simplify, units=units,
            )
        )  # fmt: skip
        texts.release()
    return np.concatenate(found) if found else np.empty(0)


class NearDedup:
    """Decides over a population. `documents` are the paths of its document shards, in order."""

    def __init__(
        self, config: CurateConfig, population: Population, documents: Sequence[Path], context: StageContext
    ) -> None:
        self.config, self.population, self.context = config, population, context
        self.out = population.out
        self.documents = tuple(documents)
        self.settings = settings_of(config.dedup)
        self.folder = self.out.dir / SCRATCH / "texts"

    def buckets(self) -> dict[str, list[Band]]:
        """Rule -> its bands, sorted into buckets by the executor."""
        if self.out.done(NUMBER) is None:
            with self.out.shard(NUMBER) as path:
                np.save(path, self.population.number, allow_pickle=False)
        bases = tuple(int(base) for base in self.population.bases[:-1])
        tasks = [
            BandTask(kind, band, self.population.shards, bases, self.out)
            for kind, bands in kinds_of(self.config).items()
            for band in range(bands)
        ]
        facts = list(self.context.executor.map(make_buckets, tasks))
        made: dict[str, Any] = {}
        for task, fact in zip(tasks, facts, strict=True):
            sizes = [(starts, members) for starts, members in fact["sizes"]]
            made.setdefault(task.kind, []).append(Band(self.out.dir / bucket_name(task.kind, task.band), sizes))
        return made

    def texts(self, needed: NDArray[np.bool_]) -> CorpusTexts:
        """The cleaned texts of the positions marked in `needed`, in one file."""
        sizes = self.population.gather("bytes").astype(np.int64)
        offsets = CorpusTexts.prepare(self.folder, needed, sizes, self.population.units)
        bases = self.population.bases[:-1].tolist()
        tasks = [
            FillTask(name, path, base, int(offsets[base]), self.folder, self.out)
            for name, path, base in zip(self.population.shards, self.documents, bases, strict=True)
        ]
        for task, facts in zip(tasks, self.context.executor.map(fill, tasks), strict=True):
            end = int(offsets[self.population.bases[bases.index(task.base) + 1]])
            assert facts["bytes"] == end - task.at or task.at == end, f"{task.name}: texts of other sizes than noted"
        return CorpusTexts(self.folder)

    def read_texts(self, positions: Sequence[int]) -> dict[int, str]:
        """Cleaned texts of a few positions, from their shards."""
        found: dict[int, str] = {}
        wanted = np.array(sorted(positions), np.int64)
        shards = np.searchsorted(self.population.bases, wanted, side="right") - 1
        for ordinal in np.unique(shards).tolist():
            mine = wanted[shards == ordinal]
            rows = self.population.rows(ordinal, mine).astype(np.int64)
            changed = self.out.dir / texts_name(self.population.shards[ordinal])
            texts = (text for _, part in cleaned_texts(self.documents[ordinal], changed, rows) for text in part)
            found |= {position: str(text, "utf-8") for position, text in zip(mine.tolist(), texts, strict=True)}
        return found

    def scorer(self, texts: CorpusTexts) -> Callable[..., NDArray[np.float64]]:
        """Compares pairs of positions, in this process or, if there are many, in all workers."""

        def compare(kept: NDArray[np.int64], removed: NDArray[np.int64], measure: Measure) -> NDArray[np.float64]:
            def task(part: slice) -> ScoreTask:
                return ScoreTask(
                    kept[part], removed[part], measure, self.settings.width, self.settings.fold_traditional, self.folder
                )

            workers = self.context.executor.workers
            if workers == 1 or kept.size < SPREAD_PAIRS:
                return _score(texts, task(slice(None)))
            step = max(SPREAD_PAIRS // 4, -(-kept.size // (4 * workers)))
            parts = [task(slice(start, start + step)) for start in range(0, kept.size, step)]
            return np.concatenate(list(self.context.executor.map(score, parts)))

        return compare

    def bits(self) -> NDArray[np.uint64]:
        """SimHashes by number, empty if they are not used."""
        if not self.config.dedup.simhash:
            return np.empty(0, np.uint64)
        parts = [Signatures(self.out, shard).bits() for shard in self.population.shards]
        found: NDArray[np.uint64] = np.concatenate(parts)[self.population.position_of]
        return found

    def duplicates(self, buckets: Any, texts: CorpusTexts) -> Decisions:
        """Which documents go as near-duplicates, by position."""
        return sweep(buckets, self.population.position_of, 0, self.bits(), self.settings, self.scorer(texts))

    def passages(self, removed: NDArray[np.int64], texts: CorpusTexts) -> tuple[NDArray[Any], NDArray[Any]]:
        """(removals, cuts) of repeated passages among what is left."""
        alive = np.ones(self.population.position_of.size, np.uint8)
        alive[self.population.number[removed]] = 0
        folder = self.folder / "passages"
        folder.mkdir(exist_ok=True)
        found = PassageDedup(self.settings, folder, texts, self.population.position_of, alive, 0).run()
        cuts = np.zeros(found.rows.size, CUT)
        cuts["position"], cuts["start"], cuts["end"] = found.rows, found.starts, found.ends
        cuts["kept"], cuts["kept_start"], cuts["kept_end"] = found.kept_rows, found.kept_starts, found.kept_ends
        cuts["rule"] = np.where(found.adjacent, NGRAM_REPEAT, NGRAM_PASSAGE)
        gone = np.isin(cuts["position"], found.whole)
        rows = np.zeros(found.whole.size, REMOVAL)
        rows["position"], rows["rule"], rows["score"] = found.whole, NGRAM_DOCUMENT, np.round(found.shares, 4)
        for index, position in enumerate(found.whole.tolist()):
            rows["kept"][index] = np.bincount(cuts["kept"][cuts["position"] == position]).argmax()
        if self.config.dedup.passages == "report":
            rows = rows[:0]
        return rows, cuts[~gone]


@dataclass(frozen=True, slots=True)
class Band:
    """The chunks of one band in its file, to be read several times."""

    path: Path
    sizes: list[tuple[int, int]]

    def __iter__(self) -> Iterator[Chunk]:
        return read_chunks(self.path, self.sizes)


def members_of(buckets: dict[str, Any], numbers: int) -> NDArray[np.bool_]:
    """Numbers that share a bucket with another."""
    found = np.zeros(numbers, np.bool_)
    for bands in buckets.values():
        for band in bands:
            for _, members in band:
                found[members] = True
    return found


def removals_of(decisions: Decisions) -> NDArray[Any]:
    """Decisions as rows of REMOVAL."""
    rows = np.zeros(decisions.removed.size, REMOVAL)
    rows["position"], rows["kept"] = decisions.removed, decisions.kept
    rows["rule"], rows["score"] = decisions.rules, decisions.scores
    return rows


def measure_of(config: DedupConfig) -> Measure:
    return MEASURES[config.measure]
