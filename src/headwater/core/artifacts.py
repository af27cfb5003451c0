"""Artifacts: what a stage makes, once, under a name that says from what.

A stage writes into `WORKSPACE/STAGE/FINGERPRINT.partial/`, shard by shard, each with a sidecar holding its size and
SHA-256, then commits: `manifest.json` lists everything, all is synced, and the folder is renamed to
`WORKSPACE/STAGE/FINGERPRINT/`. Killed anywhere, the next writer keeps finished shards and removes the rest. Wall time,
host and versions go to `provenance.json`, which no hash covers.

    store = ArtifactStore(workspace)
    key = fingerprint("curate", 1, identity(config), {"collect": collected.fingerprint})
    artifact = store.find("curate", key)
    if artifact is None:
        with store.writer("curate", key, version=1, identity=identity(config), inputs={...}) as out:
            if out.done("corpus/train/web-00000.parquet") is None:
                with out.shard("corpus/train/web-00000.parquet") as path: ...
            artifact = out.commit({"documents": 12})
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from headwater.core.errors import CorruptArtifactError, HeadwaterError, InputError, LockedError, UserError
from headwater.core.files import (
    TEMP_PREFIX,
    atomic_write,
    disk_errors,
    fsync_dir,
    sha256_bytes,
    sha256_file,
)
from headwater.core.jsonl import canonical_json, parse_json, plain_json, pretty_json
from headwater.core.locks import FolderLock
from headwater.core.provenance import Stopwatch
from headwater.core.shards import MANIFEST, PROVENANCE, SIDECARS, ShardFolder

FORMAT_VERSION = 1
"""Of the folder's layout and manifest. Raise it together with a migration."""

PARTIAL = ".partial"
SCRATCH = ".scratch"


def fingerprint(stage: str, version: int, identity: Any, inputs: Mapping[str, str]) -> str:
    """16 hex digits that name an artifact: SHA-256 of the canonical JSON of all that decides its content.

    `identity` is `headwater.core.config.identity(section)`; `inputs` maps a role to an artifact's fingerprint or a
    raw input's content hash. Raises ValueError on NaN in the identity.
    """
    key = {"stage": stage, "version": version, "identity": identity, "inputs": dict(inputs)}
    return sha256_bytes(canonical_json(key))[:16]


@dataclass(frozen=True)
class Artifact:
    """A committed artifact; nobody writes to it any more."""

    path: Path
    stage: str
    fingerprint: str
    manifest: dict[str, Any]

    @property
    def counts(self) -> dict[str, Any]:
        return self.manifest["counts"]

    @property
    def version(self) -> int:
        """Of the stage that made it."""
        return self.manifest["version"]

    @property
    def identity(self) -> Any:
        return self.manifest["identity"]

    @property
    def inputs(self) -> dict[str, str]:
        """Role -> fingerprint of an artifact or content hash of a raw input."""
        return self.manifest["inputs"]

    @property
    def provenance(self) -> dict[str, Any]:
        """When, where and with what it was made; {} if someone removed the file, which nothing depends on."""
        try:
            return parse_json((self.path / PROVENANCE).read_bytes())
        except (OSError, ValueError):
            return {}

    def facts(self, name: str) -> dict[str, Any]:
        """The sidecar of a file: `name`, `size` in bytes, `sha256`, and what its writer added. Raises InputError."""
        try:
            return self.manifest["files"][name]
        except KeyError:
            raise InputError(
                f"the {self.stage} artifact has no file {name!r}",
                where=str(self.path),
                mend="it has " + (", ".join(self.files()[:8]) or "none"),
            ) from None

    def file(self, name: str) -> Path:
        """Where a file lies. Raises InputError if the manifest does not list it."""
        self.facts(name)
        return self.path / name

    def files(self, prefix: str = "") -> list[str]:
        """Sorted names in the manifest that start with `prefix`."""
        return sorted(name for name in self.manifest["files"] if name.startswith(prefix))

    def verify(self, deep: bool = False) -> None:
        """Check each file's size, and with `deep` its SHA-256. Raises CorruptArtifactError naming the bad files."""
        bad = []
        for name in self.files():
            facts, path = self.manifest["files"][name], self.path / name
            if not path.is_file():
                bad.append(f"{name} is missing")
            elif path.stat().st_size != facts["size"]:
                bad.append(f"{name} has {path.stat().st_size:,} bytes instead of {facts['size']:,}")
            elif deep and sha256_file(path) != facts["sha256"]:
                bad.append(f"{name} has other content than its SHA-256 says")
        if bad:
            more = f" and {len(bad) - 3} more" if len(bad) > 3 else ""
            raise CorruptArtifactError("; ".join(bad[:3]) + more, where=str(self.path), mend=_rebuild(self.path))

    @classmethod
    def open(cls, path: Path) -> Artifact:
        """Read a committed folder's manifest. Raises InputError if it is none, CorruptArtifactError if unreadable,
        UserError if its format is another version's."""
        path = Path(path)
        if path.name.endswith(PARTIAL):
            raise InputError("this artifact is not finished", where=str(path), mend="run its stage again to finish it")
        try:
            data = (path / MANIFEST).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            raise InputError(
                f"not an artifact: there is no {MANIFEST}", where=str(path), mend="give the folder of a finished stage"
            ) from None
        try:
            manifest = parse_json(data)
            _check_format(manifest["format_version"], path)
            if not isinstance(manifest["files"], dict) or not isinstance(manifest["counts"], dict):
                raise TypeError("files and counts must be objects")
            return cls(path, manifest["stage"], manifest["fingerprint"], manifest)
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptArtifactError(
                f"cannot read the manifest: {error!r}", where=str(path / MANIFEST), mend=_rebuild(path)
            ) from error


def _rebuild(path: Path) -> str:
    return f"remove {path} and run again: the stage rebuilds it from its inputs"


def _check_format(found: int, path: Path) -> None:
    if found == FORMAT_VERSION:
        return
    if found > FORMAT_VERSION:
        mend = "use that newer Headwater, or remove the folder and run again to rebuild it with this one"
    else:
        mend = f"this version has no such migration: {_rebuild(path)}"
    raise UserError(
        f"artifact format {found} needs the migration artifact-format-{found}-to-{FORMAT_VERSION}",
        where=str(path / MANIFEST),
        mend=mend,
    )


class ArtifactWriter(ShardFolder):
    """The one writer of an artifact, as a context manager: takes the lock, cleans up after a kill, gives it back.

    Leaving without `commit` keeps finished shards for the next try.
    """

    def __init__(
        self, store: ArtifactStore, stage: str, fingerprint: str, version: int, identity: Any, inputs: Mapping[str, str]
    ) -> None:
        self.final = store.path(stage, fingerprint)
        super().__init__(self.final.with_name(self.final.name + PARTIAL))
        self.stage, self.fingerprint, self.version = stage, fingerprint, version
        self.identity = plain_json(identity)
        self.inputs = dict(inputs)
        self.resumed: list[str] = []
        """Names of the shards an earlier, interrupted writer had finished."""
        self.notes: dict[str, Any] = {}
        """Goes into `provenance.json`, outside every hash: times, places."""
        self._lock = FolderLock(self.dir)
        self._watch = Stopwatch()

    def __reduce__(self) -> tuple[object, ...]:
        """What travels to a worker process is only the right to write shards, not the lock or the commit."""
        return (ShardFolder, (self.dir,))

    def __enter__(self) -> ArtifactWriter:
        with disk_errors(self.dir):
            self._lock.acquire()
            try:
                if self.final.exists():
                    raise LockedError(
                        "another process has finished this artifact in the meantime",
                        where=str(self.final),
                        mend="run the same command again: it will use it",
                    )
                self.dir.mkdir(exist_ok=True)
                fsync_dir(self.dir.parent)
                self._clean()
                self.resumed = self.shards()
            except BaseException:
                self._lock.release()
                raise
        self._watch = Stopwatch()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()

    @property
    def scratch(self) -> Path:
        """A folder for working files; emptied when a writer starts and gone at commit."""
        folder = self.dir / SCRATCH
        folder.mkdir(exist_ok=True)
        return folder

    def _clean(self) -> None:
        """Keep finished shards with their sidecars; remove all else, which a kill left half done."""
        shutil.rmtree(self.dir / SCRATCH, ignore_errors=True)
        keep = set(self.shards())
        for path in sorted(self.dir.rglob("*"), reverse=True):
            relative = path.relative_to(self.dir).as_posix()
            if path.is_dir() and not path.is_symlink():
                with suppress(OSError):
                    path.rmdir()  # only if it is empty
            elif path.name.startswith(TEMP_PREFIX):
                path.unlink()
            elif relative.startswith(SIDECARS + "/"):
                if relative.removeprefix(SIDECARS + "/").removesuffix(".json") not in keep:
                    path.unlink()
            elif relative not in keep:
                path.unlink()

    def commit(self, counts: dict[str, Any], **extra: Any) -> Artifact:
        """Seal the artifact: write manifest and provenance, sync, rename, give the lock back.

        `extra` adds top-level keys to the manifest. Raises LockedError if the lock was lost, CorruptArtifactError if
        a shard changed since it was finished, ValueError on a file that has no sidecar.
        """
        self._lock.check()
        shutil.rmtree(self.dir / SCRATCH, ignore_errors=True)
        for path in self.dir.rglob(TEMP_PREFIX + "*"):
            path.unlink(missing_ok=True)
        files = {name: self.done(name) for name in self.shards()}
        self._refuse_strangers(files)
        manifest = {
            "format_version": FORMAT_VERSION,
            "stage": self.stage,
            "fingerprint": self.fingerprint,
            "version": self.version,
            "identity": self.identity,
            "inputs": self.inputs,
            "counts": counts,
            "files": files,
        }
        if clash := manifest.keys() & extra.keys():
            raise ValueError(f"the manifest has its own {', '.join(sorted(clash))}")
        atomic_write(
            self.dir / PROVENANCE, pretty_json(self._watch.provenance(resumed_shards=len(self.resumed), **self.notes))
        )
        atomic_write(self.dir / MANIFEST, pretty_json({**manifest, **extra}))
        for folder in [path for path in self.dir.rglob("*") if path.is_dir()]:
            fsync_dir(folder)
        fsync_dir(self.dir)
        self._lock.check()
        self.dir.rename(self.final)
        fsync_dir(self.final.parent)
        self._lock.release()
        return Artifact.open(self.final)

    def _refuse_strangers(self, files: Mapping[str, Any]) -> None:
        for path in sorted(self.dir.rglob("*")):
            relative = path.relative_to(self.dir).as_posix()
            if path.is_dir() or relative in files or relative in (MANIFEST, PROVENANCE):
                continue
            if relative.startswith(SIDECARS + "/"):
                name = relative.removeprefix(SIDECARS + "/").removesuffix(".json")
                if name not in files:
                    raise CorruptArtifactError(
                        f"{name} changed after it was finished", where=str(self.dir), mend="run again"
                    )
                continue
            raise ValueError(f"{path} was not written by `write`, `shard` or `finish`; use `scratch` for working files")


class ArtifactStore:
    """The artifacts of one workspace: `WORKSPACE/STAGE/FINGERPRINT`."""

    def __init__(self, workspace: Path) -> None:
        self.workspace = Path(workspace)

    def path(self, stage: str, fingerprint: str) -> Path:
        return self.workspace / stage / fingerprint

    def find(self, stage: str, fingerprint: str) -> Artifact | None:
        """The committed artifact, or None; never a partial one. Raises as `Artifact.open` when it is damaged."""
        path = self.path(stage, fingerprint)
        if not path.is_dir():
            return None
        if not (path / MANIFEST).is_file():
            raise CorruptArtifactError(f"{MANIFEST} is missing", where=str(path), mend=_rebuild(path))
        artifact = Artifact.open(path)
        if (artifact.stage, artifact.fingerprint) != (stage, fingerprint):
            raise CorruptArtifactError(
                f"the manifest is that of {artifact.stage}/{artifact.fingerprint}", where=str(path), mend=_rebuild(path)
            )
        return artifact

    def partial(self, stage: str) -> list[Path]:
        """Folders of unfinished artifacts, sorted."""
        return sorted(path for path in self._folders(stage) if path.name.endswith(PARTIAL))

    def all(self, stage: str, on_damaged: Callable[[Path, HeadwaterError], None] | None = None) -> list[Artifact]:
        """Committed artifacts of a stage that can be read, sorted by fingerprint; `on_damaged` hears of the others.

        `find` is what refuses a damaged one: an old artifact nobody asks for must not stop a run.
        """
        found = []
        for path in sorted(path for path in self._folders(stage) if not path.name.endswith(PARTIAL)):
            try:
                if (path / MANIFEST).is_file():
                    found.append(Artifact.open(path))
            except HeadwaterError as error:
                if on_damaged is not None:
                    on_damaged(path, error)
        return found

    def stages(self) -> list[str]:
        """Names of the stages that have a folder here."""
        if not self.workspace.is_dir():
            return []
        folders = (path.name for path in self.workspace.iterdir() if path.is_dir() and not path.name.startswith("."))
        return sorted(folders)

    def locate(self, fingerprint: str) -> Artifact | None:
        """A committed artifact of any stage by its fingerprint, or None."""
        for stage in self.stages():
            if (self.path(stage, fingerprint) / MANIFEST).is_file():
                return self.find(stage, fingerprint)
        return None

    def _folders(self, stage: str) -> list[Path]:
        root = self.workspace / stage
        return [path for path in root.iterdir() if path.is_dir() and path.name[0] != "."] if root.is_dir() else []

    def writer(
        self, stage: str, fingerprint: str, *, version: int, identity: Any, inputs: Mapping[str, str]
    ) -> ArtifactWriter:
        """The writer of one artifact; enter it to take the lock. Raises LockedError while another process writes it,
        or when another process finished it since `find` was asked."""
        return ArtifactWriter(self, stage, fingerprint, version, identity, inputs)
