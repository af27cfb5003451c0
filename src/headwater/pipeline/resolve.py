"""What a recipe's stages are called in a workspace, and how far each has come.

In: a recipe and a workspace. Out: a `Resolved` for each stage: its fingerprint, its inputs, its state, and for what is
stale, which fields changed. Nothing is built, no artifact is opened beyond its manifest, no torch is imported.

    Resolver(recipe, Path("workspace")).all()
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from headwater.core.artifacts import Artifact, ArtifactStore, fingerprint
from headwater.core.jsonl import plain_json
from headwater.core.locks import lock_owner
from headwater.core.rawinput import HashCache
from headwater.curate.fetch.fetch import unfetched
from headwater.curate.identity import curate_digests, raw_digests
from headwater.pipeline.schema import Recipe
from headwater.pipeline.stages import STAGES, Stage

if TYPE_CHECKING:
    from headwater.train.run_folder import RunFolder

State = Literal["done", "running", "partial", "stale", "missing", "waiting"]

STATE_HELP: dict[State, str] = {
    "done": "committed for this recipe",
    "running": "a process works on it now",
    "partial": "begun for this recipe; running again goes on",
    "stale": "there is a result, but of another recipe or other inputs",
    "missing": "not begun",
    "waiting": "its inputs have to be made first",
}


@dataclass(frozen=True, slots=True)
class Resolved:
    """One stage of one recipe in one workspace.

    `fingerprint` is "" while an input is not known yet. `artifact` is set when the stage is done; `run` for the
    training stage whenever its folder exists. `changes` says why a stale stage is stale.
    """

    stage: Stage
    inputs: Mapping[str, str]
    fingerprint: str
    state: State
    artifact: Artifact | None = None
    run: RunFolder | None = None
    path: Path | None = None
    note: str = ""
    changes: tuple[str, ...] = field(default=())

    @property
    def done(self) -> bool:
        return self.state == "done"

    def to_json(self) -> dict[str, Any]:
        counts = self.artifact.counts if self.artifact is not None else None
        return {
            "stage": self.stage.name,
            "state": self.state,
            "fingerprint": self.fingerprint or None,
            "path": str(self.path) if self.path is not None else None,
            "note": self.note,
            "changes": list(self.changes),
            "counts": counts,
        }


class Resolver:
    """Resolves stages in order; what a stage's fingerprint needs is computed once."""

    def __init__(self, recipe: Recipe, workspace: Path) -> None:
        self.recipe = recipe
        self.workspace = workspace
        self.store = ArtifactStore(workspace)

    def all(self) -> list[Resolved]:
        """Every stage, in order."""
        return list(self._walk())

    def _walk(self) -> Iterator[Resolved]:
        known: dict[str, Resolved] = {}
        for stage in STAGES:
            known[stage.name] = self.resolve(stage, known)
            yield known[stage.name]

    def resolve(self, stage: Stage, known: Mapping[str, Resolved]) -> Resolved:
        """One stage, given the stages it reads from."""
        inputs = self.inputs(stage, known)
        if inputs is None:
            return self._unfinished(stage, {}, "", "waiting")
        key = fingerprint(stage.name, stage.version, self.identity(stage), inputs)
        return self._training(stage, inputs, key) if stage.name == "train" else self._artifact(stage, inputs, key)

    def identity(self, stage: Stage) -> Any:
        """What of the recipe decides a stage's result, as plain JSON values."""
        return plain_json(stage.identity(self.recipe))

    def inputs(self, stage: Stage, known: Mapping[str, Resolved]) -> dict[str, str] | None:
        """Role -> fingerprint of an artifact, key of a checkpoint or content hash; None while one is unknown."""
        if stage.raw:
            return None if unfetched(self.recipe.collect) else self.raw_inputs
        inputs: dict[str, str] = {}
        for name in stage.inputs:
            resolved = known[name]
            if name == "train":
                key = checkpoint_key(resolved.run) if resolved.done and resolved.run is not None else None
                if key is None:
                    return None
                inputs["checkpoint"] = key
            elif not resolved.fingerprint:
                return None
            else:
                inputs[name] = resolved.fingerprint
        return {**inputs, **self.curate_files} if stage.name == "curate" else inputs

    @cached_property
    def raw_inputs(self) -> dict[str, str]:
        """Content hashes of the raw inputs, by source. Raises InputError for a source that is not there."""
        with HashCache(self.workspace) as cache:
            return {f"raw:{name}": digest for name, digest in raw_digests(self.recipe.collect, cache).items()}

    @cached_property
    def curate_files(self) -> dict[str, str]:
        """Content hashes of the files that the `curate` section names. Raises InputError for one that is not there."""
        with HashCache(self.workspace) as cache:
            return curate_digests(self.recipe.curate, cache)

    def _artifact(self, stage: Stage, inputs: dict[str, str], key: str) -> Resolved:
        artifact = self.store.find(stage.name, key)
        if artifact is not None:
            artifact.verify()  # files that are gone or cut short; contents are checked where they are read
            return Resolved(stage, inputs, key, "done", artifact, path=artifact.path)
        partial = self.store.path(stage.name, key).with_name(f"{key}.partial")
        if partial.is_dir():
            owner = lock_owner(partial)
            if owner is not None:
                note = f"process {owner.get('pid')} on {owner.get('host')}, since {owner.get('since')}"
                return Resolved(stage, inputs, key, "running", path=partial, note=note)
            return Resolved(stage, inputs, key, "partial", path=partial, note="running again goes on from here")
        return self._unfinished(stage, inputs, key, "missing")

    def _training(self, stage: Stage, inputs: dict[str, str], key: str) -> Resolved:
        from headwater.train.run_folder import RunFolder

        path = run_path(self.workspace, self.recipe.name, key)
        run = RunFolder(path)
        status = run.status()
        note = f"step {status.step:,} of {status.steps:,}" if status.steps else ""
        if status.state == "finished":
            return Resolved(stage, inputs, key, "done", run=run, path=path, note=note)
        if status.state == "running":
            return Resolved(stage, inputs, key, "running", run=run, path=path, note=note)
        if status.state == "partial":
            return Resolved(stage, inputs, key, "partial", run=run, path=path, note=f"{note}; running again goes on")
        return self._unfinished(stage, inputs, key, "missing")

    def _unfinished(self, stage: Stage, inputs: dict[str, str], key: str, state: State) -> Resolved:
        """Missing or waiting; stale if an older result of the same stage lies in the workspace."""
        older = self._older(stage)
        if older is None:
            note = STATE_HELP[state] if state == "waiting" else ""
            return Resolved(stage, inputs, key, state, note=note)
        path, was_identity, was_inputs = older
        prefix = stage.section if stage.sections == (stage.section,) else ""
        changes = [*_differences(prefix, was_identity, self.identity(stage))]
        if key:
            roles = sorted(set(was_inputs) | set(inputs))
            changes += [f"{role} is another" for role in roles if was_inputs.get(role) != inputs.get(role)]
        note = "; ".join(changes[:3]) + (f"; {len(changes) - 3} more" if len(changes) > 3 else "")
        return Resolved(stage, inputs, key, "stale", path=path, note=note, changes=tuple(changes))

    def _older(self, stage: Stage) -> tuple[Path, Any, Mapping[str, str]] | None:
        if stage.name == "train":
            records = (self.workspace / "runs").glob(f"{self.recipe.name}-*/run.json")
            runs = [path.parent for path in sorted(records, key=lambda path: path.stat().st_mtime)]
            return (runs[-1], *self._run_made_from(runs[-1], stage)) if runs else None
        artifacts = self.store.all(stage.name)
        if not artifacts:
            return None
        newest = max(artifacts, key=lambda artifact: str(artifact.provenance.get("finished", "")))
        return newest.path, newest.identity, newest.inputs

    def _run_made_from(self, path: Path, stage: Stage) -> tuple[Any, Mapping[str, str]]:
        from headwater.train.run_folder import RunFolder

        record = RunFolder(path).record
        inputs = {role: str(record.get(role, "")) for role in stage.inputs}
        return _run_identity(record, self.identity(stage)), inputs


def _run_identity(record: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """What a run was made from, in the form of the training stage's identity. A vocabulary left to the tokenizer is no
    difference."""
    model = dict(record.get("model", {}))
    if now["model"].get("vocab_size") is None:
        model["vocab_size"] = None
    return {"model": model, "train": record.get("train"), "seed": record.get("seed")}


def run_path(workspace: Path, name: str, key: str) -> Path:
    """`WORKSPACE/runs/NAME-KEY`; a run made under another name of the same recipe is found by its key."""
    found = sorted((workspace / "runs").glob(f"*-{key}"))
    return found[0] if found else workspace / "runs" / f"{name}-{key}"


def checkpoint_key(run: RunFolder | None) -> str | None:
    """What names a finished run's last checkpoint as an input: `RUN_ID/step-00000100/SHA256-OF-ITS-MANIFEST`."""
    from headwater.core.files import sha256_file

    final = run.final if run is not None else None
    if run is None or final is None:
        return None
    return f"{run.run_id}/{final.name}/{sha256_file(final.path / 'manifest.json')[:16]}"


def brief_counts(counts: Mapping[str, Any]) -> str:
    """The counts of a result that are worth a glance: `1,200 documents, 34,000 tokens`."""
    return ", ".join(
        f"{counts[name]:,} {name}" for name in ("documents", "tokens") if isinstance(counts.get(name), int)
    )


def _differences(path: str, was: Any, now: Any) -> Iterator[str]:
    """`curate.min_chars 20 -> 30` for each field that differs."""
    if was is None or was == now:
        return
    if isinstance(was, dict) and isinstance(now, dict):
        for key in sorted(set(was) | set(now)):
            name = f"{path}.{key}" if path else key
            yield from _differences(name, was.get(key, "not there"), now.get(key, "not there"))
        return
    yield f"{path}: {_short(was)} -> {_short(now)}"


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 40 else text[:37] + "..."
