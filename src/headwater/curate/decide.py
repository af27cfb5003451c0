"""First step of curation, shard by shard: clean every document, ask the quality rules, write down what was decided.

In: one document shard. Out: its `attributes/clean` and `attributes/quality`, the texts cleaning changed, and the keys
that exact deduplication compares. Nothing here looks beyond the shard.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import xxhash

from headwater.core.files import disk_errors
from headwater.core.shards import ShardFolder
from headwater.curate.attributes import CLEAN, TEXTS, RowWriter, clean_name, texts_name
from headwater.curate.canaries import ProbeCollector, probes_name
from headwater.curate.config import CurateConfig
from headwater.curate.counts import Tally
from headwater.curate.dedup.benchmarks import Match
from headwater.curate.dedup.signatures import SignatureCollector, info_name, signatures_name
from headwater.curate.exact import KeyCollector, keys_name, local_name
from headwater.curate.near import needs_signatures
from headwater.curate.quality.attributes import QualityWriter, quality_name
from headwater.curate.questions import benchmark_index, take_questions
from headwater.curate.shard_cache import ShardCache
from headwater.curate.sift import Batch, batches, rule_versions, sift

_NO_HASH = bytes(16)
FILES = {
    "texts": texts_name,
    "quality": quality_name,
    "keys": keys_name,
    "local": local_name,
    "signatures": signatures_name,
    "info": info_name,
    "probes": probes_name,
    "clean": clean_name,
}
"""What is written about a shard, the last one last."""


@dataclass(frozen=True, slots=True)
class DecideTask:
    """One document shard, by path and name, and where to write."""

    documents: Path
    name: str
    config: CurateConfig
    out: ShardFolder
    cache: ShardCache | None = None


def decide_shard(task: DecideTask) -> dict[str, Any]:
    """Decide about every document of a shard, unless that was done. Returns the facts of its attributes:
    `dropped` (rule|lang|domain -> documents, bytes, units) and `documents`."""
    names = {role: name(task.name) for role, name in FILES.items()}
    found = [task.out.done(name) for name in names.values()]
    if all(found) and found[-1] is not None:
        return found[-1]
    if task.cache is not None and (kept := task.cache.restore(task.out, names)) is not None:
        return kept["clean"]
    facts = _decide_all(task, names)
    if task.cache is not None:
        task.cache.keep(task.out, names)
    return facts


def _decide_all(task: DecideTask, names: dict[str, str]) -> dict[str, Any]:
    texts, scores, attributes = (task.out.temp(names[role]) for role in ("texts", "quality", "clean"))
    dropped = Tally()
    keys = KeyCollector(task.config.dedup)
    questions = benchmark_index(task.config.decontaminate)
    signatures = SignatureCollector(task.config.dedup, near=needs_signatures(task.config))
    probes = ProbeCollector(task.config.canaries.documents)
    rows = 0
    try:
        with (
            disk_errors(attributes),
            RowWriter(texts, TEXTS) as changed,
            RowWriter(attributes, CLEAN) as decided,
            QualityWriter(scores, task.config.quality) as quality,
        ):
            for documents in batches(_documents(task.documents)):
                batch = sift(documents, task.config)
                quality.add(batch)
                held = take_questions(batch.cleaned, questions)
                for place in range(len(documents)):
                    _decide(rows, place, batch, held.get(place), changed, decided, keys, signatures, probes, dropped)
                    rows += 1
        task.out.finish(names["texts"], texts)
        task.out.finish(names["quality"], scores)
        keys.write(task.out, task.name)
        signatures.write(task.out, task.name)
        probes.write(task.out, task.name)
        facts = {"edits": quality.edits, "quality": rule_versions(task.config.quality)}
        return task.out.finish(names["clean"], attributes, documents=rows, dropped=dropped.rows, **facts)
    finally:
        texts.unlink(missing_ok=True)
        scores.unlink(missing_ok=True)
        attributes.unlink(missing_ok=True)


def _documents(path: Path) -> Any:
    with pq.ParquetFile(path) as file:
        for group in range(file.num_row_groups):
            table = file.read_row_group(group, columns=["id", "text", "lang", "domain", "meta"])
            yield from zip(*(column.to_pylist() for column in table.columns), strict=True)


def _decide(
    row: int,
    place: int,
    batch: Batch,
    match: Match | None,
    changed: RowWriter,
    decided: RowWriter,
    keys: KeyCollector,
    signatures: SignatureCollector,
    probes: ProbeCollector,
    dropped: Tally,
) -> None:
    (identifier, text, _, domain, _), cleaned = batch.documents[place], batch.cleaned[place]
    data = batch.encoded[place]
    bytes_in, units_in = len(data), batch.units[place]
    kept = cleaned.text is not None
    if cleaned.text is None:
        digest, bytes_out = _NO_HASH, 0
        dropped.add(cleaned.rule, cleaned.lang, domain, bytes=bytes_in, units=units_in)
    else:
        if edited := cleaned.text != text:
            data = cleaned.text.encode()
        digest, bytes_out = xxhash.xxh3_128_digest(data), len(data)
        keys.add(row, identifier, domain, digest)
        probes.add(signatures.documents, cleaned.lang, digest, cleaned.text, cleaned.units, bytes_out)
        signatures.add(row, identifier, domain, digest, data, len(cleaned.text))
        if edited:
            changed.add(row, cleaned.text, size=bytes_out)
    decided.add(
        row,
        identifier,
        cleaned.rule,
        cleaned.version,
        float(cleaned.score),
        cleaned.detail,
        match.item.name if match is not None else "",
        [list(match.span)] if match is not None else [],
        cleaned.lang,
        cleaned.lang_share,
        domain,
        bytes_in,
        units_in,
        bytes_out,
        cleaned.units if kept else 0,
        digest,
    )
