"""A corpus made again with one thing changed: a rule taken back, or documents taken down.

The result is a new artifact of the same stage, made from the same documents; its manifest says what changed. What was
decided about single documents is taken over from the workspace's cache.

    remake(corpus, undo=["dedup.minhash"]).path
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from headwater.core.artifacts import Artifact, ArtifactStore, fingerprint
from headwater.core.config import identity
from headwater.core.errors import UserError
from headwater.core.executor import Executor, InlineExecutor
from headwater.core.files import atomic_write
from headwater.core.progress import SILENT, Reporter
from headwater.core.stage import StageContext
from headwater.curate.attributes import read_rows
from headwater.curate.config import CurateConfig
from headwater.curate.identity import curate_digests
from headwater.curate.removals import config_of, documents_of
from headwater.curate.stage import build_curate
from headwater.curate.undo import check_rules, takedown_ids

IDS = "takedown.txt"
_ID = re.compile(r"[0-9a-f]{32}")


def remake(
    corpus: Artifact,
    *,
    undo: Sequence[str] = (),
    takedown: frozenset[str] = frozenset(),
    executor: Executor | None = None,
    reporter: Reporter = SILENT,
) -> Artifact:
    """The corpus with more rules taken back and more ids taken down than before; found, if it was made already.

    Raises UserError for a rule that cannot be taken back, or if the files the corpus was made with are others now;
    InputError if its documents are gone.
    """
    store = ArtifactStore(corpus.path.resolve().parent.parent)
    collected = documents_of(corpus)
    before = config_of(corpus)
    check_rules(before, undo)
    config = before.model_copy(update={"undo": tuple(dict.fromkeys([*before.undo, *undo]))})
    _same_files(corpus, before)
    if ids := takedown | frozenset(taken_down(corpus)):
        path = store.workspace / "curate" / ".takedown" / f"{fingerprint('ids', 1, sorted(ids), {})}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(path, "".join(f"{name}\n" for name in sorted(ids)).encode())
        config = config.model_copy(update={"takedown": (str(path),)})
    inputs = {"collect": collected.fingerprint, **curate_digests(config)}
    key = fingerprint("curate", corpus.version, identity(config), inputs)
    if (found := store.find("curate", key)) is not None:
        return found
    context = StageContext(store.workspace, executor or InlineExecutor(), reporter)
    writer = store.writer("curate", key, version=corpus.version, identity=identity(config), inputs=inputs)
    with writer as out:
        return out.commit(build_curate(config, {"collect": collected}, out, context))


def _same_files(corpus: Artifact, config: CurateConfig) -> None:
    now = {role: digest for role, digest in curate_digests(config).items() if role != "files:takedown"}
    was = {role: digest for role, digest in corpus.inputs.items() if role.startswith("files:")}
    for role in sorted(set(now) | (set(was) - {"files:takedown"})):
        if now.get(role) != was.get(role):
            raise UserError(
                f"the {role.removeprefix('files:')} this corpus was made with are others now, or lie elsewhere",
                where=str(corpus.path),
                mend="put them back, or make the corpus anew: headwater curate RECIPE",
            )


def taken_down(corpus: Artifact) -> list[str]:
    """Ids a corpus was made without, because they were taken down."""
    return sorted(takedown_ids([str(corpus.file(IDS))])) if IDS in corpus.files() else []


def ids_in(files: Sequence[Path]) -> frozenset[str]:
    """Ids to take down in files, one a line. Raises InputError; UserError if there are none."""
    ids = takedown_ids([str(path) for path in files])
    where = ", ".join(map(str, files))
    if not ids:
        raise UserError("no id to take down", where=where, mend="write one id a line")
    for name in sorted(ids):
        if not _ID.fullmatch(name):
            raise UserError(f"{name!r} is no document's id", where=where, mend="give the 32 digits of the `id` column")
    return ids


def copies_of(corpus: Artifact, ids: frozenset[str]) -> list[dict[str, str]]:
    """Documents among `ids` that went as duplicates, with the one that stays in their place."""
    rows = read_rows(corpus.file("removed.parquet"), ["id", "action", "rule", "kept_id"])
    return [
        {"id": row["id"], "rule": row["rule"], "kept_id": row["kept_id"]}
        for row in rows
        if row["id"] in ids
        and row["action"] == "remove"
        and _ID.fullmatch(row["kept_id"])
        and row["kept_id"] not in ids
    ]
