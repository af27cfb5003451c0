"""Deduplication of files: rows in, `kept.jsonl.zst`, `removed.jsonl.zst` and `report.json` out.

Kept rows are the input's bytes, in the input's order; rows whose text was cut by `ngram` differ in that field alone.
Removed rows say id, rule, version, score, kept_id and spans. All three files appear at the end, or not at all.

    report = dedup_files([Path("web.jsonl.zst")], Path("out"), against=[Path("corpus")])
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headwater.core.artifacts import fingerprint
from headwater.core.errors import InputError
from headwater.core.progress import SILENT, Bar, Reporter
from headwater.curate.dedup.engine import Batch, Decisions, DocumentDedup, domain_class
from headwater.curate.dedup.passages import PassageDedup, Passages
from headwater.curate.dedup.rows import (
    KEPT,
    REMOVED,
    REPORT,
    BadRow,
    Fields,
    RowSource,
    RowWriter,
    dump,
    empty_files,
    find_files,
    row_counts,
)
from headwater.curate.dedup.settings import VERSION, DedupSettings
from headwater.curate.dedup.spool import Spool
from headwater.curate.dedup.tokens import characters_before
from headwater.curate.dedup.workplace import begun, workplace
from headwater.curate.readers.jsonl import parse_object
from headwater.curate.records import QUARANTINE
from headwater.curate.results import commit, contents, finished, write_report

BATCH_BYTES = 8 << 20
BATCH_ROWS = 8192
UNCUT_DOMAINS = ("code",)
"""Cutting a passage out of a program breaks it: its documents go whole or stay."""

LISTED_BAD = 20


@dataclass
class _Inputs:
    """What was read: files, and for each row its group (domain, language) and place."""

    sources: list[RowSource]
    against: list[RowSource]
    first_rows: list[int] = field(default_factory=list)
    groups: dict[tuple[str, str], int] = field(default_factory=dict)
    group_of: list[NDArray[np.uint32]] = field(default_factory=list)
    lines: list[NDArray[np.uint32]] = field(default_factory=list)

    @property
    def bad(self) -> list[BadRow]:
        return [bad for source in (*self.sources, *self.against) for bad in source.bad]


def dedup_files(
    inputs: Sequence[Path | str],
    out: Path | str,
    *,
    against: Sequence[Path | str] = (),
    settings: DedupSettings | None = None,
    reporter: Reporter = SILENT,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Deduplicate rows of JSON Lines or Parquet files and folders; returns what `report.json` holds. What was done
    before is not done again.

    Rows of `against` are compared with, and never removed. Raises InputError for paths that cannot be read and for an
    `out` that is among the inputs, UserError for settings and, without `overwrite`, for an `out` with another result,
    DiskSpaceError when the disk is full. Temporary files of about the size of the texts lie in `out` while it runs.
    """
    settings, out = settings or DedupSettings(), Path(out)
    fields = Fields(settings.text_field, settings.id_field, settings.domain_field)
    files, others = find_files([Path(path) for path in inputs]), find_files([Path(path) for path in against])
    refuse_overwriting([*files, *others], out)
    made_from = contents([*files, *others])
    said = {"settings": settings.to_json(), "inputs": [*map(str, files)], "against": [*map(str, others)]}
    key = fingerprint("dedup", VERSION, said, made_from)
    if (report := finished(out, key, overwrite=overwrite, begun=begun(out, key))) is not None:
        return report
    read = _Inputs([RowSource(path, fields) for path in files], [RowSource(path, fields) for path in others])
    with workplace(out, key) as place, Spool(place) as spool:
        engine = DocumentDedup(settings, place, spool, frozen_classes=1)
        try:
            with reporter.progress("read and hash", unit="rows") as bar:
                engine.add_all(_batches(read, settings, bar))
            decisions, row_of = engine.decide()
            reporter.info(f"{decisions.removed.size:,} of {row_of.size:,} documents are duplicates")
            passages = _passages(settings, place, spool, decisions, row_of, read)
            report = _write(out, place, settings, read, spool, engine, decisions, passages, reporter)
            return write_report(
                out, key, {"verb": "dedup", "version": VERSION, **said, **report, "contents": made_from}
            )
        finally:
            engine.close()


def refuse_overwriting(files: Sequence[Path], out: Path) -> None:
    """Raises InputError if a file that is read would be replaced."""
    for path in files:
        if path.resolve() in {(out / name).resolve() for name in (KEPT, REMOVED, REPORT, QUARANTINE)}:
            raise InputError("this input would be replaced by the output", where=str(path), mend="give another --out")


def _batches(read: _Inputs, settings: DedupSettings, bar: Bar) -> Iterator[Batch]:
    """Rows of `against` first, then of the inputs, a few megabytes at a time."""
    total = 0
    for frozen, sources in ((True, read.against), (False, read.sources)):
        texts: list[bytes] = []
        ids: list[bytes] = []
        classes: list[int] = []
        size = 0
        for source in sources:
            read.first_rows.append(total)
            groups, lines = array("I"), array("I")  # four bytes a row, not a Python number
            for row in source.rows():
                total += 1
                texts.append(row.text)
                ids.append(row.id.encode("utf-8", "surrogatepass"))
                classes.append(0 if frozen else domain_class(row.domain, settings.priority))
                groups.append(read.groups.setdefault((row.domain, row.lang), len(read.groups)))
                lines.append(row.line)
                size += len(row.text)
                if size >= BATCH_BYTES or len(texts) >= BATCH_ROWS:
                    yield Batch(texts, ids, classes)
                    bar.advance(len(texts))
                    texts, ids, classes, size = [], [], [], 0
            read.group_of.append(np.frombuffer(groups, np.uint32))
            read.lines.append(np.frombuffer(lines, np.uint32))
        if texts:
            yield Batch(texts, ids, classes)
    read.first_rows.append(total)


def _passages(
    settings: DedupSettings,
    place: Path,
    spool: Spool,
    decisions: Decisions,
    row_of: NDArray[np.uint32],
    read: _Inputs,
) -> Passages | None:
    if "ngram" not in settings.methods or not row_of.size:
        return None
    by_row = np.ones(row_of.size, np.uint8)
    by_row[decisions.removed] = 0
    frozen = read.first_rows[len(read.against)]
    return PassageDedup(settings, place, spool, row_of, by_row[row_of], frozen).run()


class _Evidence:
    """Rows of removed.jsonl, made in the order of rows."""

    def __init__(self, read: _Inputs, spool: Spool) -> None:
        self.read, self.spool = read, spool
        self.frozen = read.first_rows[len(read.against)]
        self.lines = np.concatenate([*read.lines, np.empty(0, np.uint32)])
        self.files = [str(source.path) for source in (*read.against, *read.sources)]

    def row(
        self, action: str, rule: str, row: int, kept: int, score: float, spans: list[Any], total: int
    ) -> dict[str, Any]:
        name, kept_name = self.spool.ids(np.array([row, kept]))
        file, line = self._place(row)
        kept_file, kept_line = self._place(kept)
        return {
            "id": name,
            "action": action,
            "rule": rule,
            "version": VERSION,
            "score": score,
            "kept_id": kept_name,
            "kept_in": "against" if kept < self.frozen else "inputs",
            "spans": spans,
            "spans_total": total,
            "file": file,
            "line": line,
            "kept_file": kept_file,
            "kept_line": kept_line,
        }

    def _place(self, row: int) -> tuple[str, int]:
        """File and line of a row."""
        file = int(np.searchsorted(self.read.first_rows, row, side="right")) - 1
        return self.files[file], int(self.lines[row])


def _write(
    out: Path,
    place: Path,
    settings: DedupSettings,
    read: _Inputs,
    spool: Spool,
    engine: DocumentDedup,
    decisions: Decisions,
    passages: Passages | None,
    reporter: Reporter,
) -> dict[str, Any]:
    evidence = _Evidence(read, spool)
    cuts = _Cuts(settings, passages, evidence, read) if passages is not None else None
    rules: dict[str, list[int]] = {}
    gone = np.zeros(spool.documents, np.uint8)
    with RowWriter(out / KEPT, place) as kept, RowWriter(out / REMOVED, place) as removed:
        for removal in engine.evidence(decisions):
            gone[removal.row] = 1
            _count(rules, removal.rule, spool, removal.row)
            removed.write_object(
                evidence.row(
                    "remove", removal.rule, removal.row, removal.kept_row, removal.score, [*removal.spans],
                    removal.spans_total,
                )
            )  # fmt: skip
        if cuts is not None:
            for row, value in cuts.evidence():
                removed.write_object(value)
                if value["action"] == "remove":
                    gone[row] = 1
                    _count(rules, value["rule"], spool, row)
        row = evidence.frozen
        with reporter.progress("write", total=spool.documents - row, unit="rows") as bar:
            for source in read.sources:
                for _, data in source.again():
                    if not gone[row]:
                        kept.write(cuts.apply(row, data, settings.text_field) if cuts is not None else data)
                    row += 1
                    bar.advance(1)
        report = _report(read, spool, engine.units(), decisions, gone, rules, cuts)
        commit(kept, removed, read.bad, out)
    return report


def _count(rules: dict[str, list[int]], rule: str, spool: Spool, row: int) -> None:
    count = rules.setdefault(rule, [0, 0])
    count[0] += 1
    count[1] += int(spool.offsets[row + 1] - spool.offsets[row])


class _Cuts:
    """What `ngram` found, as evidence and as changed texts."""

    def __init__(self, settings: DedupSettings, passages: Passages, evidence: _Evidence, read: _Inputs) -> None:
        self.settings, self.passages, self._evidence = settings, passages, evidence
        self.cutting = settings.passages == "cut"
        groups = np.concatenate([*read.group_of, np.empty(0, np.uint32)])
        uncut = [number for (domain, _), number in read.groups.items() if domain in UNCUT_DOMAINS]
        self._uncut = np.isin(groups, uncut)
        self._whole = dict(zip(passages.whole.tolist(), passages.shares.tolist(), strict=True))
        self._by_row: dict[int, slice] = {}
        borders = np.flatnonzero(np.diff(passages.rows, prepend=-1, append=-1)) if passages.rows.size else np.array([0])
        for begin, end in zip(borders[:-1].tolist(), borders[1:].tolist(), strict=True):
            self._by_row[int(passages.rows[begin])] = slice(begin, end)
        self.counts = {"passages": 0, "documents": 0, "bytes": 0, "cut_bytes": 0}

    def evidence(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """(row, row of evidence), one for each document that goes and one for each passage of the others."""
        found, spool = self.passages, self._evidence.spool
        for row in sorted(self._by_row):
            part = self._by_row[row]
            spans = self._characters(row, part)
            if row in self._whole:
                share = self._whole[row]
                kept = int(np.bincount(found.kept_rows[part]).argmax())
                listed = [span for span, other in zip(spans, found.kept_rows[part], strict=True) if other == kept]
                most = self.settings.spans
                action = "remove" if self.cutting else "report"
                yield (
                    row,
                    self._evidence.row(
                        action, "ngram-document", row, kept, round(share, 4), listed[:most], len(listed)
                    ),
                )
                continue
            action = "cut" if self.cutting and not self._uncut[row] else "report"
            self.counts["documents"] += 1
            for index, span in zip(range(part.start, part.stop), spans, strict=True):
                rule = "ngram-repeat" if found.adjacent[index] else "ngram-passage"
                self.counts["passages"] += 1
                size = int(found.ends[index] - found.starts[index])
                self.counts["bytes"] += size
                self.counts["cut_bytes"] += size if action == "cut" else 0
                yield row, self._evidence.row(action, rule, row, int(found.kept_rows[index]), 1.0, [span], 1)
        spool.release()

    def sizes(self, rows: int) -> NDArray[np.int64]:
        """Bytes that are cut from each row that stays, int64 [rows]."""
        found = np.zeros(rows, np.int64)
        if self.cutting:
            for row, part in self._by_row.items():
                if row not in self._whole and not self._uncut[row]:
                    found[row] = (self.passages.ends[part] - self.passages.starts[part]).sum()
        return found

    def _characters(self, row: int, part: slice) -> list[list[int]]:
        """Spans in characters."""
        found, spool = self.passages, self._evidence.spool
        counts = {row: characters_before(spool.bytes_of(row))}
        spans = []
        for index in range(part.start, part.stop):
            other = int(found.kept_rows[index])
            if other not in counts:
                counts = {row: counts[row], other: characters_before(spool.bytes_of(other))}
            spans.append(
                [
                    *(int(counts[row][at[index]]) for at in (found.starts, found.ends)),
                    *(int(counts[other][at[index]]) for at in (found.kept_starts, found.kept_ends)),
                ]
            )
        return spans

    def apply(self, row: int, data: bytes, text_field: str) -> bytes:
        """The row without its cut passages; the same bytes if there are none."""
        part = self._by_row.get(row)
        if part is None or not self.cutting or self._uncut[row]:
            return data
        value = parse_object(data)
        text = value[text_field].encode("utf-8", "surrogatepass")
        pieces, at = [], 0
        for index in range(part.start, part.stop):
            pieces.append(text[at : int(self.passages.starts[index])])
            at = int(self.passages.ends[index])
        value[text_field] = b"".join([*pieces, text[at:]]).decode("utf-8", "surrogatepass")
        return dump(value)


def _report(
    read: _Inputs,
    spool: Spool,
    units: NDArray[np.int32],
    decisions: Decisions,
    gone: NDArray[np.uint8],
    rules: dict[str, list[int]],
    cuts: _Cuts | None,
) -> dict[str, Any]:
    frozen = read.first_rows[len(read.against)]
    sizes = np.diff(spool.offsets)
    groups = np.concatenate([*read.group_of, np.empty(0, np.uint32)])[frozen:]
    kept = gone[frozen:] == 0
    cut = cuts.sizes(sizes.size) if cuts is not None else np.zeros(sizes.size, np.int64)
    by_group = []
    for (domain, lang), number in sorted(read.groups.items()):
        mine = groups == number
        if mine.any():
            by_group.append(
                {
                    "domain": domain,
                    "lang": lang,
                    "documents_in": int(mine.sum()),
                    "documents_kept": int((mine & kept).sum()),
                    "bytes_in": int(sizes[frozen:][mine].sum()),
                    "bytes_kept": int(sizes[frozen:][mine & kept].sum()),
                    "bytes_cut": int(cut[frozen:][mine & kept].sum()),
                    "units_in": int(units[frozen:][mine].sum()),
                    "units_kept": int(units[frozen:][mine & kept].sum()),
                }
            )
    bad = read.bad
    return {
        "rows": {
            **row_counts(read.sources),
            "documents": int(kept.size),
            "kept": int(kept.sum()),
            "removed": int(kept.size - kept.sum()),
            "against": frozen,
        },
        "bytes": {
            "documents": int(sizes[frozen:].sum()),
            "kept_documents": int(sizes[frozen:][kept].sum()),
            "cut_from_kept": int(cut.sum()),
        },
        "units": {"documents": int(units[frozen:].sum()), "kept_documents": int(units[frozen:][kept].sum())},
        "removed_by_rule": {rule: {"documents": count, "bytes": size} for rule, (count, size) in sorted(rules.items())},
        "passages": cuts.counts if cuts is not None else None,
        "groups": by_group,
        "comparisons": decisions.counts,
        "empty_files": empty_files([*read.sources, *read.against]),
        "unusable_examples": [
            {"file": row.file, "line": row.line, "reason": row.reason, "detail": row.detail} for row in bad[:LISTED_BAD]
        ],
    }
