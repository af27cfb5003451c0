"""Collection: raw files in, document shards and a quarantine out.

One worker reads one `ShardPlan` and writes `documents/SOURCE-00000.parquet`, and `documents/SOURCE-00000-001.parquet`
and so on when the text in it is much more than its raw bytes; what it could not read goes to `quarantine.jsonl` with
file, offset, line and reason. Records = documents + quarantined + passed over, exactly, and so do their raw bytes.

What was made of a plan is kept in the workspace, known by the content and names of its files: a source that grows costs
the reading of its new files, and of the few that stand in one plan with them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from headwater.core.artifacts import fingerprint
from headwater.core.config import identity
from headwater.core.documents import Document, DocumentWriter, document_id
from headwater.core.errors import InputError
from headwater.core.files import disk_errors
from headwater.core.jsonl import canonical_json
from headwater.core.rawinput import HashCache, hash_file
from headwater.core.shards import ShardFolder
from headwater.core.units import count_units
from headwater.curate.config import COLLECT_VERSION, CollectConfig
from headwater.curate.readers import read_file
from headwater.curate.readers.share import Share
from headwater.curate.records import DETAIL_CHARACTERS, QUARANTINE, Bad, Item, Record
from headwater.curate.shard_cache import ShardCache
from headwater.curate.sources import ShardPlan, SourceFile, plan_shards

PART = "part"
TEXT_PER_RAW_BYTE = 4
"""A document shard is closed when its text is this many times `shard_bytes`: compressed input expands about so much."""


@dataclass(frozen=True, slots=True)
class CollectTask:
    """One plan to carry out, and the folder to write to."""

    plan: ShardPlan
    out: ShardFolder
    shard_bytes: int
    cache: ShardCache | None = None

    @property
    def text_bytes(self) -> int:
        """Text in a document shard at which it is closed."""
        return TEXT_PER_RAW_BYTE * self.shard_bytes


def part_name(plan: ShardPlan) -> str:
    """A plan's share of the quarantine. It is written last, so it says that the plan is done."""
    return f"parts/{plan.name}.jsonl"


def collect_shard(task: CollectTask) -> dict[str, Any]:
    """Read the plan's files in order and write their documents, unless that was done. Returns the plan's counts."""
    part = part_name(task.plan)
    if (facts := task.out.done(part)) is not None:
        return facts
    if (facts := _restored(task, part)) is not None:
        return facts
    counts = Counts()
    quarantine = task.out.temp(part)
    shards = _Shards(task)
    try:
        with disk_errors(quarantine), open(quarantine, "wb") as rows:
            for file in task.plan.files:
                for document in documents_of(file, task.plan, counts, rows.write):
                    shards.add(document)
            shards.close()
        return finish_plan(task, quarantine, shards.names, counts.facts(task.plan.source.name))
    finally:
        shards.abandon()
        quarantine.unlink(missing_ok=True)


def finish_plan(task: CollectTask, quarantine: Path, shards: Sequence[str], counts: dict[str, Any]) -> dict[str, Any]:
    """Say that the plan's shards are there, and keep them for the next time. Returns the plan's counts."""
    part = part_name(task.plan)
    facts = task.out.finish(part, quarantine, shards=list(shards), **counts)
    if task.cache is not None:
        task.cache.keep(task.out, {PART: part, **{f"{n:03d}": name for n, name in enumerate(shards)}})
    return facts


def is_known(task: CollectTask) -> bool:
    """Whether what the plan gives is there, or kept in the workspace."""
    return task.out.done(part_name(task.plan)) is not None or (
        task.cache is not None and task.cache.facts() is not None
    )


def _restored(task: CollectTask, part: str) -> dict[str, Any] | None:
    """The plan's counts, if what was made of the same files lies in the workspace; its shards are put in place."""
    kept = task.cache.facts() if task.cache is not None else None
    if task.cache is None or kept is None:
        return None
    roles = sorted((role for role in kept if role != PART), key=int)
    names = {role: shard_name(task.plan, number) for number, role in enumerate(roles)}
    own: dict[str, dict[str, Any]] = {role: {"order": shard_order(task.plan, n)} for n, role in enumerate(roles)}
    own[PART] = {"shards": list(names.values())}
    made = task.cache.restore(task.out, {**names, PART: part}, own)
    return None if made is None else made[PART]


def plan_key(plan: ShardPlan, shard_bytes: int, cache: HashCache | None) -> str | None:
    """What decides about a plan's documents: its files' contents and names, and how they are read. None if a file
    cannot be read."""
    how = {name: value for name, value in identity(plan.source).items() if name not in ("paths", "fetch")}
    files = []
    try:
        for file in plan.files:
            said = (file.kind, file.named, file.start, file.end, file.license, file.sha256, file.address)
            files.append([_shown(file.relative), *said, hash_file(Path(file.path), cache)])
    except InputError:
        return None
    python = sys.version_info[:3] if plan.source.kind == "python-environment" else ()  # its parser takes it apart
    return fingerprint("collect-plan", COLLECT_VERSION, [how, shard_bytes, files, list(python)], {})


def shard_name(plan: ShardPlan, number: int) -> str:
    return f"documents/{plan.name}{f'-{number:03d}' if number else ''}.parquet"


def shard_order(plan: ShardPlan, number: int) -> list[Any]:
    return [plan.source.name, plan.number, number]


class _Shards:
    """The document shards of one plan, one after the other."""

    def __init__(self, task: CollectTask) -> None:
        self.names: list[str] = []
        self._plan, self._out = task.plan, task.out
        self._limit = task.text_bytes
        self._open()

    def _open(self) -> None:
        self._name = shard_name(self._plan, len(self.names))
        self._temp = self._out.temp(self._name)
        with disk_errors(self._temp):
            self._writer = DocumentWriter(self._temp)

    def add(self, document: Document) -> None:
        if self._writer.text_bytes >= self._limit:
            self.close()
            self._open()
        with disk_errors(self._temp):
            self._writer.add(document)

    def close(self) -> None:
        with disk_errors(self._temp):
            self._writer.close()
        order = shard_order(self._plan, len(self.names))
        self._out.finish(self._name, self._temp, documents=self._writer.documents, order=order)
        self.names.append(self._name)

    def abandon(self) -> None:
        """Remove what a failure left half written."""
        self._temp.unlink(missing_ok=True)


class Counts:
    """What reading adds up to."""

    def __init__(self) -> None:
        self.records = self.raw_bytes = self.documents = self.document_raw_bytes = self.text_bytes = self.units = 0
        self.quarantined: dict[str, list[int]] = {}
        self.passed_over: dict[str, list[int]] = {}
        self.slice_lines: dict[str, int] = {}

    def seen(self, file: SourceFile, item: Item) -> None:
        records = 1 if isinstance(item, Record) else item.records
        self.records += records
        self.raw_bytes += item.raw_bytes
        if file.end:
            self.slice_lines[file.relative] = self.slice_lines.get(file.relative, 0) + records
        if not isinstance(item, Record):
            kinds = self.quarantined if isinstance(item, Bad) else self.passed_over
            row = kinds.setdefault(item.reason.value, [0, 0])
            row[0] += records
            row[1] += item.raw_bytes
            return
        self.documents += 1
        self.document_raw_bytes += item.raw_bytes
        encoded = item.text.encode()
        self.text_bytes += len(encoded)
        self.units += count_units(encoded)

    def add(self, facts: dict[str, Any]) -> None:
        """Add what another reader counted, as `facts` gives it."""
        for number in ("records", "raw_bytes", "documents", "document_raw_bytes", "text_bytes", "units"):
            setattr(self, number, getattr(self, number) + facts[number])
        for name in ("quarantined", "passed_over"):
            for reason, (records, raw_bytes) in facts[name].items():
                row = getattr(self, name).setdefault(reason, [0, 0])
                row[0] += records
                row[1] += raw_bytes

    def facts(self, source: str) -> dict[str, Any]:
        return {
            "source": source,
            "records": self.records,
            "raw_bytes": self.raw_bytes,
            "documents": self.documents,
            "document_raw_bytes": self.document_raw_bytes,
            "text_bytes": self.text_bytes,
            "units": self.units,
            "quarantined": self.quarantined,
            "passed_over": self.passed_over,
            "slice_lines": {_shown(name): lines for name, lines in self.slice_lines.items()},
        }


def _shown(relative: str) -> str:
    """A file name for JSON: bytes that are no UTF-8 become U+FFFD."""
    return os.fsencode(relative).decode("utf-8", "replace")


def documents_of(
    file: SourceFile, plan: ShardPlan, counts: Counts, reject: Callable[[bytes], object], share: Share | None = None
) -> Iterator[Document]:
    """The documents in a file, or in a share of it. Lines for the quarantine go to `reject`."""
    source = plan.source.name
    for item in read_file(file, plan.source, share):
        counts.seen(file, item)
        if isinstance(item, Record):
            yield Document(
                id=document_id(source, file.relative, item.position),
                text=item.text,
                source=source,
                lang=item.lang,
                domain=item.domain or "other",
                url=item.url or file.address,
                license=item.license,
                meta={"path": _shown(file.relative), **item.meta},
            )
        elif isinstance(item, Bad):
            reject(canonical_json(_quarantine_row(source, file, item)) + b"\n")


def read_documents_again(config: CollectConfig) -> Iterator[Document]:
    """The documents of all sources in the stable order, without writing anything; what cannot be read is passed over.
    Raises what `plan_shards` raises."""
    for plan in plan_shards(config):
        for file in plan.files:
            yield from documents_of(file, plan, Counts(), lambda line: None)


def _quarantine_row(source: str, file: SourceFile, item: Bad) -> dict[str, Any]:
    detail = item.detail if len(item.detail) <= DETAIL_CHARACTERS else item.detail[: DETAIL_CHARACTERS - 1] + "…"
    return {
        "source": source,
        "file": _shown(file.relative),
        "offset": item.offset,
        "line": item.line,
        "reason": item.reason.value,
        "detail": detail,
        "records": item.records,
        "bytes": item.raw_bytes,
    }


def write_quarantine(
    out: ShardFolder, plans: Sequence[ShardPlan], facts: Sequence[dict[str, Any]], **more: Any
) -> None:
    """Join the plans' quarantines, in order, into `quarantine.jsonl`, and remove the parts. `more` are its facts."""
    rows = 0
    temp = out.temp(QUARANTINE)
    lines_before: dict[str, int] = {}
    try:
        with disk_errors(temp), open(temp, "wb") as file:
            for plan, fact in zip(plans, facts, strict=True):
                for line in _part_lines(out, plan, lines_before):
                    file.write(line)
                    rows += 1
                for name, lines in fact["slice_lines"].items():
                    key = f"{plan.source.name}/{name}"
                    lines_before[key] = lines_before.get(key, 0) + lines
        out.finish(QUARANTINE, temp, rows=rows, **more)
    finally:
        temp.unlink(missing_ok=True)
    remove_parts(out)


def remove_parts(out: ShardFolder) -> None:
    """Take away the plans' quarantines, which `quarantine.jsonl` holds."""
    for name in out.shards():
        if name.startswith("parts/"):
            out.remove(name)


def _part_lines(out: ShardFolder, plan: ShardPlan, lines_before: dict[str, int]) -> Iterator[bytes]:
    """A part's lines; in slices of a file line numbers are put right by the lines of the slices before."""
    with open(Path(out.dir, part_name(plan)), "rb") as part:
        for line in part:
            if lines_before and plan.files[0].start:
                row = orjson.loads(line)
                if row["line"]:
                    row["line"] += lines_before.get(f"{row['source']}/{row['file']}", 0)
                line = canonical_json(row) + b"\n"
            yield line
