"""What was removed, and the documents it was removed from: of a corpus, or of a folder that a verb on files wrote.

In a row `id` and `kept_id` are keys of documents: ids of a corpus; of files, ids made as collection makes them, or the
file and line; `shown_id` and `shown_kept_id` are what the rows say themselves.

    removals = removals_in(Path("clean"))
    rows = list(removals.rows()); removals.documents({rows[0]["id"]})
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import orjson
import pyarrow.parquet as pq

from headwater.core.artifacts import Artifact, ArtifactStore
from headwater.core.errors import InputError, UserError
from headwater.core.shards import MANIFEST
from headwater.curate.attributes import read_rows
from headwater.curate.collect import read_documents_again
from headwater.curate.config import CollectConfig, CurateConfig
from headwater.curate.dedup.rows import MOST_LINE_BYTES, REMOVED, Fields, RowSource
from headwater.curate.identity import BENCHMARKS_ROOT, curate_digests, raw_inputs
from headwater.curate.lines import split_lines
from headwater.curate.results import contents, file_report, is_file_result, neither
from headwater.curate.streams import RawStream

CORPUS_REMOVED = "removed.parquet"
AS_IT_IS: dict[str, Any] = {
    "clean": {
        "tidy": False, "mojibake": False, "html": False, "width": False, "punctuation": False, "boilerplate": False,
        "pii": (), "min_characters": 0,
    },
    "language": {"accepted": ()},
    "quality": {"rules": ()},
    "site_lines": {"enabled": False},
}  # fmt: skip
"""Settings that clean and filter nothing: of verbs that keep texts as they are."""

Document = Mapping[str, Any]
"""`id`, `text`, `lang`, `domain`, `meta` (JSON), `url`."""


class Removals(Protocol):
    """Where removals come from. `config` are the settings that decided, `name` a title."""

    name: str
    config: CurateConfig

    @property
    def count(self) -> int:
        """How many removals and cuts there are."""
        ...

    def rows(self) -> Iterator[dict[str, Any]]:
        """id, action, rule, version, score, kept_id, spans, detail of each removal and cut, in order."""
        ...

    def documents(self, wanted: set[str]) -> dict[str, Document]:
        """Documents by key; those that are no longer there are missing."""
        ...


def removals_in(folder: Path) -> Removals:
    """What a folder says was removed. Raises InputError if it is neither a corpus nor the result of a verb on files."""
    return file_removals(folder) if is_file_result(folder) else CorpusRemovals(corpus_of(folder))


class CorpusRemovals:
    """Of a finished curate stage, whose documents lie in the same workspace."""

    def __init__(self, corpus: Artifact) -> None:
        self._corpus = corpus
        self.name = corpus.fingerprint
        self.config = config_of(corpus)

    @property
    def count(self) -> int:
        return int(self._corpus.facts(CORPUS_REMOVED).get("documents", 0))

    def rows(self) -> Iterator[dict[str, Any]]:
        yield from read_rows(self._corpus.file(CORPUS_REMOVED))

    def documents(self, wanted: set[str]) -> dict[str, Document]:
        found: dict[str, Document] = {}
        collected = documents_of(self._corpus)
        for name in collected.files("documents/"):
            with pq.ParquetFile(collected.file(name)) as file:
                for group in range(file.num_row_groups):
                    column = file.read_row_group(group, columns=["id"]).column("id").to_pylist()
                    rows = [number for number, identifier in enumerate(column) if identifier in wanted]
                    if rows:
                        found |= {row["id"]: row for row in file.read_row_group(group).take(rows).to_pylist()}
        return found


def corpus_of(folder: Path) -> Artifact:
    """The corpus in a folder. Raises InputError if it is none."""
    if not (folder / MANIFEST).exists():
        raise neither(folder)
    artifact = Artifact.open(folder)
    if artifact.stage != "curate":
        raise InputError(f"this is the result of {artifact.stage}", where=str(folder), mend="give a curated corpus")
    return artifact


def config_of(corpus: Artifact) -> CurateConfig:
    """What a corpus was made with; its benchmarks are looked for where they were then."""
    config = CurateConfig(**corpus.identity)
    root = corpus.provenance.get(BENCHMARKS_ROOT, config.decontaminate.root)
    return config.model_copy(update={"decontaminate": config.decontaminate.model_copy(update={"root": root})})


def documents_of(artifact: Artifact) -> Artifact:
    """The documents a corpus was made from. Raises InputError if they are gone."""
    store = ArtifactStore(artifact.path.resolve().parent.parent)
    collected = store.find("collect", artifact.inputs["collect"])
    if collected is None:
        raise InputError(
            f"the documents {artifact.inputs['collect']} are not in the workspace around the corpus",
            where=str(artifact.path),
            mend="run the recipe again to collect them",
        )
    return collected


def require_same_inputs(folder: Path, report: Mapping[str, Any]) -> None:
    """Raises InputError if the files that a verb made a result from are gone or have changed since."""
    if "made_from" in report:
        made_from = report["made_from"]
        collect = CollectConfig.model_validate(made_from["collect"])
        config = CurateConfig.model_validate(made_from["curate"])
        for path in collect.sources[0].paths:
            _require_there(collect.folder / path)
        same = made_from["raw"] == raw_inputs(collect) and made_from["named"] == curate_digests(config)
    else:
        for name in report["contents"]:
            _require_there(Path(name))
        same = report["contents"] == contents(report["contents"])
    if not same:
        raise InputError(
            "the inputs are others now than those this was made from",
            where=str(folder),
            mend="run the verb again, with --force or into another folder",
        )


def _require_there(path: Path) -> None:
    if not path.exists():
        raise InputError(
            "this input is no longer there", where=str(path), mend="relative paths start where the verb was run"
        )


def file_removals(folder: Path) -> Removals:
    """What a verb on files removed. Raises InputError for other folders, UserError for `mix`, which has no rules."""
    report = file_report(folder)
    if report["verb"] == "curate":
        return _CuratedFiles(folder, report)
    if report["verb"] in ("dedup", "decontaminate"):
        return _ComparedFiles(folder, report)
    raise UserError(f"{report['verb']} removes by quotas, not by rules", where=str(folder), mend="nothing to replay")


class _Files:
    """Rows of `removed.jsonl.zst`."""

    def __init__(self, folder: Path, report: dict[str, Any]) -> None:
        self.folder, self.report, self.name = folder, report, str(folder)

    def _lines(self) -> Iterator[dict[str, Any]]:
        stream = RawStream(self.folder / REMOVED, format="zstd")
        what = "" if stream.path.stat().st_size else "it is empty"  # a list of nothing has a frame
        for line in split_lines(stream.chunks(), MOST_LINE_BYTES):
            if stream.damage:
                break
            try:
                row = orjson.loads(line.data or b"")
                row = {"detail": "", **row, "shown_id": row["id"], "shown_kept_id": row["kept_id"] or ""}
            except (ValueError, TypeError, KeyError):
                what = f"line {line.number:,} is no row"
                break
            yield row
        if what := stream.damage.detail if stream.damage else what:
            raise InputError(
                f"this file is damaged ({what}): not all that was removed can be read",
                where=str(stream.path),
                mend="run the verb again, into another folder",
            )

    @property
    def count(self) -> int:
        return sum(1 for _ in self._lines())


class _CuratedFiles(_Files):
    """Of `headwater curate`, `clean` or `filter` on files: the inputs are read again as they were."""

    def __init__(self, folder: Path, report: dict[str, Any]) -> None:
        super().__init__(folder, report)
        made_from = report["made_from"]
        self.config = CurateConfig.model_validate(made_from["curate"])
        self.collect = CollectConfig.model_validate(made_from["collect"])

    def rows(self) -> Iterator[dict[str, Any]]:
        for row in self._lines():
            yield {**row, "id": row["document"], "kept_id": row["kept_document"]}

    def documents(self, wanted: set[str]) -> dict[str, Document]:
        require_same_inputs(self.folder, self.report)
        found: dict[str, Document] = {}
        for document in read_documents_again(self.collect):
            if document.id in wanted:
                meta = orjson.dumps(document.meta).decode()
                found[document.id] = {
                    "id": document.id, "text": document.text, "lang": document.lang, "domain": document.domain,
                    "meta": meta, "url": document.url,
                }  # fmt: skip
                if len(found) == len(wanted):
                    break
        return found


class _ComparedFiles(_Files):
    """Of `dedup` or `decontaminate`: rows are known by file and line."""

    def __init__(self, folder: Path, report: dict[str, Any]) -> None:
        super().__init__(folder, report)
        said = report["settings"]
        self.fields = Fields(said["text_field"], said["id_field"])
        if report["verb"] == "dedup":
            names: tuple[str, ...] = ("threshold", "measure", "width", "passage_units", "passages", "fold_traditional")
            compare: dict[str, Any] = {"dedup": {name: said[name] for name in names}}
        else:
            names = ("width", "threshold", "shortest", "fields", "fold_traditional")
            compare = {"decontaminate": {"benchmarks": report["benchmarks"], **{name: said[name] for name in names}}}
        self.config = CurateConfig.model_validate({**AS_IT_IS, **compare})

    def rows(self) -> Iterator[dict[str, Any]]:
        dedup = self.report["verb"] == "dedup"
        for row in self._lines():
            kept = _key(row["kept_file"], row["kept_line"], row["kept_id"]) if dedup else row["kept_id"]
            rule = f"dedup.{row['rule']}" if dedup else "decontaminate.question"
            yield {**row, "id": _key(row["file"], row["line"], row["id"]), "kept_id": kept, "rule": rule}

    def documents(self, wanted: set[str]) -> dict[str, Document]:
        require_same_inputs(self.folder, self.report)
        found: dict[str, Document] = {}
        for name in (*self.report["inputs"], *self.report.get("against", ())):
            for row in RowSource(Path(name), self.fields).rows():
                if (key := _key(name, row.line, row.id)) in wanted:
                    text = row.text.decode("utf-8", "surrogatepass")
                    found[key] = {
                        "id": key,
                        "text": text,
                        "lang": row.lang,
                        "domain": row.domain,
                        "meta": "{}",
                        "url": "",
                    }
        return found


def _key(file: str, line: int, name: str) -> str:
    """A row's key, with its id to be read."""
    return f"{file}:{line}:{name}"
