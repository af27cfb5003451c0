"""Documents and the shards they live in.

A document is immutable text with where it came from. A *document shard* is one Parquet file with the columns
of `SCHEMA`, zstd level 1 (half the time of level 3 for 15 % more bytes), row groups of at most `ROW_GROUP_DOCUMENTS`
documents or `ROW_GROUP_BYTES` of text, written in the order given, so the same documents give the same bytes.

    with DocumentWriter(path) as writer:
        writer.add(Document(id=document_id("web", "a.jsonl", 0), text="...", source="web", lang="en", domain="web"))
    for document in read_documents(path): ...
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from headwater.core.artifacts import MANIFEST, Artifact
from headwater.core.errors import CorruptArtifactError, InputError
from headwater.core.parquet import parquet_writer

ROW_GROUP_DOCUMENTS = 4096
ROW_GROUP_BYTES = 8 << 20

SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("text", pa.large_string()),
        ("source", pa.string()),
        ("lang", pa.string()),
        ("domain", pa.string()),
        ("url", pa.string()),
        ("license", pa.string()),
        ("meta", pa.string()),  # JSON object, keys sorted
    ]
)

SPLITS = ("train", "validation", "test")
_SHARD_NAME = re.compile(r"(?P<domain>.+)-\d{5,}\.parquet")


def document_id(source: str, relative_path: str, position: int) -> str:
    """128-bit id, 32 hex digits: hash of source, path relative to the source's root, and position.

    `position` is the offset in the decompressed stream or the row number; both are stable when an earlier
    stage drops rows. The content plays no part: see `content_hash`.
    """
    key = b"\x00".join((source.encode(), relative_path.encode("utf-8", "surrogateescape"), str(position).encode()))
    return xxhash.xxh3_128_hexdigest(key)


def content_hash(text: str) -> str:
    """128-bit hash of the text's UTF-8 bytes, 32 hex digits."""
    return xxhash.xxh3_128_hexdigest(text.encode("utf-8", "surrogatepass"))


@dataclass(frozen=True, slots=True)
class Document:
    """One text and where it came from. `lang` is an ISO 639-1 code, a programming language, or "" if unknown."""

    id: str
    text: str
    source: str
    lang: str = ""
    domain: str = "other"
    url: str = ""
    license: str = ""
    meta: dict[str, Any] = field(default_factory=dict)


def shard_writer(path: Path) -> pq.ParquetWriter:
    """What writes a document shard's row groups."""
    return parquet_writer(path, SCHEMA, dictionaries=["source", "lang", "domain", "license"], checksums=True)


def document_columns(rows: Sequence[Document]) -> dict[str, list[str]]:
    """The columns of `SCHEMA`."""
    columns = {name: [getattr(row, name) for row in rows] for name in SCHEMA.names if name != "meta"}
    return columns | {"meta": [orjson.dumps(row.meta, option=orjson.OPT_SORT_KEYS).decode() for row in rows]}


class DocumentWriter:
    """Writes one document shard; rows in the order added; the file is complete after `close`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.documents = 0
        self.text_bytes = 0
        self._rows: list[Document] = []
        self._pending_bytes = 0
        self._writer = shard_writer(path)

    def add(self, document: Document) -> None:
        size = len(document.text.encode("utf-8", "surrogatepass"))
        self._rows.append(document)
        self._pending_bytes += size
        self.documents += 1
        self.text_bytes += size
        if len(self._rows) >= ROW_GROUP_DOCUMENTS or self._pending_bytes >= ROW_GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        if not self._rows:
            return
        self._writer.write_table(pa.table(document_columns(self._rows), schema=SCHEMA))
        self._rows.clear()
        self._pending_bytes = 0

    def close(self) -> None:
        """Flush the last rows and fsync the file."""
        self._flush()
        self._writer.close()
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def __enter__(self) -> DocumentWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self._writer.close()


def read_documents(path: Path) -> Iterator[Document]:
    """Stream a shard in order; memory is bounded by one row group. CorruptArtifactError for a damaged one."""
    for table in row_groups(path):
        for row in table.to_pylist():
            row["meta"] = orjson.loads(row["meta"])
            yield Document(**row)


def row_groups(
    path: Path, columns: Sequence[str] = tuple(SCHEMA.names), groups: Sequence[int] | None = None
) -> Iterator[pa.Table]:
    """Tables of columns of a shard, all row groups or those given. CorruptArtifactError for a damaged shard, InputError
    for Parquet of other columns."""
    try:
        file = pq.ParquetFile(path, page_checksum_verification=True)
        absent = [name for name in columns if name not in file.schema_arrow.names]
        if absent:
            raise InputError(
                f"not a document shard: it has no column {absent[0]!r}",
                where=str(path),
                mend="let `headwater curate` read the file first, which takes any Parquet with a text column",
            )
        for group in range(file.num_row_groups) if groups is None else groups:
            yield file.read_row_group(group, columns=list(columns))
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # Arrow's complaints of content have no number
            raise
        raise CorruptArtifactError(
            f"damaged: {error}", where=str(path), mend="remove the stage's folder and run again, or restore the file"
        ) from error


class Corpus:
    """Curated documents on disk: `SPLIT/DOMAIN-00000.parquet`, in the order of split, domain, shard number.

    corpus = Corpus.open(artifact)
    for document in corpus.documents("train", "web"): ...
    """

    def __init__(self, root: Path, shards: dict[str, dict[str, list[Path]]]) -> None:
        self.root = root
        self._shards = shards

    @classmethod
    def open(cls, source: Path | Artifact) -> Corpus:
        """From a `curate` artifact, its folder, or any folder that holds SPLIT/DOMAIN-NUMBER.parquet (below `corpus/`
        or directly). Raises InputError if there are no such files."""
        if isinstance(source, Artifact):
            root, names = source.path / "corpus", source.files("corpus/")
            paths = [source.path / name for name in names]
        elif (Path(source) / MANIFEST).is_file():
            return cls.open(Artifact.open(Path(source)))
        else:
            root = Path(source) / "corpus" if (Path(source) / "corpus").is_dir() else Path(source)
            paths = [path for split in SPLITS for path in sorted((root / split).glob("*.parquet"))]
        found: dict[str, dict[str, list[Path]]] = {}
        for path in sorted(paths, key=lambda path: (len(path.name), path.name)):  # -99999 comes before -100000
            match = _SHARD_NAME.fullmatch(path.name)
            if match is not None and path.parent.parent == root and path.parent.name in SPLITS:
                found.setdefault(path.parent.name, {}).setdefault(match["domain"], []).append(path)
        if not found and isinstance(source, Artifact) and source.counts.get("documents") == 0:
            raise InputError(
                "curation kept no document",
                where=str(source.path),
                mend="report.json there says why each went: see curate.language.accepted, curate.clean.min_characters",
            )
        if not found:
            raise InputError(
                "no corpus here: there is no SPLIT/DOMAIN-00000.parquet",
                where=str(root),
                mend="give the folder of a finished curate stage (`headwater curate` makes one)",
            )
        return cls(root, found)

    @property
    def splits(self) -> tuple[str, ...]:
        """Of train, validation, test those that have documents."""
        return tuple(split for split in SPLITS if split in self._shards)

    def domains(self, split: str) -> tuple[str, ...]:
        """Sorted names; empty for a split without documents. Raises InputError for a name that is no split."""
        return tuple(sorted(self._split(split)))

    def shards(self, split: str, domain: str | None = None) -> list[Path]:
        """Files of a split, or of one domain of it. Raises InputError for an unknown split or domain."""
        domains = self._split(split)
        if domain is not None and domain not in domains:
            raise InputError(
                f"the {split} split has no domain {domain!r}",
                where=str(self.root),
                mend="it has " + (", ".join(sorted(domains)) or "no documents at all"),
            )
        return [path for name in sorted(domains) if domain in (None, name) for path in domains[name]]

    def documents(self, split: str, domain: str | None = None) -> Iterator[Document]:
        """Stream documents in order; memory is bounded by one row group."""
        for path in self.shards(split, domain):
            yield from read_documents(path)

    def _split(self, split: str) -> dict[str, list[Path]]:
        if split not in SPLITS:
            raise InputError(f"{split!r} is no split", where=str(self.root), mend=f"give one of {', '.join(SPLITS)}")
        return self._shards.get(split, {})
