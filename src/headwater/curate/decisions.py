"""All decisions about a corpus: of each document alone, then of documents beside one another.

In: document shards and a recipe's `curate` section. Out, in a folder of shards: `attributes/clean`,
`attributes/corpus`, `work/final`, and an `Outcome`. What is finished is kept when the process is killed.

    outcome = decide_corpus(config, shards, out, context)
"""

from __future__ import annotations

import heapq
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from headwater.core.artifacts import SCRATCH
from headwater.core.jsonl import pretty_json
from headwater.core.shards import ShardFolder
from headwater.core.stage import StageContext
from headwater.curate.canaries import canaries_line, measure_canaries
from headwater.curate.clean import VERSIONS as CLEAN_VERSIONS
from headwater.curate.config import CurateConfig, SplitConfig
from headwater.curate.decide import DecideTask, decide_shard
from headwater.curate.dedup.population import Population
from headwater.curate.dedup.settings import VERSION
from headwater.curate.dedup.signatures import load_info
from headwater.curate.exact import MatchTask, match_partition, partition_count
from headwater.curate.held_out import held_out_removals
from headwater.curate.identity import curate_digests
from headwater.curate.language import identifier_version
from headwater.curate.near import (
    CUT,
    CUTS,
    REMOVAL,
    REMOVALS,
    RULE_NAMES,
    NearDedup,
    members_of,
    needs_signatures,
    removals_of,
)
from headwater.curate.place import REMOVED_IDS, PlaceTask, place_shard, sorted_ids
from headwater.curate.questions import benchmark_index
from headwater.curate.shard_cache import ShardCache, clear_old, shard_key
from headwater.curate.sift import rule_versions
from headwater.curate.site_lines import RULE as SITE_RULE
from headwater.curate.site_lines import find_site_lines
from headwater.curate.split import Limits, limits, sides, split_numbers
from headwater.curate.texts import CorpusTexts
from headwater.curate.undo import takedown_ids, without_rules

Task = TypeVar("Task")
TAKEDOWN_IDS = "takedown.txt"
SHARD_FILES = 2
"""Of the files about a shard: raised when the same decisions would be other bytes."""

CANARIES = "canaries.json"
"""What canaries measured; decides nothing."""

Shards = Sequence[tuple[str, Path]]


@dataclass(frozen=True, slots=True)
class Outcome:
    """Facts of `attributes/clean` and `attributes/corpus` of each shard, the limits of the split by domain, and what
    the comparisons counted."""

    decided: list[dict[str, Any]]
    placed: list[dict[str, Any]]
    limits: dict[str, Limits]
    compared: dict[str, int]


def decide_corpus(
    config: CurateConfig,
    shards: Shards,
    out: ShardFolder,
    context: StageContext,
    contents: Mapping[str, str] | None = None,
) -> Outcome:
    """Decide about every document of the shards, which are given in the stable order. With `contents`, the SHA-256 of
    each, what was decided about single documents is kept in the workspace and taken from there.

    Raises InputError for a takedown file that cannot be read.
    """
    names = tuple(name for name, _ in shards)
    taken = takedown_ids(config.takedown)
    alone = without_rules(config)
    benchmark_index(alone.decontaminate)  # complains now of benchmarks that cannot be read
    caches = _caches(alone, contents, context.workspace / "curate" / ".shards") if contents is not None else {}
    tasks = [DecideTask(path, name, alone, out, caches.get(name)) for name, path in shards]
    decided = run_all(decide_shard, tasks, "clean", context)
    partitions = 0
    if config.dedup.exact:
        partitions = partition_count(sum(facts["documents"] for facts in decided), config.dedup.keys_in_memory)
        matches = [MatchTask(number, partitions, names, out) for number in range(partitions)]
        run_all(match_partition, matches, "deduplicate", context)
    population = Population.of(out, names, partitions)
    population.save()
    near = NearDedup(config, population, [path for _, path in shards], context)
    removals, cuts, compared, limits_of = _compare(config, near)
    sites = SITE_RULE not in config.undo and find_site_lines(
        config.site_lines, population, removals["position"], shards, context
    )
    places = [
        PlaceTask(
            name=name,
            ordinal=ordinal,
            partitions=partitions,
            bases=(int(population.bases[ordinal]), int(population.bases[ordinal + 1])),
            width=config.dedup.width,
            simplify=config.dedup.fold_traditional,
            undo=frozenset(config.undo),
            uncut=frozenset(config.clean.code_domains),
            cutting=config.dedup.passages == "cut",
            sites=sites,
            taken=taken,
            texts=near.folder,
            out=out,
        )
        for ordinal, name in enumerate(names)
    ]
    if (len(removals) or len(cuts)) and not (near.folder / "texts.bin").exists():  # after a kill
        near.texts(_concerned(population, removals, cuts)).close()
    placed = run_all(place_shard, places, "settle", context)
    if taken and out.done(TAKEDOWN_IDS) is None:
        out.write(TAKEDOWN_IDS, "".join(f"{name}\n" for name in sorted(taken)).encode())
    if config.canaries.documents and out.done(CANARIES) is None:
        measured = measure_canaries(alone, near, removals)
        out.write(CANARIES, pretty_json(measured))
        if line := canaries_line(measured):
            context.reporter.info(line)
    return Outcome(decided, placed, limits_of, compared)


def _caches(config: CurateConfig, contents: Mapping[str, str], root: Path) -> dict[str, ShardCache]:
    """The cache's entry of each shard."""
    clear_old(root)
    files = curate_digests(config.model_copy(update={"takedown": ()}))
    versions = {
        **CLEAN_VERSIONS,
        **rule_versions(config.quality),
        "decontaminate": VERSION,
        "files": SHARD_FILES,
        "language": identifier_version(),
    }
    return {name: ShardCache(root, shard_key(config, sha256, files, versions)) for name, sha256 in contents.items()}


def _concerned(population: Population, removals: NDArray[Any], cuts: NDArray[Any]) -> NDArray[np.bool_]:
    """Positions whose texts are evidence."""
    needed = np.zeros(population.documents, np.bool_)
    for table in (removals, cuts):
        needed[table["position"]] = True
        needed[table["kept"]] = True
    return needed


def _compare(
    config: CurateConfig, near: NearDedup
) -> tuple[NDArray[Any], NDArray[Any], dict[str, int], dict[str, Limits]]:
    """(removals, cuts, counts, limits of the split): near-duplicates, passages, and what is near to held-out text."""
    out, population = near.out, near.population
    done = out.done(REMOVALS), out.done(CUTS), out.done(REMOVED_IDS)
    if all(done) and done[0] is not None:
        removals, cuts = np.load(out.dir / REMOVALS), np.load(out.dir / CUTS)
        dropped = removals[removals["rule"] != RULE_NAMES.index("split.near-held-out")]
        return removals, cuts, done[0]["compared"], split_limits(config.split, population, dropped["position"])
    removals, cuts, compared = np.zeros(0, REMOVAL), np.zeros(0, CUT), {}
    buckets: dict[str, Any] = {}
    texts: CorpusTexts | None = None
    if needs_signatures(config) or config.dedup.ngram:
        if needs_signatures(config):
            buckets = near.buckets()
        needed = np.zeros(population.documents, np.bool_)
        if config.dedup.ngram:
            needed[population.position_of] = True
        else:
            needed[population.position_of[members_of(buckets, population.position_of.size)]] = True
        texts = near.texts(needed)
    if config.dedup.near and texts is not None:
        decisions = near.duplicates(buckets, texts)
        removals, compared = removals_of(decisions), dict(decisions.counts)
    if config.dedup.ngram and texts is not None:
        more, cuts = near.passages(removals["position"].astype(np.int64), texts)
        removals = np.concatenate([removals, more])
    removals = _without(removals, config.undo)
    cuts = _without(cuts, config.undo)
    limits_of = split_limits(config.split, population, removals["position"])
    if buckets and texts is not None and config.split.separate and RULE_NAMES[-1] not in config.undo:
        side = _sides(config.split, population, removals["position"], limits_of)
        leaving = held_out_removals(near, buckets, texts, side)
        compared["near_held_out"] = len(leaving)
        removals = np.concatenate([removals, leaving])
        cuts = cuts[~np.isin(cuts["position"], leaving["position"])]
    if texts is not None:
        texts.close()
    removals = removals[np.argsort(removals["position"], kind="stable")]
    cuts = cuts[np.lexsort((cuts["start"], cuts["position"]))]
    with out.shard(REMOVED_IDS) as path:
        np.save(path, sorted_ids(population.ids(removals["position"].astype(np.int64))), allow_pickle=False)
    with out.shard(CUTS) as path:
        np.save(path, cuts, allow_pickle=False)
    with out.shard(REMOVALS, compared=compared) as path:
        np.save(path, removals, allow_pickle=False)
    return removals, cuts, compared, limits_of


def _without(table: NDArray[Any], undo: Sequence[str]) -> NDArray[Any]:
    """Rows of rules that are not undone."""
    return table[~np.isin(table["rule"], [number for number, name in enumerate(RULE_NAMES) if name in undo])]


def _by_domain(population: Population, removed: NDArray[np.uint32], split: SplitConfig) -> Any:
    """For each shard: (base, domain's name, indices of its documents that stay, their split numbers)."""
    gone = np.zeros(population.documents, np.bool_)
    gone[removed] = True
    gone |= population.number == np.uint32(0xFFFFFFFF)
    for ordinal, shard in enumerate(population.shards):
        info = load_info(population.out, shard)
        base = int(population.bases[ordinal])
        stays = ~gone[base : base + len(info)]
        numbers = split_numbers(np.column_stack([info["high"], info["low"]]), split.seed)
        names, places = population.domains(ordinal)
        for place, name in enumerate(names):
            chosen = np.flatnonzero(stays & (places == place))
            if chosen.size:
                yield base, name, chosen, numbers[chosen]


def split_limits(split: SplitConfig, population: Population, removed: NDArray[np.uint32]) -> dict[str, Limits]:
    """Limits of each domain, from the documents that stay."""
    count: dict[str, int] = {}
    lowest: dict[str, list[int]] = {}
    highest: dict[str, list[int]] = {}
    for _, name, _, numbers in _by_domain(population, removed, split):
        count[name] = count.get(name, 0) + numbers.size
        ends = np.sort(numbers)
        most = split.min_documents
        lowest[name] = heapq.nsmallest(most, [*lowest.get(name, ()), *ends[:most].tolist()])
        highest[name] = heapq.nlargest(most, [*highest.get(name, ()), *(ends[-most:].tolist() if most else ())])
    return {name: limits(split, count[name], lowest[name], highest[name]) for name in sorted(count)}


def _sides(
    split: SplitConfig, population: Population, removed: NDArray[np.uint32], limits_of: dict[str, Limits]
) -> NDArray[np.uint8]:
    """By number: 0 gone, 1 train, 2 validation or test."""
    side = np.zeros(population.position_of.size, np.uint8)
    for base, name, chosen, numbers in _by_domain(population, removed, split):
        side[population.number[base + chosen]] = np.where(sides(numbers, limits_of[name]) > 0, 2, 1)
    return side


def remove_scratch(out: ShardFolder) -> None:
    """Take away the texts that were compared."""
    shutil.rmtree(out.dir / SCRATCH / "texts", ignore_errors=True)


def run_all(
    function: Callable[[Task], dict[str, Any]], tasks: Sequence[Task], what: str, context: StageContext
) -> list[dict[str, Any]]:
    """Run tasks through the executor with a progress bar; their facts in the order of the tasks."""
    facts = []
    with context.reporter.progress(what, total=len(tasks), unit="shards") as bar:
        for fact in context.executor.map(function, tasks):
            facts.append(fact)
            bar.advance()
    return facts
