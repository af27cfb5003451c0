"""A curated corpus as plain files for others: Parquet or JSON Lines, a file a shard, in the corpus's order.

export_corpus(Path("workspace/curate/0123456789abcdef"), Path("out"), "jsonl")
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

from headwater.core.documents import Corpus, read_documents, row_groups
from headwater.core.errors import InputError
from headwater.core.files import atomic_write, disk_errors, fsync_file
from headwater.core.jsonl import canonical_json, pretty_json
from headwater.core.progress import SILENT, Reporter

COLUMNS = ("id", "text", "source", "lang", "domain", "url", "license", "meta")
Format = Literal["parquet", "jsonl"]


def export_corpus(
    corpus: Path,
    out: Path,
    format: Format,
    *,
    splits: Sequence[str] = (),
    domains: Sequence[str] = (),
    reporter: Reporter = SILENT,
) -> dict[str, Any]:
    """Write `OUT/SPLIT/DOMAIN-00000.parquet` or `.jsonl.zst` and `export.json`; returns the latter.

    Parquet has a column a field and `meta` as JSON text; JSON Lines a row a document, `meta` an object. The same corpus
    gives the same bytes. Raises InputError for an `out` that is not empty, or splits and domains that are not there.
    """
    opened = Corpus.open(corpus)
    wanted = tuple(splits) or opened.splits
    if out.exists() and any(out.iterdir()):
        raise InputError("the folder is not empty", where=str(out), mend="give another --out")
    files: list[dict[str, Any]] = []
    for split in wanted:
        have = opened.domains(split)
        if not have:
            raise InputError(
                f"the corpus has no {split} split", where=str(corpus), mend=f"it has {', '.join(opened.splits)}"
            )
        for domain in domains or have:
            for path in opened.shards(split, domain):
                name = f"{split}/{path.stem}.{'parquet' if format == 'parquet' else 'jsonl.zst'}"
                target = out / name
                target.parent.mkdir(parents=True, exist_ok=True)
                with disk_errors(target):
                    rows = _parquet(path, target) if format == "parquet" else _jsonl(path, target)
                fsync_file(target)
                files.append({"name": name, "split": split, "domain": domain, "documents": rows})
                reporter.info(f"{name}: {rows:,} documents")
    report = {"format": format, "documents": sum(file["documents"] for file in files), "files": files}
    atomic_write(out / "export.json", pretty_json(report))
    return report


def _parquet(path: Path, target: Path) -> int:
    rows = 0
    schema = pa.schema([(name, pa.large_string() if name == "text" else pa.string()) for name in COLUMNS])
    with pq.ParquetWriter(target, schema, compression="zstd") as writer:
        for table in row_groups(path, COLUMNS):
            writer.write_table(table.cast(schema))
            rows += table.num_rows
    return rows


def _jsonl(path: Path, target: Path) -> int:
    rows = 0
    with open(target, "wb") as file, zstandard.ZstdCompressor(level=3).stream_writer(file) as stream:
        for document in read_documents(path):
            stream.write(canonical_json({name: getattr(document, name) for name in COLUMNS}) + b"\n")
            rows += 1
    return rows
