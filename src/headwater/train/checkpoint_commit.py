"""One checkpoint, from pieces in memory to a folder that is whole or not there: the steps all ranks take together.

In: this rank's pieces, JSON state, the folder of checkpoints. Out: `step-00000100/`. Each rank writes, syncs and hashes
files of its own into `step-00000100.partial/`; when all have, rank 0 writes state and manifest, renames, and moves the
pointer. What fails on one rank fails on all with the same error, and leaves the earlier checkpoints as they were.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headwater.core.errors import CorruptArtifactError, DiskSpaceError
from headwater.core.files import atomic_write, free_bytes, fsync_dir, sha256_file, space, temp_path
from headwater.core.jsonl import canonical_json, pretty_json
from headwater.parallel.agreement import Ranks
from headwater.train.checkpoint_format import INDEX, write_tensors
from headwater.train.checkpoint_load import FORMAT, STATE
from headwater.train.checkpoint_pieces import Piece
from headwater.train.run_folder import MANIFEST, POINTER, CheckpointRef, checkpoint_name, list_checkpoints

PARTIAL = ".partial"
TRASH = ".trash"
PROBE_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class SaveReport:
    """What a finished save cost. `bytes` of all ranks together."""

    step: int
    bytes: int
    seconds: float
    ephemeral: bool = False


@dataclass(frozen=True)
class Tier:
    """A folder of checkpoints and what stays in it: the last `keep`, and those at multiples of `permanent_every`."""

    folder: Path
    keep: int
    permanent_every: int | None = None
    ephemeral: bool = False

    def permanent(self, step: int) -> bool:
        return bool(self.permanent_every) and step % (self.permanent_every or 1) == 0

    def discard(self, path: Path) -> None:
        """Take a checkpoint away at once, then delete it: a kill in between leaves no half checkpoint."""
        trash = path.with_name(f"{path.name}{TRASH}")
        shutil.rmtree(trash, ignore_errors=True)
        path.rename(trash)
        shutil.rmtree(trash, ignore_errors=True)

    def retain(self) -> None:
        """Delete all but the last `keep` and, of the others, the permanent ones."""
        for ref in list_checkpoints(self.folder)[self.keep :]:
            with suppress(CorruptArtifactError):
                if ref.manifest().get("permanent"):
                    continue
            self.discard(ref.path)

    def clean(self) -> None:
        """Remove what a kill left behind: half-written and half-deleted checkpoints."""
        for path in self.folder.glob("step-*") if self.folder.is_dir() else ():
            if path.name.endswith((PARTIAL, TRASH)):
                shutil.rmtree(path, ignore_errors=True)

    def point(self, names: list[str]) -> None:
        present = [name for name in names if (self.folder / name).is_dir()]
        atomic_write(self.folder / POINTER, canonical_json({"newest_first": present}))


def write_checkpoint(
    tier: Tier,
    step: int,
    pieces: Mapping[str, Piece],
    state: dict[str, Any],
    facts: dict[str, Any],
    before_commit: Callable[[], None] | None,
    ranks: Ranks,
) -> SaveReport:
    """Write and commit one checkpoint. Collective over `ranks`.

    Raises DiskSpaceError, on every rank, if it does not fit on any; OSError for another failure to write.
    """
    started = time.perf_counter()
    partial = tier.folder / (checkpoint_name(step) + PARTIAL)
    needed = sum(piece.bytes for piece in pieces.values())

    def prepare() -> None:
        tier.folder.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()

    try:
        ranks.on_first(prepare)
        write_tensors(pieces, partial, ranks)
        shares = ranks.together(lambda: _hash_own(partial, ranks.rank))
        files = {name: entry for share in shares for name, entry in share.items()}
        written = ranks.on_first(lambda: _commit(tier, step, partial, files, state, facts, before_commit))
    except OSError as error:  # the same kind on every rank, so all come here
        full = ranks.gather(_is_full(tier.folder, needed))
        if ranks.first:
            shutil.rmtree(partial, ignore_errors=True)
        if any(full):
            raise _does_not_fit(tier, step, sum(ranks.gather(needed)), full, ranks) from error
        raise
    except BaseException:
        if ranks.first:
            shutil.rmtree(partial, ignore_errors=True)
        raise
    if ranks.first:
        tier.retain()
    return SaveReport(step, written, time.perf_counter() - started, tier.ephemeral)


def _hash_own(partial: Path, rank: int) -> dict[str, dict[str, Any]]:
    """Hash of each file this rank wrote, read back from the file system; the index is rank 0's too."""
    names = [path.name for path in partial.glob(f"__{rank}_*")] + ([INDEX] if rank == 0 else [])
    return {
        name: {"sha256": sha256_file(partial / name), "bytes": (partial / name).stat().st_size}
        for name in sorted(names)
    }


def _commit(
    tier: Tier,
    step: int,
    partial: Path,
    files: dict[str, dict[str, Any]],
    state: dict[str, Any],
    facts: dict[str, Any],
    before_commit: Callable[[], None] | None,
) -> int:
    """Rank 0's part: state, manifest, rename, pointer. Bytes of the whole checkpoint."""
    final = tier.folder / checkpoint_name(step)
    atomic_write(partial / STATE, pretty_json(state))
    files = {**files, STATE: {"sha256": sha256_file(partial / STATE), "bytes": (partial / STATE).stat().st_size}}
    manifest = {**facts, "format": FORMAT, "step": step, "permanent": tier.permanent(step), "files": files}
    atomic_write(partial / MANIFEST, pretty_json(manifest))
    fsync_dir(partial)
    if before_commit is not None:
        before_commit()
    # All that are there, not only those the pointer names: one that was committed just before a kill must now get its
    # place behind this one, or it would count as the newest for ever.
    older = [ref.name for ref in list_checkpoints(tier.folder) if ref.name != final.name]
    if final.exists():  # of the same step, before a rewind; the others are still there
        tier.point(older)
        tier.discard(final)
    partial.rename(final)
    fsync_dir(tier.folder)
    tier.point([final.name, *older])
    return sum(path.stat().st_size for path in final.iterdir())


def _does_not_fit(tier: Tier, step: int, needed: int, full: list[bool], ranks: Ranks) -> DiskSpaceError:
    who = "" if ranks.size == 1 else f" (rank {full.index(True)} could not write)"
    return DiskSpaceError(
        f"the checkpoint of step {step} does not fit: it needs about {space(needed)} and "
        f"{space(free_bytes(tier.folder))} are free{who}; the checkpoints before it are intact",
        where=str(tier.folder),
        mend="free some space, then run again: training goes on from the newest checkpoint",
    )


def _is_full(folder: Path, needed_bytes: int) -> bool:
    """Whether a file of this size could not be written: torch reports a full disk in words that name no reason."""
    if free_bytes(folder) < needed_bytes:
        return True
    probe = temp_path(folder / "probe")
    try:
        with open(probe, "xb") as file:
            os.posix_fallocate(file.fileno(), 0, min(max(1, needed_bytes), PROBE_BYTES))
        return False
    except OSError:
        return True
    finally:
        probe.unlink(missing_ok=True)


def newest_first(tiers: list[Tier]) -> list[CheckpointRef]:
    """Committed checkpoints of several tiers in the order they were written, the newest first. Within a tier the
    pointer says the order, between tiers the manifest's time."""

    def written(ref: CheckpointRef) -> int:
        try:
            return (ref.path / MANIFEST).stat().st_mtime_ns
        except OSError:
            return 2**63  # without a manifest it is damaged: looked at first, reported, set aside

    lists = [list_checkpoints(tier.folder) for tier in tiers]
    merged: list[CheckpointRef] = []
    while any(lists):
        newest = max((refs for refs in lists if refs), key=lambda refs: written(refs[0]))
        merged.append(newest.pop(0))
    return merged
