"""The two stages of a pipeline: `collect` makes documents of raw files, `curate` makes a corpus of documents.

Each works shard by shard through the executor and keeps what is finished, so a killed run goes on where it was. The
result is the same bytes with any number of workers, in one process or many.

    counts = build_collect(config, {}, out, context)
    counts = build_curate(config, {"collect": artifact}, out, context)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from headwater.core.artifacts import Artifact, ArtifactWriter
from headwater.core.errors import InputError
from headwater.core.files import free_bytes_check
from headwater.core.jsonl import pretty_json
from headwater.core.rawinput import HashCache
from headwater.core.shards import ShardFolder
from headwater.core.stage import StageContext
from headwater.curate.collect import CollectTask, plan_key, remove_parts, write_quarantine
from headwater.curate.config import CollectConfig, CurateConfig
from headwater.curate.consolidate import plan_output, write_removed, write_shard
from headwater.curate.decisions import decide_corpus, remove_scratch, run_all
from headwater.curate.fetch.fetch import retrievals
from headwater.curate.identity import BENCHMARKS_ROOT
from headwater.curate.records import QUARANTINE
from headwater.curate.report import curation_report, split_table
from headwater.curate.shard_cache import ShardCache, clear_old
from headwater.curate.shares import collect_all
from headwater.curate.sources import ShardPlan, plan_shards

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
    counts = (
        done["counts"]
        if done
        else collect_into(ShardFolder(out.dir), config, context, context.workspace / "collect" / ".shards")
    )
    for name, source in counts["sources"].items():
        _check_source(name, source, config)
    out.notes["sources"] = retrievals(config)
    return counts


def collect_into(
    out: ShardFolder, config: CollectConfig, context: StageContext, kept: Path | None = None
) -> dict[str, Any]:
    """Collect into a folder of shards; no source is refused for what is in it. What was made of the same files before
    is taken from the folder `kept`, and what is made is kept there."""
    plans = plan_shards(config)
    raw_bytes = sum(file.bytes for plan in plans for file in plan.files)
    free_bytes_check(out.dir, raw_bytes, "collecting")
    context.reporter.decide(
        f"{_many(len(plans), 'shard')} from {_many(len(config.sources), 'source')}, {raw_bytes / 1e6:,.1f} MB raw",
        why=f"files are grouped or cut to {config.shard_bytes / 1e6:,.0f} MB (collect.shard_bytes)",
    )
    tasks = [CollectTask(plan, out, config.shard_bytes) for plan in plans]
    if kept is not None:
        tasks = _with_caches(tasks, kept, context)
    facts = collect_all(tasks, context)
    counts = _collect_counts(plans, facts)
    for name, source in counts["sources"].items():
        if source["quarantined"]:
            reasons = ", ".join(_counted(reason, row) for reason, row in source["quarantined"].items())
            context.reporter.warn(f"source {name}: in quarantine ({QUARANTINE}): {reasons}")
    write_quarantine(out, plans, facts, counts=counts)
    return counts


def _with_caches(tasks: list[CollectTask], root: Path, context: StageContext) -> list[CollectTask]:
    """The tasks with the places of what was made of the same files before."""
    clear_old(root)
    with HashCache(context.workspace) as hashes:
        keys = [plan_key(task.plan, task.shard_bytes, hashes) for task in tasks]
    found = [
        task if key is None else replace(task, cache=ShardCache(root, key))
        for task, key in zip(tasks, keys, strict=True)
    ]
    known = sum(task.cache is not None and task.cache.facts() is not None for task in found)
    if known:
        context.reporter.decide(f"{known:,} of them are taken over", why="their files were read before")
    return found


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
    reasons = ", ".join(_counted(reason, row) for reason, row in counts["quarantined"].items())
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
    out.notes[BENCHMARKS_ROOT] = str(Path(config.decontaminate.root).expanduser().absolute())
    if (done := out.done(REPORT)) is None:
        collected = inputs["collect"]
        shards = document_shards(collected)
        sizes = sum(path.stat().st_size for _, path in shards)
        free_bytes_check(out.dir, 3 * sizes, "curating")
        contents = {Path(name).stem: collected.facts(name)["sha256"] for name in collected.files("documents/")}
        report = _curate(config, shards, ShardFolder(out.dir), context, contents)
        came_in = {field: collected.counts[field] for field in ("documents", "bytes", "units")}
        assert report["in"] == came_in, f"curation saw {report['in']}, collection gave {came_in}"
        out.write(REPORT, pretty_json(report), counts=_curate_counts(report))
        done = out.done(REPORT)
        assert done is not None
    remove_scratch(out)
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


def _curate(
    config: CurateConfig,
    shards: Sequence[tuple[str, Path]],
    out: ShardFolder,
    context: StageContext,
    contents: dict[str, str],
) -> dict[str, Any]:
    outcome = decide_corpus(config, shards, out, context, contents)
    weighed = [(name, path, facts["weights"]) for (name, path), facts in zip(shards, outcome.placed, strict=True)]
    tasks = plan_output(weighed, config.shard_bytes, outcome.limits, config.split.seed, out)
    context.reporter.decide(
        f"{_many(len(tasks), 'output shard')}",
        why=f"{config.shard_bytes / 1e6:,.0f} MB of text of one domain each (curate.shard_bytes)",
    )
    written = run_all(write_shard, tasks, "write", context)
    write_removed(out, (name for name, _ in shards))
    report = {**curation_report(outcome), "splits": split_table(written)}
    kept = [row for domains in report["splits"].values() for row in domains.values()]
    sums = {field: sum(row[field] for row in kept) for field in ("documents", "bytes", "units")}
    assert sums == report["out"], f"wrote {sums}, planned {report['out']}"
    return report


def _curate_counts(report: dict[str, Any]) -> dict[str, Any]:
    return {
        **report["out"],
        "in": report["in"],
        "edited": report["edited"],
        "cut": report["cut"],
        "dropped": report["dropped"],
        "splits": report["splits"],
    }


def _counted(reason: str, row: Mapping[str, int]) -> str:
    return f"{reason} {row['records']:,}" if row["records"] else reason  # an empty file has no records


def _many(count: int, what: str) -> str:
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"
