"""The two stages of a pipeline: `collect` makes documents of raw files, `curate` makes a corpus of documents.

Each works shard by shard through the executor and keeps what is finished, so a killed run goes on where it was. The
result is the same bytes with any number of workers, in one process or many.

    counts = build_collect(config, {}, out, context)
    counts = build_curate(config, {"collect": artifact}, out, context)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from headwater.core.artifacts import Artifact, ArtifactWriter
from headwater.core.errors import InputError
from headwater.core.files import free_bytes_check
from headwater.core.jsonl import pretty_json
from headwater.core.shards import ShardFolder
from headwater.core.stage import StageContext
from headwater.curate.collect import QUARANTINE, CollectTask, collect_shard, remove_parts, write_quarantine
from headwater.curate.config import CollectConfig, CurateConfig
from headwater.curate.consolidate import plan_output, write_removed, write_shard
from headwater.curate.counts import Tally
from headwater.curate.decide import DecideTask, decide_shard
from headwater.curate.exact import MatchTask, match_partition, partition_count
from headwater.curate.place import PlaceTask, place_shard
from headwater.curate.report import curation_report, split_table
from headwater.curate.sources import ShardPlan, plan_shards
from headwater.curate.split import Limits, limits

Task = TypeVar("Task")
REPORT = "report.json"


def build_collect(
    config: CollectConfig, inputs: dict[str, Artifact], out: ArtifactWriter, context: StageContext
) -> dict[str, Any]:
    """Stage `collect`: `documents/*.parquet` and `quarantine.jsonl`. Returns counts by source.

    Raises RecipeError without sources; InputError for a path that matches nothing, a source of which nothing could be
    read, or one with more than `max_quarantine_ratio` in quarantine.
    """
    if (done := out.done(QUARANTINE)) is not None:
        remove_parts(out)
    counts = done["counts"] if done else collect_into(ShardFolder(out.dir), config, context)
    for name, source in counts["sources"].items():
        _check_source(name, source, config)
    return counts


def collect_into(out: ShardFolder, config: CollectConfig, context: StageContext) -> dict[str, Any]:
    """Collect into a folder of shards; no source is refused for what is in it."""
    plans = plan_shards(config)
    raw_bytes = sum((file.end - file.start) or file.size for plan in plans for file in plan.files)
    free_bytes_check(out.dir, raw_bytes, "collecting")
    context.reporter.decide(
        f"{_many(len(plans), 'shard')} from {_many(len(config.sources), 'source')}, {raw_bytes / 1e6:,.1f} MB raw",
        why=f"files are grouped or cut to {config.shard_bytes / 1e6:,.0f} MB (collect.shard_bytes)",
    )
    tasks = [CollectTask(plan, out, config.shard_bytes) for plan in plans]
    facts = run_all(collect_shard, tasks, "collect", context)
    counts = _collect_counts(plans, facts)
    for name, source in counts["sources"].items():
        if source["quarantined"]:
            reasons = ", ".join(f"{reason} {row['records']:,}" for reason, row in source["quarantined"].items())
            context.reporter.warn(f"source {name}: in quarantine ({QUARANTINE}): {reasons}")
    write_quarantine(out, plans, facts, counts=counts)
    return counts


def _collect_counts(plans: Sequence[ShardPlan], facts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    sources: dict[str, Any] = {}
    numbers = ("records", "raw_bytes", "documents", "document_raw_bytes", "text_bytes", "units")
    for plan, fact in zip(plans, facts, strict=True):
        row = sources.setdefault(plan.source.name, {**dict.fromkeys(numbers, 0), "quarantined": {}, "passed_over": {}})
        for number in numbers:
            row[number] += fact[number]
        for kind in ("quarantined", "passed_over"):
            for reason, (records, raw_bytes) in fact[kind].items():
                entry = row[kind].setdefault(reason, {"records": 0, "raw_bytes": 0})
                entry["records"] += records
                entry["raw_bytes"] += raw_bytes
    totals = {number: sum(row[number] for row in sources.values()) for number in numbers}
    return {
        "documents": totals["documents"],
        "bytes": totals["text_bytes"],
        "units": totals["units"],
        "records": totals["records"],
        "quarantined": sum(entry["records"] for row in sources.values() for entry in row["quarantined"].values()),
        "sources": sources,
    }


def _check_source(name: str, counts: dict[str, Any], config: CollectConfig) -> None:
    bad = sum(row["records"] for row in counts["quarantined"].values())
    reasons = ", ".join(f"{reason} {row['records']:,}" for reason, row in counts["quarantined"].items())
    passed = ", ".join(f"{reason} {row['records']:,}" for reason, row in counts["passed_over"].items())
    if not counts["documents"]:
        raise InputError(
            f"source {name!r} gave no document; in quarantine: {reasons or 'nothing'}; passed over: "
            f"{passed or 'nothing'}",
            where=f"collect.sources, {name}",
            mend="check its `kind`, `paths` and `text_field`; quarantine rows name file, line and reason",
        )
    share = bad / (bad + counts["documents"])
    if share > config.max_quarantine_ratio:
        raise InputError(
            f"source {name!r} has {share:.1%} of its records in quarantine ({reasons})",
            where=f"collect.sources, {name}",
            mend=f"mend the files, or raise collect.max_quarantine_ratio (now {config.max_quarantine_ratio})",
        )


def build_curate(
    config: CurateConfig, inputs: dict[str, Artifact], out: ArtifactWriter, context: StageContext
) -> dict[str, Any]:
    """Stage `curate`: `corpus/SPLIT/DOMAIN-00000.parquet`, `removed.parquet`, `report.json`, `attributes/`.

    Returns documents, bytes and units that stay, the same for what came in, and the report's other sums.
    """
    if (done := out.done(REPORT)) is None:
        collected = inputs["collect"]
        shards = document_shards(collected)
        sizes = sum(path.stat().st_size for _, path in shards)
        free_bytes_check(out.dir, 3 * sizes, "curating")
        report = _curate(config, shards, ShardFolder(out.dir), context)
        came_in = {field: collected.counts[field] for field in ("documents", "bytes", "units")}
        assert report["in"] == came_in, f"curation saw {report['in']}, collection gave {came_in}"
        out.write(REPORT, pretty_json(report), counts=_curate_counts(report))
        done = out.done(REPORT)
        assert done is not None
    for name in out.shards():
        if name.startswith("work/"):
            out.remove(name)
    return done["counts"]


def document_shards(collected: Artifact) -> list[tuple[str, Path]]:
    """Name and path of each document shard in the stable order of source, path and position."""
    return in_order(collected.path, {name: collected.facts(name) for name in collected.files("documents/")})


def in_order(folder: Path, facts: Mapping[str, dict[str, Any]]) -> list[tuple[str, Path]]:
    """Name and path of document shards, given their facts, in the stable order."""
    return [(Path(name).stem, folder / name) for name in sorted(facts, key=lambda name: facts[name]["order"])]


def decide_and_place(
    config: CurateConfig, shards: Sequence[tuple[str, Path]], out: ShardFolder, context: StageContext
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Decide about every document. Returns the facts of `attributes/clean` and `attributes/exact` of each shard."""
    names = tuple(name for name, _ in shards)
    tasks = [DecideTask(path, name, config, out) for name, path in shards]
    decided = run_all(decide_shard, tasks, "clean", context)
    partitions = 0
    if config.dedup.exact:
        partitions = partition_count(sum(facts["documents"] for facts in decided), config.dedup.keys_in_memory)
        matches = [MatchTask(number, partitions, names, out) for number in range(partitions)]
        run_all(match_partition, matches, "deduplicate", context)
    places = [PlaceTask(name, ordinal, partitions, config.split, out) for ordinal, name in enumerate(names)]
    return decided, run_all(place_shard, places, "settle", context)


def _curate(
    config: CurateConfig, shards: Sequence[tuple[str, Path]], out: ShardFolder, context: StageContext
) -> dict[str, Any]:
    decided, placed = decide_and_place(config, shards, out, context)
    weight_of = [_weights(facts) for facts in placed]
    limits_of = _limits(config, placed)
    described = [(name, path, weight) for (name, path), weight in zip(shards, weight_of, strict=True)]
    tasks = plan_output(described, config.shard_bytes, limits_of, config.split.seed, out)
    context.reporter.decide(
        f"{_many(len(tasks), 'output shard')}",
        why=f"{config.shard_bytes / 1e6:,.0f} MB of text of one domain each (curate.shard_bytes)",
    )
    written = run_all(write_shard, tasks, "write", context)
    write_removed(out, (name for name, _ in shards))
    report = {**curation_report(decided, placed), "splits": split_table(written)}
    kept = [row for domains in report["splits"].values() for row in domains.values()]
    sums = {field: sum(row[field] for row in kept) for field in ("documents", "bytes", "units")}
    assert sums == report["out"], f"wrote {sums}, planned {report['out']}"
    return report


def _weights(facts: dict[str, Any]) -> dict[str, int]:
    """Bytes plus documents of each domain that a shard keeps; see `consolidate.WriteTask`."""
    by_domain = Tally(facts["kept_out"]).by(1)
    return {domain: counts["bytes"] + counts["documents"] for domain, counts in by_domain.items()}


def _limits(config: CurateConfig, placed: Sequence[dict[str, Any]]) -> dict[str, Limits]:
    kept = Tally()
    for facts in placed:
        kept.merge(facts["kept_out"])
    found = {}
    for domain, counts in kept.by(1).items():
        lowest = sorted(number for facts in placed for number in facts["lowest"].get(domain, ()))
        highest = sorted((number for facts in placed for number in facts["highest"].get(domain, ())), reverse=True)
        found[domain] = limits(config.split, counts["documents"], lowest, highest)
    return found


def _curate_counts(report: dict[str, Any]) -> dict[str, Any]:
    return {
        **report["out"],
        "in": report["in"],
        "edited": report["edited"],
        "dropped": report["dropped"],
        "splits": report["splits"],
    }


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


def _many(count: int, what: str) -> str:
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"
