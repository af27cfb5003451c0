"""Curation straight on files: what `headwater curate INPUTS... --out DIR` does, without recipe or workspace.

In: files and folders of any kind `collect` reads. Out, in DIR: `kept.jsonl.zst`, `removed.jsonl.zst`,
`quarantine.jsonl` and `report.json`. A killed run goes on where it was.

    summary = curate_files([Path("raw.jsonl")], Path("clean"), CurateConfig(language={"accepted": ["zh"]}))
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import orjson
import zstandard

from headwater.core.artifacts import ArtifactStore, ArtifactWriter, fingerprint
from headwater.core.config import identity
from headwater.core.documents import read_documents
from headwater.core.errors import InputError
from headwater.core.executor import Executor, InlineExecutor
from headwater.core.files import TEMP_PREFIX, disk_errors, fsync_dir, fsync_file, temp_path
from headwater.core.jsonl import plain_json
from headwater.core.progress import SILENT, Reporter
from headwater.core.shards import ShardFolder
from headwater.core.stage import StageContext
from headwater.curate.attributes import decisions_name, read_rows, texts_name
from headwater.curate.config import CollectConfig, CurateConfig, SourceConfig, SplitConfig
from headwater.curate.consolidate import removed_rows, row_cuts, without
from headwater.curate.decisions import decide_corpus
from headwater.curate.dedup.rows import KEPT, REMOVED, REPORT, visible_files
from headwater.curate.identity import curate_digests, raw_inputs
from headwater.curate.records import QUARANTINE
from headwater.curate.report import curation_report
from headwater.curate.results import finished, write_report
from headwater.curate.sift import asked
from headwater.curate.stage import collect_into, in_order
from headwater.curate.texts import ChangedTexts

VERSION = 4
EVIDENCE = ("action", "rule", "version", "score", "spans", "spans_total", "detail")
_WORK, _STAGE = ".work", "curate-files"


@dataclass(frozen=True, slots=True)
class FileOptions:
    """How input files are read and rows written back.

    `rewrite_text` puts the cleaned text into the text field itself; otherwise every field stays as it was, and a text
    that cleaning changed is in `clean_text` beside it.
    """

    kind: str = "auto"
    text_field: str = "text"
    id_field: str = "id"
    lang: str = ""
    domain: str = ""
    rewrite_text: bool = False


def curate_files(
    inputs: Sequence[Path],
    out: Path,
    config: CurateConfig | None = None,
    *,
    options: FileOptions | None = None,
    executor: Executor | None = None,
    reporter: Reporter = SILENT,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Clean, filter by language and deduplicate files; returns the content of `report.json`.

    `kept.jsonl.zst` has the rows that stay, in the order of path and position, every field unchanged, with `id` added
    where a row has none and `clean_text` where cleaning changed the text; a document that is no row of its own (text,
    web page) becomes one. `removed.jsonl.zst` has id, action, rule, version, score, kept_id, spans, detail and path of
    the others, and `document` and `kept_document`, which are ids that no two documents share. `config.split` and
    `config.shard_bytes` play no part.

    Raises InputError for inputs that are not there, UserError for a rule that is none; without `overwrite` UserError if
    `out` holds another result, and InputError if the one of the same call is damaged.
    """
    config, options = config or CurateConfig(), options or FileOptions()
    config = config.model_copy(update={"split": SplitConfig(validation=0.0)})
    collect = _collect_config(inputs, options)
    asked(config.quality)  # a rule that is none is said before anything is written
    raw, named = raw_inputs(collect), curate_digests(config)
    key = fingerprint(
        _STAGE, VERSION, [identity(collect), identity(config), options.rewrite_text], {"raw": raw, **named}
    )
    begun = (out / _WORK / _STAGE / f"{key}.partial").exists()  # killed, perhaps between one result and the next
    if (report := finished(out, key, overwrite=overwrite, begun=begun)) is not None:
        return report
    with disk_errors(out):
        out.mkdir(parents=True, exist_ok=True)
    work = out / _WORK
    store = ArtifactStore(work)
    with store.writer(_STAGE, key, version=VERSION, identity={}, inputs={}) as writer:
        context = StageContext(work, executor or InlineExecutor(), reporter)
        report = {"verb": "curate", **_run(writer, collect, config, options, out, context)}
        report["made_from"] = {
            "raw": raw,
            "named": named,
            "collect": plain_json(collect.model_dump(mode="json")),
            "curate": plain_json(config.model_dump(mode="json")),
            "options": asdict(options),
        }
        report = write_report(out, key, report)
        shutil.rmtree(writer.dir)
    if not store.partial(_STAGE):
        shutil.rmtree(work)
    return report


def _collect_config(inputs: Sequence[Path], options: FileOptions) -> CollectConfig:
    if not inputs:
        raise InputError("no input files", mend="name at least one file or folder")
    places = [Path(os.path.abspath(path)) for path in inputs]
    for path in places:
        if not path.exists():
            raise InputError("no such file or folder", where=str(path), mend="check the path")
        if path.is_dir() and next(visible_files(path), None) is None:
            raise InputError("no file to read in this folder", where=str(path), mend="hidden files are not read")
    root = Path(os.path.commonpath([path.parent for path in places]))
    source = SourceConfig(
        name="input",
        kind=options.kind,  # type: ignore[arg-type]  # checked by the section
        paths=tuple(path.relative_to(root).as_posix() for path in places),
        text_field=options.text_field,
        id_field=options.id_field,
        lang=options.lang,
        domain=options.domain,
        keep_rows=True,
    )
    return CollectConfig(root=str(root), sources=(source,))


def _run(
    writer: ArtifactWriter,
    collect: CollectConfig,
    config: CurateConfig,
    options: FileOptions,
    out: Path,
    context: StageContext,
) -> dict[str, Any]:
    shards_out = ShardFolder(writer.dir)
    done = shards_out.done(QUARANTINE)
    counts = done["counts"] if done else collect_into(shards_out, collect, context)
    documents = {name: shards_out.done(name) or {} for name in shards_out.shards() if name.startswith("documents/")}
    shards = in_order(shards_out.dir, documents)
    outcome = decide_corpus(config, shards, shards_out, context)
    own_ids = _own_ids(shards_out, shards)
    for left in out.glob(f"{TEMP_PREFIX}*"):  # by a run that was killed
        left.unlink(missing_ok=True)
    (out / REPORT).unlink(missing_ok=True)  # from here on the folder holds no older result
    with _JsonlZst(out / KEPT) as kept, _JsonlZst(out / REMOVED) as removed:
        for name, path in shards:
            _write_shard(name, path, shards_out, options, own_ids, kept, removed)
    shutil.copyfile(shards_out.dir / QUARANTINE, out / QUARANTINE)
    return {**curation_report(outcome), "collected": counts}


def _own_ids(folder: ShardFolder, shards: Sequence[tuple[str, Path]]) -> dict[str, Any]:
    """Document id -> the row's own id, of the documents that duplicates were removed in favour of."""
    wanted = {row["kept_id"] for name, _ in shards for row in read_rows(folder.dir / decisions_name(name), ["kept_id"])}
    found: dict[str, Any] = {}
    if wanted:
        for _, path in shards:
            for row in read_rows(path, ["id", "meta"]):
                if row["id"] in wanted:
                    found[row["id"]] = orjson.loads(row["meta"]).get("row_id", row["id"])
    return found


class _JsonlZst:
    """A JSON Lines file, compressed, that is there whole or not at all."""

    def __init__(self, path: Path) -> None:
        self.path, self.temp = path, temp_path(path)

    def __enter__(self) -> _JsonlZst:
        self._file = open(self.temp, "wb")
        self._stream = zstandard.ZstdCompressor(level=3).stream_writer(self._file, closefd=False)
        return self

    def write(self, line: bytes) -> None:
        with disk_errors(self.path):
            self._stream.write(line + b"\n")

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        try:
            with disk_errors(self.path):
                self._stream.close()
                self._file.close()
                if kind is None:
                    fsync_file(self.temp)
                    os.replace(self.temp, self.path)
                    fsync_dir(self.path.parent)
        finally:
            self.temp.unlink(missing_ok=True)


def _write_shard(
    name: str,
    path: Path,
    folder: ShardFolder,
    options: FileOptions,
    own_ids: dict[str, Any],
    kept: _JsonlZst,
    removed: _JsonlZst,
) -> None:
    why = _by_row(removed_rows(folder, name))
    row, reasons = next(why, (-1, []))
    changed, cuts = ChangedTexts(folder.dir / texts_name(name)), row_cuts(folder.dir / decisions_name(name))
    for number, document in enumerate(read_documents(path)):
        own = document.meta.get("row_id", document.id)
        if number == row:
            for reason in reasons:
                line = {"id": own, **{key: reason[key] for key in EVIDENCE}}
                line["kept_id"] = own_ids.get(reason["kept_id"], reason["kept_id"]) or None
                line |= {"document": document.id, "kept_document": reason["kept_id"]}
                removed.write(orjson.dumps({**line, "path": document.meta["path"]}))
            gone = any(reason["action"] == "remove" for reason in reasons)
            row, reasons = next(why, (-1, []))
            if gone:
                continue
        found = changed.get(number)
        cleaned = document.text if found is None else str(found, "utf-8")
        if number in cuts:
            cleaned = without(cleaned.encode(), cuts[number]).decode()
        if "row" in document.meta:
            kept.write(_row(document.meta["row"], own, cleaned, document.text, options))
        else:
            fields = {"id": document.id, "text": cleaned, "path": document.meta["path"], "url": document.url}
            extra = {key: document.meta[key] for key in ("title", "encoding") if document.meta.get(key)}
            kept.write(orjson.dumps({**fields, **extra}))


def _by_row(rows: Iterator[dict[str, Any]]) -> Iterator[tuple[int, list[dict[str, Any]]]]:
    for number, mine in groupby(rows, key=lambda row: int(row["row"])):
        yield number, list(mine)


def _row(line: str, own: Any, cleaned: str, text: str, options: FileOptions) -> bytes:
    """An input row as it is written back; its own bytes stay untouched unless a field of it must change."""
    row = json.loads(line)
    if cleaned == text and "id" in row:
        return line.encode()
    if options.rewrite_text or "clean_text" in row:
        if cleaned != text:
            row[options.text_field if options.rewrite_text else "clean_text"] = cleaned
        return json.dumps({"id": own, **row}, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
    start = "{" if "id" in row else f'{{"id":{orjson.dumps(own).decode()},'
    end = "}" if cleaned == text else f',"clean_text":{orjson.dumps(cleaned).decode()}}}'
    return f"{start}{line[1:-1]}{end}".encode()
