"""The runs a dashboard shows: those of a workspace, with the ones that come while it is open, or those named.

In: workspaces, folders of runs, runs. Out: readers by a short id, which is all that a browser ever says about a path.

    RunList([Path("workspace")]).readers()      # {"8f3c...": RunReader, ...}
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Sequence
from pathlib import Path

from headwater.core.errors import InputError
from headwater.monitor.web.reader import RunReader


class RunList:
    """`places`: run folders (with a run.json or a metrics.jsonl), folders that hold such, or workspaces (whose runs lie
    in `runs/`).

    InputError for a place that is none of them.
    """

    def __init__(self, places: Sequence[Path]) -> None:
        self._lock = threading.Lock()
        self._readers: dict[Path, RunReader] = {}
        self._ids: dict[str, Path] = {}
        self._parents: list[Path] = []
        for place in places:
            if not place.is_dir():
                raise InputError("no such folder", where=str(place), mend="give a workspace, or the folder of each run")
            if is_run(place):
                self._add(place, place)
            elif (parent := runs_folder(place)) is not None:
                self._parents.append(parent)
            else:
                raise InputError(
                    "neither a run nor a folder of runs: there is no run.json, no metrics.jsonl, no folder runs and "
                    "no run in it",
                    where=str(place),
                    mend="give a workspace, or the folder of each run",
                )
        self.readers()

    def readers(self) -> dict[str, RunReader]:
        """By id, newest folders of workspaces included. A link out of its workspace is not followed."""
        with self._lock:
            for folder in self._parents:
                for path in sorted(folder.iterdir()) if folder.is_dir() else ():
                    if path not in self._readers and is_run(path) and path.resolve().is_relative_to(folder.resolve()):
                        self._add(path, folder)
            return {key: self._readers[path] for key, path in self._ids.items()}

    def _add(self, path: Path, root: Path) -> None:
        if path not in self._readers:
            # The same in every session, so that an address with runs in it can be kept.
            self._ids[hashlib.sha256(str(path.resolve()).encode(errors="surrogateescape")).hexdigest()[:12]] = path
            self._readers[path] = RunReader(path, root)


def is_run(path: Path) -> bool:
    """Whether a folder is that of a training run, however young."""
    return (path / "run.json").is_file() or (path / "metrics.jsonl").is_file()


def runs_folder(place: Path) -> Path | None:
    """Where the runs of a place lie: in the `runs` of a workspace, else in the place itself if it is such a folder or
    holds a run. None where no run is to be expected."""
    if (place / "runs").is_dir():
        return place / "runs"
    return place if place.name == "runs" or any(map(is_run, place.glob("*"))) else None


def newest_run(place: Path) -> Path | None:
    """The run of a workspace, or of a folder of runs, that was written to last."""
    folder = runs_folder(place)
    runs = [path for path in folder.glob("*") if is_run(path)] if folder is not None else []
    return max(runs, key=_written, default=None)


def _written(path: Path) -> float:
    return max(file.stat().st_mtime for name in ("run.json", "metrics.jsonl") if (file := path / name).is_file())
