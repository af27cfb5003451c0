"""The checkpoint store of a run: a checkpoint is there and whole, or it is not there.

In: tensors by name (whole or sharded), JSON state. Out: `checkpoints/step-00000100/` with `tensors.json` and DCP's data
files, `state.json`, and `manifest.json` with every file's SHA-256, written last. A save writes into
`step-00000100.partial/`, hashes, syncs, renames, and only then moves the pointer and deletes what retention lets go.
A process killed anywhere leaves the earlier checkpoints as they were.

    store = CheckpointStore(run.checkpoints_dir, run_id="r1", keep=2)
    store.save(100, tensors, state); store.newest_good().state["step"]      # 100

With `asynchronous=True` training waits for a copy in memory; the rest happens in a thread, whose errors are raised by
the next call. Loading checks every hash and falls back, loudly, to the checkpoint before.

With several ranks every method is collective, over a group that nothing else uses. With `ephemeral` there is a second
tier: a folder on fast storage whose checkpoints come often, are few, and may be gone after a crash of the machine.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from torch import Tensor

from headwater.core.errors import CorruptArtifactError
from headwater.core.jsonl import canonical_json, parse_json
from headwater.parallel.agreement import Ranks
from headwater.train.checkpoint_commit import SaveReport, Tier, newest_first, write_checkpoint
from headwater.train.checkpoint_load import LoadedCheckpoint, load_checkpoint
from headwater.train.checkpoint_pieces import Staging, pieces_of
from headwater.train.run_folder import CheckpointRef, list_checkpoints

CORRUPT = ".corrupt"

Warn = Callable[[str], None]


class CheckpointStore:
    """Checkpoints of one run. One writer: the run's lock is held by whoever makes one to save with.

    `ranks` share the work (default: this process alone). `ephemeral` is the folder of the second tier, which keeps its
    newest checkpoint only. Raises UserError if a folder is not the same one for all ranks.
    """

    def __init__(
        self,
        folder: Path,
        *,
        run_id: str = "",
        keep: int = 2,
        permanent_every: int | None = None,
        ephemeral: Path | None = None,
        warn: Warn = print,
        ranks: Ranks | None = None,
    ) -> None:
        self.folder = folder
        self._run_id = run_id
        self._ranks = ranks or Ranks()
        self._durable = Tier(folder, keep, permanent_every)
        self._ephemeral = Tier(ephemeral, 1, ephemeral=True) if ephemeral is not None else None
        self._warn = warn
        self._staging = Staging()
        self._executor: ThreadPoolExecutor | None = None
        self._pending: Future[SaveReport] | None = None
        self._reports: list[SaveReport] = []
        self._ranks.check_shared(folder, "the run's folder")
        if ephemeral is not None:
            self._ranks.check_shared(ephemeral, "train.checkpoint.ephemeral_dir")

    @property
    def _tiers(self) -> list[Tier]:
        return [self._durable] if self._ephemeral is None else [self._durable, self._ephemeral]

    # Saving.

    def save(
        self,
        step: int,
        tensors: Mapping[str, Tensor],
        state: dict[str, Any],
        *,
        facts: dict[str, Any] | None = None,
        asynchronous: bool = False,
        ephemeral: bool = False,
        before_commit: Callable[[], None] | None = None,
    ) -> None:
        """Save one checkpoint: this rank's part of `tensors`, rank 0's `state`. `facts` go into the manifest
        (lineage); `before_commit` runs on rank 0 just before it is made visible, in the same thread (syncing the
        metrics that stand on it).

        Raises DiskSpaceError when it does not fit; earlier checkpoints stay. An asynchronous save waits for the one
        before it, and its errors are raised by the next `save`, `poll` or `wait`.
        """
        tier = self._ephemeral if ephemeral else self._durable
        if tier is None:
            raise ValueError("the store has no ephemeral tier")
        self.wait()
        state = parse_json(canonical_json(state))  # a copy, and an error here rather than in the thread
        pieces = pieces_of(tensors)
        facts = {**(facts or {}), "run": self._run_id}
        if not asynchronous:
            self._reports.append(write_checkpoint(tier, step, pieces, state, facts, before_commit, self._ranks))
            return
        staged = self._staging.copy(pieces)
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._pending = self._executor.submit(
            write_checkpoint, tier, step, staged, state, facts, before_commit, self._ranks
        )

    @property
    def idle(self) -> bool:
        """Whether no save is running on this rank. Ranks see the end of a save at different moments: those that train
        together agree on it before they call `poll`, so that an error is raised at the same step everywhere."""
        return self._pending is None or self._pending.done()

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

    def clean(self) -> None:
        """Remove what a kill left behind: half-written and half-deleted checkpoints."""

        def clean() -> None:
            for tier in self._tiers:
                tier.clean()

        self._ranks.on_first(clean)

    def forget(self, unwanted: Callable[[CheckpointRef], bool]) -> None:
        """Delete checkpoints, so that they do not count among those that are kept; permanent ones stay, behind all
        others."""

        def forget() -> None:
            for tier in self._tiers:
                listed = list_checkpoints(tier.folder)
                gone = [ref for ref in listed if unwanted(ref)]
                stay = [ref for ref in gone if ref.manifest().get("permanent")]
                for ref in gone:
                    if ref not in stay:
                        tier.discard(ref.path)
                if stay:
                    tier.point([ref.name for ref in (*(ref for ref in listed if ref not in gone), *stay)])

        self._ranks.on_first(forget)

    # Loading.

    def refs(self) -> list[CheckpointRef]:
        """All committed checkpoints of either tier, the one written last first; the same on all ranks. A save that is
        running is waited for, so that the list depends on the steps done and not on a disk's speed."""
        self.wait()
        return self._ranks.on_first(lambda: newest_first(self._tiers))

    def newest_good(self, wanted: Callable[[CheckpointRef], bool] = lambda ref: True) -> LoadedCheckpoint | None:
        """The newest checkpoint, of either tier, that is `wanted` and whose every byte is as it was written, or None if
        none was ever committed. All ranks get the same one.

        A damaged one is reported, set aside as `step-N.corrupt` and the one before is tried. Raises
        CorruptArtifactError if there are checkpoints but none is whole: starting over must be a person's decision.
        """
        refs = [ref for ref in self.refs() if wanted(ref)]
        for ref in refs:
            try:
                return load_checkpoint(ref, self._ranks)
            except CorruptArtifactError as error:
                aside = self._ranks.on_first(lambda ref=ref: _set_aside(ref))  # type: ignore[misc]
                if self._ranks.first:
                    self._warn(
                        f"CHECKPOINT {ref.name} IS DAMAGED ({error.where}: {error.what}); it is set aside as "
                        f"{aside} and the one before it is used"
                    )
        damaged = self._ranks.on_first(
            lambda: sum(1 for tier in self._tiers if tier.folder.is_dir() for _ in tier.folder.glob(f"step-*{CORRUPT}"))
        )
        if refs or damaged:
            raise CorruptArtifactError(
                f"none of the run's {len(refs) or damaged} checkpoints is whole",
                where=str(self.folder),
                mend="restore one from a copy; to train again from the start, delete the run folder",
            )
        return None


def _set_aside(ref: CheckpointRef) -> str:
    aside = ref.path.with_name(ref.path.name + CORRUPT)
    shutil.rmtree(aside, ignore_errors=True)
    ref.path.rename(aside)
    return aside.name
