"""The folder of one training run, read without torch: what it is, how far it is, which checkpoints are whole.

In: a path. Out: `RunFolder`. Layout (everything but `run.json` and the tokenizer grows while the run trains):

    run.json            what is trained, on what: model, train, seed, dataset and tokenizer fingerprints
    recipe.yaml         the resolved recipe, where one was given
    tokenizer/          a copy of the tokenizer
    ledger.jsonl        headwater.train.ledger
    metrics.jsonl       headwater.monitor.record
    events.jsonl        starts, resumes, checkpoints, warnings, with times
    samples.jsonl       texts generated on the way
    checkpoints/        step-00000100/ (committed), newest.json (their names, the newest first)
    final.json          written once, when the last step is done

    RunFolder.open("runs/4f2a").status()         # RunStatus(state="partial", step=100, steps=2000)
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from headwater.core.errors import CorruptArtifactError, InputError
from headwater.core.files import atomic_write, sha256_file
from headwater.core.jsonl import JsonlLog, json_fault, json_safe, parse_json, pretty_json, read_jsonl
from headwater.core.locks import lock_owner
from headwater.monitor.record import read_metrics
from headwater.train.ledger import RunLedger

CHECKPOINT_PREFIX = "step-"
MANIFEST = "manifest.json"
POINTER = "newest.json"
MEND_CHECKPOINT = "remove the checkpoint's folder and train again, which goes on from the one before it"

RUN_KINDS: Mapping[str, type] = {"model": dict, "train": dict, "facts": dict, "seed": int, "steps": int, "dataset": str}
FINAL_KINDS: Mapping[str, type] = {"checkpoint": str, "step": int, "metrics": dict}
WORDS: Mapping[type, str] = {dict: "object", int: "whole number", str: "text"}
"""What fields of `run.json` and `final.json` are, where they are."""

State = Literal["empty", "partial", "running", "finished"]


@dataclass(frozen=True, slots=True)
class CheckpointRef:
    """One committed checkpoint. `path` is its folder; what it holds is checked when it is loaded."""

    path: Path
    step: int

    @property
    def name(self) -> str:
        return self.path.name

    def manifest(self) -> dict[str, Any]:
        """The manifest: {format, run, step, ledger, dataset, permanent, files: {name: {sha256, bytes}}}.

        CorruptArtifactError if it cannot be read.
        """
        try:
            manifest = parse_json((self.path / MANIFEST).read_bytes())
            if not isinstance(manifest, dict) or not isinstance(manifest.get("files"), dict):
                raise ValueError("not a manifest")
            return manifest
        except (OSError, ValueError) as error:
            raise CorruptArtifactError(
                f"the checkpoint's manifest cannot be read: {json_fault(error)}",
                where=str(self.path / MANIFEST),
                mend=MEND_CHECKPOINT,
            ) from error

    def verify(self, share: int = 0, shares: int = 1) -> dict[str, Any]:
        """The manifest, once every file has been held against it: sizes of all, contents of each `shares`-th from
        `share` on. CorruptArtifactError names the file that differs."""
        manifest = self.manifest()
        for number, (name, facts) in enumerate(sorted(manifest["files"].items())):
            path = self.path / name
            _check_size(path, facts["bytes"])  # cheap, and sees what only this machine sees
            if number % shares == share and sha256_file(path) != facts["sha256"]:
                raise CorruptArtifactError("content has changed", where=str(path), mend=MEND_CHECKPOINT)
        return manifest


def _check_size(path: Path, expected: int) -> None:
    try:
        size = path.stat().st_size
    except OSError:
        size = None
    if size is None or not path.is_file():
        raise CorruptArtifactError("file is missing", where=str(path), mend=MEND_CHECKPOINT)
    if size != expected:
        what = f"{size:,} bytes instead of {expected:,}"
        raise CorruptArtifactError(what, where=str(path), mend=MEND_CHECKPOINT)


@dataclass(frozen=True, slots=True)
class RunStatus:
    """`step` of `steps` is the newest committed checkpoint, from which a partial run goes on."""

    state: State
    step: int
    steps: int


def checkpoint_name(step: int) -> str:
    return f"{CHECKPOINT_PREFIX}{step:08d}"


def list_checkpoints(folder: Path) -> list[CheckpointRef]:
    """Committed checkpoints, the one written last first.

    The order is that of the pointer file, not of the steps: after a rewind the newest need not have the highest step.
    One that the file does not name was committed just before a kill, so it is newer than all the file names.
    """
    found: dict[str, CheckpointRef] = {}
    for path in folder.iterdir() if folder.is_dir() else ():
        digits = path.name.removeprefix(CHECKPOINT_PREFIX)
        if path.name.startswith(CHECKPOINT_PREFIX) and digits.isdigit() and path.is_dir():
            found[path.name] = CheckpointRef(path, int(digits))
    listed = [name for name in pointed_names(folder) if name in found]
    unlisted = sorted(set(found) - set(listed), reverse=True)
    return [found[name] for name in (*unlisted, *listed)]


def pointed_names(folder: Path) -> list[str]:
    """Names in the pointer file, the newest first; [] if it is missing or cannot be read, which loses nothing but the
    order."""
    try:
        names = parse_json((folder / POINTER).read_bytes())["newest_first"]
        return [str(name) for name in names]
    except (OSError, ValueError, KeyError, TypeError):
        return []


class RunFolder:
    """One run's folder. Opening reads only small files; no torch is imported."""

    def __init__(self, path: Path) -> None:
        self.path = Path(path)

    @classmethod
    def open(cls, path: Path | str) -> RunFolder:
        """InputError if there is no run in the folder."""
        folder = cls(Path(path))
        if not (folder.path / "run.json").is_file():
            raise InputError(
                "no training run here: run.json is missing", where=str(path), mend="give the folder of a run"
            )
        return folder

    @classmethod
    def of(cls, path: Path | str) -> RunFolder:
        """The run a model's path means: a run's own folder, or that of the run a checkpoint belongs to. InputError if
        it is neither."""
        place = Path(path).resolve()
        checkpoint = (place / MANIFEST).is_file() and place.name.startswith(CHECKPOINT_PREFIX)
        return cls.open(place.parent.parent if checkpoint else Path(path))

    @property
    def record(self) -> dict[str, Any]:
        """`run.json`: {format, run, model, train, seed, steps, dataset, tokenizer, created, facts}; {} at first."""
        return self._json("run.json", RUN_KINDS) or {}

    @property
    def run_id(self) -> str:
        return self.path.name

    @property
    def checkpoints_dir(self) -> Path:
        return self.path / "checkpoints"

    @property
    def metrics_path(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def samples_path(self) -> Path:
        return self.path / "samples.jsonl"

    @property
    def ledger_path(self) -> Path:
        return self.path / "ledger.jsonl"

    @property
    def tokenizer_path(self) -> Path:
        return self.path / "tokenizer"

    def ledger(self) -> RunLedger:
        """The checked ledger; CorruptArtifactError if its chain is broken."""
        return RunLedger(self.ledger_path)

    def status(self) -> RunStatus:
        newest = self.newest_checkpoint()
        step, steps = (newest.step if newest else 0), int(self.record.get("steps", 0))
        if self.final is not None:
            return RunStatus("finished", step, steps)
        if lock_owner(self.path) is not None:
            return RunStatus("running", step, steps)
        return RunStatus("partial" if self.record else "empty", step, steps)

    def checkpoints(self) -> list[CheckpointRef]:
        """Committed checkpoints, newest first."""
        return list_checkpoints(self.checkpoints_dir)

    def newest_checkpoint(self) -> CheckpointRef | None:
        checkpoints = self.checkpoints()
        return checkpoints[0] if checkpoints else None

    @property
    def final(self) -> CheckpointRef | None:
        """The checkpoint of the last step of a finished run; None while it is not finished."""
        if not (done := self.final_record):
            return None
        path = self.checkpoints_dir / str(done["checkpoint"])
        return CheckpointRef(path, int(done["step"])) if (path / MANIFEST).exists() else None

    @property
    def final_record(self) -> dict[str, Any]:
        """`final.json`: {checkpoint, step, tokens, metrics}; {} while the run is not finished."""
        return self._json("final.json", FINAL_KINDS) or {}

    def metrics(self) -> Iterator[dict[str, Any]]:
        return read_metrics(self.metrics_path)

    def events(self) -> Iterator[dict[str, Any]]:
        path = self.path / "events.jsonl"
        if path.exists():
            yield from read_jsonl(path, on_broken=lambda *_: None)

    def samples(self) -> Iterator[dict[str, Any]]:
        """{step, prompt, text} of the texts generated while training."""
        if self.samples_path.exists():
            yield from read_jsonl(self.samples_path, on_broken=lambda *_: None)

    def differences(self, record: dict[str, Any]) -> list[str]:
        """Where a record differs from the run that is here: `train.z_loss (0.0 there, 0.5 here)`, at most six."""
        before = self.record
        found = [text for key, now in record.items() for text in _differences(key, before.get(key), now)]
        return found if len(found) <= 6 else [*found[:5], f"{len(found) - 5} more"]

    # What the trainer writes.

    def write_json(self, name: str, value: dict[str, Any]) -> None:
        atomic_write(self.path / name, pretty_json(json_safe(value)))

    def event(self, kind: str, **facts: Any) -> None:
        """Append to `events.jsonl`, with the time."""
        with JsonlLog(self.path / "events.jsonl") as log:
            log.append(json_safe({"time": round(time.time(), 3), "event": kind, **facts}))

    def _json(self, name: str, kinds: Mapping[str, type]) -> dict[str, Any] | None:
        try:
            data = (self.path / name).read_bytes()
        except OSError:
            return None
        try:
            value = parse_json(data)
            if not isinstance(value, dict):
                raise ValueError("it holds no object")
            for key, kind in kinds.items():
                if key in value and not isinstance(value[key], kind):
                    raise ValueError(f"its `{key}` is {value[key]!r:.40}, which is no {WORDS[kind]}")
            return value
        except ValueError as error:
            raise CorruptArtifactError(
                f"the file is damaged: {json_fault(error)}",
                where=str(self.path / name),
                mend="put back a copy of it, or train anew into another folder",
            ) from error


def _differences(name: str, there: Any, here: Any) -> Iterator[str]:
    if isinstance(there, dict) and isinstance(here, dict):
        for key in sorted({*there, *here}):
            yield from _differences(f"{name}.{key}", there.get(key), here.get(key))
    elif there != here:
        shown = [text if len(text) <= 40 else text[:37] + "..." for text in map(str, (there, here))]
        yield f"{name} ({shown[0]} there, {shown[1]} here)"
