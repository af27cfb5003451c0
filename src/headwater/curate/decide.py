"""First step of curation, shard by shard: clean every document and write down what was decided.

In: one document shard. Out: its `attributes/clean`, the texts cleaning changed, and the keys that exact deduplication
compares. Nothing here looks beyond the shard.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import xxhash

from headwater.core.files import disk_errors
from headwater.core.shards import ShardFolder
from headwater.core.units import count_units
from headwater.curate.attributes import CLEAN, TEXTS, RowWriter, clean_name, texts_name
from headwater.curate.clean import clean_document
from headwater.curate.config import CurateConfig
from headwater.curate.counts import Tally
from headwater.curate.exact import KeyCollector, keys_name, local_name

_NO_HASH = bytes(16)


@dataclass(frozen=True, slots=True)
class DecideTask:
    """One document shard, by path and name, and where to write."""

    documents: Path
    name: str
    config: CurateConfig
    out: ShardFolder


def decide_shard(task: DecideTask) -> dict[str, Any]:
    """Decide about every document of a shard, unless that was done. Returns the facts of its attributes:
    `dropped` (rule|lang|domain -> documents, bytes, units) and `documents`."""
    names = [texts_name(task.name), keys_name(task.name), local_name(task.name), clean_name(task.name)]
    found = [task.out.done(name) for name in names]
    if all(found) and found[-1] is not None:
        return found[-1]
    texts, attributes = task.out.temp(names[0]), task.out.temp(names[3])
    dropped = Tally()
    keys = KeyCollector(task.config.dedup)
    rows = 0
    try:
        with (
            disk_errors(attributes),
            RowWriter(texts, TEXTS, level=1) as changed,
            RowWriter(attributes, CLEAN) as decided,
        ):
            for rows, document in enumerate(_documents(task.documents), start=1):
                _decide(rows - 1, document, task.config, changed, decided, keys, dropped)
        task.out.finish(names[0], texts)
        keys.write(task.out, task.name)
        return task.out.finish(names[3], attributes, documents=rows, dropped=dropped.rows)
    finally:
        texts.unlink(missing_ok=True)
        attributes.unlink(missing_ok=True)


def _documents(path: Path) -> Any:
    with pq.ParquetFile(path) as file:
        for group in range(file.num_row_groups):
            table = file.read_row_group(group, columns=["id", "text", "lang", "domain", "meta"])
            yield from zip(*(column.to_pylist() for column in table.columns), strict=True)


def _decide(
    row: int,
    document: tuple[str, str, str, str, str],
    config: CurateConfig,
    changed: RowWriter,
    decided: RowWriter,
    keys: KeyCollector,
    dropped: Tally,
) -> None:
    identifier, text, lang, domain, meta = document
    bytes_in = len(text.encode())
    cleaned = clean_document(text, lang=lang, domain=domain, config=config, extracted='"extractor"' in meta)
    kept = cleaned.text is not None
    units_in = cleaned.units if cleaned.text == text else count_units(text)
    if cleaned.text is None:
        digest, bytes_out = _NO_HASH, 0
        dropped.add(cleaned.rule, cleaned.lang, domain, bytes=bytes_in, units=units_in)
    else:
        data = cleaned.text.encode()
        digest, bytes_out = xxhash.xxh3_128_digest(data), len(data)
        keys.add(row, identifier, domain, digest)
        if cleaned.text != text:
            changed.add(row, cleaned.text, size=bytes_out)
    decided.add(
        row,
        identifier,
        cleaned.rule,
        cleaned.version,
        float(cleaned.score),
        cleaned.detail,
        cleaned.lang,
        cleaned.lang_share,
        domain,
        bytes_in,
        units_in,
        bytes_out,
        cleaned.units if kept else 0,
        digest,
    )
