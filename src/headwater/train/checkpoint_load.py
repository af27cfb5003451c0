"""Checkpoints on the way back: every byte checked before any is used, by all ranks together.

In: a checkpoint's folder. Out: `LoadedCheckpoint`, or CorruptArtifactError naming the file that differs. With several
ranks each checks a share of the files, and what one finds damaged is damaged for all.

    loaded = load_checkpoint(ref); read_tensors(loaded.ref.path, targets)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headwater.core.errors import CorruptArtifactError
from headwater.core.jsonl import json_fault, parse_json
from headwater.parallel.agreement import Ranks
from headwater.train.run_folder import MANIFEST, MEND_CHECKPOINT, CheckpointRef

STATE = "state.json"
FORMAT = 1


@dataclass(frozen=True)
class LoadedCheckpoint:
    """A verified checkpoint: its state has been read, its tensors have not (see `read_tensors`)."""

    ref: CheckpointRef
    state: dict[str, Any]


def load_checkpoint(ref: CheckpointRef, ranks: Ranks | None = None) -> LoadedCheckpoint:
    """Check every file against the manifest and read the state. Collective over `ranks`, each checking its share.

    Raises CorruptArtifactError, on every rank, that names a file that differs on any.
    """
    ranks = ranks or Ranks()
    return ranks.together(lambda: _load_share(ref, ranks.rank, ranks.size))[ranks.rank]


def _load_share(ref: CheckpointRef, share: int, shares: int) -> LoadedCheckpoint:
    manifest = ref.manifest()
    if manifest.get("format") != FORMAT:
        raise CorruptArtifactError(
            f"format {manifest.get('format')}, this version reads {FORMAT}",
            where=str(ref.path / MANIFEST),
            mend="load it with the version of Headwater that wrote it",
        )
    ref.verify(share, shares)
    try:
        return LoadedCheckpoint(ref, parse_json((ref.path / STATE).read_bytes()))
    except (OSError, ValueError) as error:
        raise CorruptArtifactError(
            f"state cannot be read: {json_fault(error)}", where=str(ref.path / STATE), mend=MEND_CHECKPOINT
        ) from error
