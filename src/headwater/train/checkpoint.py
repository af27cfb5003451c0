"""The checkpoint store of a run: a checkpoint is there and whole, or it is not there.

In: tensors by name, JSON state. Out: `checkpoints/step-00000100/` with `tensors.json` and DCP's data files,
`state.json`, and `manifest.json` with every file's SHA-256, written last. A save writes into
`step-00000100.partial/`, hashes, syncs, renames, and only then moves the pointer and deletes what retention lets go.
A process killed anywhere leaves the earlier checkpoints as they were.

    store = CheckpointStore(run.checkpoints_dir, run_id="r1", keep=2)
    store.save(100, tensors, state); store.newest_good().state["step"]      # 100

With `asynchronous=True` training waits for a copy in memory; the rest happens in a thread, whose errors are raised by
the next call. Loading checks every hash and falls back, loudly, to the checkpoint before.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from headwater.core.errors import CorruptArtifactError, DiskSpaceError
from headwater.core.files import atomic_write, disk_errors, free_bytes, fsync_dir, sha256_file, temp_path
from headwater.core.jsonl import canonical_json, parse_json, pretty_json
from headwater.train.checkpoint_format import write_tensors
from headwater.train.run_folder import (
    MANIFEST,
    MEND_CHECKPOINT,
    POINTER,
    CheckpointRef,
    checkpoint_name,
    list_checkpoints,
)

STATE = "state.json"
PARTIAL = ".partial"
TRASH = ".trash"
CORRUPT = ".corrupt"
FORMAT = 1

Warn = Callable[[str], None]


@dataclass(frozen=True)
class LoadedCheckpoint:
    """A verified checkpoint: its state has been read, its tensors have not (see `read_tensors`)."""

    ref: CheckpointRef
    state: dict[str, Any]


@dataclass(frozen=True, slots=True)
class SaveReport:
    """What a finished save cost."""

    step: int
    bytes: int
    seconds: float


class CheckpointStore:
    """Checkpoints of one run. One writer: the run's lock is held by whoever makes one to save with."""

    def __init__(
        self, folder: Path, *, run_id: str = "", keep: int = 2, permanent_every: int | None = None, warn: Warn = print
    ) -> None:
        self.folder = folder
        self._run_id = run_id
        self._keep = keep
        self._permanent_every = permanent_every
        self._warn = warn
        self._executor: ThreadPoolExecutor | None = None
        self._pending: Future[SaveReport] | None = None
        self._reports: list[SaveReport] = []

    # Saving.

    def save(
        self,
        step: int,
        tensors: dict[str, torch.Tensor],
        state: dict[str, Any],
        *,
        facts: dict[str, Any] | None = None,
        asynchronous: bool = False,
        before_commit: Callable[[], None] | None = None,
    ) -> None:
        """Save one checkpoint. `facts` go into the manifest (lineage); `before_commit` runs just before it is made
        visible, in the same thread (syncing the metrics that stand on it).

        Raises DiskSpaceError when it does not fit; earlier checkpoints stay. An asynchronous save waits for the one
        before it, and its errors are raised by the next `save`, `poll` or `wait`.
        """
        self.wait()
        state = parse_json(canonical_json(state))  # a copy, and an error here rather than in the thread
        if not asynchronous:
            self._reports.append(self._write(step, tensors, state, facts or {}, before_commit))
            return
        copies = {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors.items()}
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._pending = self._executor.submit(self._write, step, copies, state, facts or {}, before_commit)

    def poll(self) -> list[SaveReport]:
        """Saves finished since the last call; raises the error of a failed one."""
        if self._pending is not None and self._pending.done():
            self.wait()
        reports, self._reports = self._reports, []
        return reports

    def wait(self) -> None:
        """Wait for a running save; raises its error."""
        if self._pending is not None:
            pending, self._pending = self._pending, None
            self._reports.append(pending.result())

    def close(self) -> None:
        """Wait for a running save and end its thread; raises its error."""
        try:
            self.wait()
        finally:
            if self._executor is not None:
                self._executor.shutdown()
                self._executor = None

    def _write(
        self,
        step: int,
        tensors: dict[str, torch.Tensor],
        state: dict[str, Any],
        facts: dict[str, Any],
        before_commit: Callable[[], None] | None,
    ) -> SaveReport:
        started = time.perf_counter()
        self.folder.mkdir(parents=True, exist_ok=True)
        final = self.folder / checkpoint_name(step)
        partial = final.with_name(final.name + PARTIAL)
        needed = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
        try:
            with disk_errors(partial):
                shutil.rmtree(partial, ignore_errors=True)
                partial.mkdir()
                write_tensors(tensors, partial)
                atomic_write(partial / STATE, pretty_json(state))
                permanent = bool(self._permanent_every) and step % (self._permanent_every or 1) == 0
                files = {
                    path.name: {"sha256": sha256_file(path), "bytes": path.stat().st_size}
                    for path in sorted(partial.iterdir())
                }
                manifest = {
                    **facts,
                    "format": FORMAT,
                    "run": self._run_id,
                    "step": step,
                    "permanent": permanent,
                    "files": files,
                }
                atomic_write(partial / MANIFEST, pretty_json(manifest))
                fsync_dir(partial)
                if before_commit is not None:
                    before_commit()
                # All that are there, not only those the pointer names: one that was committed just before a kill must
                # now get its place behind this one, or it would count as the newest for ever.
                older = [ref.name for ref in list_checkpoints(self.folder) if ref.name != final.name]
                if final.exists():  # of the same step, before a rewind; the others are still there
                    self._point(older)
                    self._discard(final)
                partial.rename(final)
                fsync_dir(self.folder)
                self._point([final.name, *older])
                written = sum(path.stat().st_size for path in final.iterdir())
        except BaseException as error:
            shutil.rmtree(partial, ignore_errors=True)
            if isinstance(error, OSError) and _is_full(self.folder, needed):
                raise DiskSpaceError(
                    f"the checkpoint of step {step} does not fit: it needs about {needed / 1e9:,.2f} GB and "
                    f"{free_bytes(self.folder) / 1e9:,.2f} GB are free; the checkpoints before it are intact",
                    where=str(self.folder),
                    mend="free some space, then run again: training goes on from the newest checkpoint",
                ) from error
            raise
        self._retain()
        return SaveReport(step, written, time.perf_counter() - started)

    def _point(self, names: list[str]) -> None:
        present = [name for name in names if (self.folder / name).is_dir()]
        atomic_write(self.folder / POINTER, canonical_json({"newest_first": present}))

    def _retain(self) -> None:
        """Delete all but the last `keep` and, of the others, the permanent ones."""
        for ref in list_checkpoints(self.folder)[self._keep :]:
            with suppress(CorruptArtifactError):
                if ref.manifest().get("permanent"):
                    continue
            self._discard(ref.path)

    def _discard(self, path: Path) -> None:
        """Take a checkpoint away at once, then delete it: a kill in between leaves no half checkpoint."""
        trash = path.with_name(f"{path.name}{TRASH}")
        shutil.rmtree(trash, ignore_errors=True)
        path.rename(trash)
        shutil.rmtree(trash, ignore_errors=True)

    def clean(self) -> None:
        """Remove what a kill left behind: half-written and half-deleted checkpoints."""
        for path in self.folder.glob("step-*") if self.folder.is_dir() else ():
            if path.name.endswith((PARTIAL, TRASH)):
                shutil.rmtree(path, ignore_errors=True)

    # Loading.

    def newest_good(self) -> LoadedCheckpoint | None:
        """The newest checkpoint whose every byte is as it was written, or None if none was ever committed.

        A damaged one is reported, set aside as `step-N.corrupt` and the one before is tried. Raises
        CorruptArtifactError if there are checkpoints but none is whole: starting over must be a person's decision.
        """
        refs = list_checkpoints(self.folder)
        for ref in refs:
            try:
                return load_checkpoint(ref)
            except CorruptArtifactError as error:
                aside = ref.path.with_name(ref.path.name + CORRUPT)
                shutil.rmtree(aside, ignore_errors=True)
                ref.path.rename(aside)
                self._warn(
                    f"CHECKPOINT {ref.name} IS DAMAGED ({error.where}: {error.what}); it is set aside as {aside.name} "
                    "and the one before it is used"
                )
        damaged = sorted(self.folder.glob(f"step-*{CORRUPT}")) if self.folder.is_dir() else []
        if refs or damaged:
            raise CorruptArtifactError(
                f"none of the run's {len(refs) or len(damaged)} checkpoints is whole",
                where=str(self.folder),
                mend="restore one from a copy; to train again from the start, delete the run folder",
            )
        return None


def load_checkpoint(ref: CheckpointRef) -> LoadedCheckpoint:
    """Check every file against the manifest and read the state; CorruptArtifactError names the file that differs."""
    manifest = ref.manifest()
    if manifest.get("format") != FORMAT:
        raise CorruptArtifactError(
            f"format {manifest.get('format')}, this version reads {FORMAT}",
            where=str(ref.path / MANIFEST),
            mend="load it with the version of Headwater that wrote it",
        )
    for name, facts in manifest["files"].items():
        path = ref.path / name
        if not path.is_file():
            raise CorruptArtifactError("file is missing", where=str(path), mend=MEND_CHECKPOINT)
        size = path.stat().st_size
        if size != facts["bytes"]:
            what = f"{size:,} bytes instead of {facts['bytes']:,}"
            raise CorruptArtifactError(what, where=str(path), mend=MEND_CHECKPOINT)
        if sha256_file(path) != facts["sha256"]:
            raise CorruptArtifactError("content has changed", where=str(path), mend=MEND_CHECKPOINT)
    try:
        return LoadedCheckpoint(ref, parse_json((ref.path / STATE).read_bytes()))
    except (OSError, ValueError) as error:
        raise CorruptArtifactError(
            f"state cannot be read: {error}", where=str(ref.path / STATE), mend=MEND_CHECKPOINT
        ) from error


def _is_full(folder: Path, needed_bytes: int) -> bool:
    """Whether a file of this size could not be written: torch reports a full disk in words that name no reason."""
    if free_bytes(folder) < needed_bytes:
        return True
    probe = temp_path(folder / "probe")
    try:
        with open(probe, "xb") as file:
            os.posix_fallocate(file.fileno(), 0, max(1, needed_bytes))
        return False
    except OSError:
        return True
    finally:
        probe.unlink(missing_ok=True)
