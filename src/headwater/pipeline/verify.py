"""Whether what lies in a workspace still has the content it was committed with: every file of results and checkpoints
is read once and held against the SHA-256 beside it.

In: committed artifacts and runs. Out: what is damaged, by folder, with the mend. A flipped bit on a disk changes no
size, which is all that is looked at otherwise until a file is read.

    damages(ArtifactStore(workspace).all("export"), reporter)
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from headwater.core.artifacts import Artifact
from headwater.core.errors import CorruptArtifactError
from headwater.core.progress import Reporter
from headwater.train.run_folder import CheckpointRef, RunFolder


def damages(things: Iterable[Artifact | RunFolder], reporter: Reporter) -> dict[Path, str]:
    """What is wrong with those that are damaged, by their path. Of a run all its checkpoints are read."""
    parts: list[tuple[Path, Artifact | CheckpointRef]] = []
    for thing in things:
        parts += [(thing.path, part) for part in (thing.checkpoints() if isinstance(thing, RunFolder) else [thing])]
    found: dict[Path, list[str]] = {}
    with reporter.progress("checking contents", total=len(parts), unit="folders") as bar:
        for path, part in parts:
            try:
                part.verify(deep=True) if isinstance(part, Artifact) else part.verify()
            except CorruptArtifactError as error:
                found.setdefault(path, []).append(f"{error.where}: {error.what}; {error.mend}")
            bar.advance()
    return {path: ". ".join(words) for path, words in found.items()}
