"""What lies in a workspace, and what a recipe still needs: `headwater status` and `headwater lineage`.

In: a workspace, with or without a recipe. Out: plain JSON values and lines for a person. Reads manifests only.

    status(load("recipes/quickstart.yaml"), Path("workspace"))["stages"][0]["state"]       # "done"
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from headwater.core.artifacts import Artifact, ArtifactStore
from headwater.core.errors import HeadwaterError, InputError
from headwater.core.lineage import lineage
from headwater.core.locks import lock_owner
from headwater.core.progress import Reporter
from headwater.core.recipe import Loaded
from headwater.pipeline.resolve import STATE_HELP, Resolver, brief_counts
from headwater.pipeline.schema import Recipe, load
from headwater.pipeline.stages import STAGES
from headwater.pipeline.verify import damages
from headwater.train.run_folder import RunFolder


def status(loaded: Loaded[Recipe], workspace: Path, verify: Reporter | None = None) -> dict[str, Any]:
    """How far each stage of a recipe is: done, running, partial, stale, missing or waiting. `verify`: also read what is
    there, and tell it what is; what has changed on the disk is damaged."""
    found = Resolver(loaded.config, workspace).all()
    stages = [resolved.to_json() for resolved in found]
    if verify is not None:
        made = [one.artifact or one.run for one in found]
        _mark(stages, damages([thing for thing in made if thing is not None], verify))
    return {
        "recipe": loaded.source,
        "workspace": str(workspace),
        "up_to_date": all(stage["state"] == "done" for stage in stages),
        "stages": stages,
    }


def status_text(facts: dict[str, Any], options: Sequence[str] = ()) -> str:
    """The status of a recipe as lines. `options`: what the recipe was loaded with, which the next command needs too."""
    lines = [f"{facts['recipe']} in {facts['workspace']}"]
    for stage in facts["stages"]:
        note = f"  {stage['note']}" if stage["note"] else ""
        if stage["state"] == "done":
            note = f"  {stage['path']}" + (f"  {stage['note']}" if stage["note"] else "")
        lines.append(f"  {stage['stage']:<10} {stage['state']:<8}{note}".rstrip())
    states = {stage["state"] for stage in facts["stages"]} - {"done"}
    lines += [f"  ({state}: {STATE_HELP[state]})" for state in STATE_HELP if state in states]
    command = shlex.join(["headwater", "run", facts["recipe"], *options])
    lines.append("  everything is up to date" if facts["up_to_date"] else f"  next: {command}")
    return "\n".join(lines)


def _mark(items: list[dict[str, Any]], damaged: Mapping[Path, str]) -> None:
    for item in items:
        if item["path"] is not None and (what := damaged.get(Path(item["path"]))) is not None:
            item |= {"state": "damaged", "note": what}


def overview(workspace: Path, verify: Reporter | None = None) -> dict[str, Any]:
    """Everything in a workspace: artifacts of every stage, committed and partial, and runs. `verify` as in `status`."""
    store = ArtifactStore(workspace)
    damaged: list[dict[str, Any]] = []

    def note(path: Path, error: HeadwaterError) -> None:
        facts = {"stage": path.parent.name, "fingerprint": path.name, "state": "damaged", "path": str(path)}
        damaged.append({**facts, "note": error.what})

    committed = [artifact for stage in STAGES for artifact in store.all(stage.name, note)]
    artifacts = [
        {
            "stage": artifact.stage,
            "fingerprint": artifact.fingerprint,
            "state": "done",
            "path": str(artifact.path),
            "finished": artifact.provenance.get("finished", ""),
            "counts": artifact.counts,
        }
        for artifact in committed
    ]
    partial = [
        {
            "stage": stage.name,
            "fingerprint": path.name.removesuffix(".partial"),
            "state": "running" if lock_owner(path) is not None else "partial",
            "path": str(path),
        }
        for stage in STAGES
        for path in store.partial(stage.name)
    ]
    runs = list(_runs(workspace))
    if verify is not None:
        found = damages([*committed, *(RunFolder(Path(run["path"])) for run in runs)], verify)
        _mark(artifacts, found)
        _mark(runs, found)
    return {"workspace": str(workspace), "artifacts": [*artifacts, *partial, *damaged], "runs": runs}


def _runs(workspace: Path) -> Iterator[dict[str, Any]]:
    for path in sorted((workspace / "runs").glob("*/run.json")):
        run = RunFolder(path.parent)
        state = run.status()
        yield {
            "run": run.run_id,
            "state": "done" if state.state == "finished" else state.state,
            "step": state.step,
            "steps": state.steps,
            "path": str(run.path),
        }


def overview_text(facts: dict[str, Any]) -> str:
    """The overview as lines."""
    lines = [f"{facts['workspace']}"]
    for item in facts["artifacts"]:
        shown = brief_counts(item.get("counts", {}))
        when = item.get("finished", "")
        line = f"  {item['stage']:<10} {item['state']:<8} {item['fingerprint']}  {when}  {shown}".rstrip()
        lines.append(f"{line}  {item['note']}" if item.get("note") else line)
    for run in facts["runs"]:
        line = f"  {'run':<10} {run['state']:<8} {run['run']}  step {run['step']:,} of {run['steps']:,}"
        lines.append(f"{line}  {run['note']}" if run.get("note") else line)
    return "\n".join(lines if len(lines) > 1 else [*lines, "  empty: `headwater run RECIPE` fills it"])


def lineage_of(target: str, workspace: Path) -> dict[str, Any]:
    """The tree of all that an artifact, run, checkpoint or exported folder was made from.

    `target` is a path, a fingerprint (or the start of one) or a run's name. Raises InputError if it is none of them.
    """
    path = Path(target)
    if not path.exists():
        path = _by_name(target, workspace)
    for folder in (path, *path.resolve().parents):
        if (folder / "run.json").is_file():
            return _run_node(RunFolder(folder), _store_of(folder, workspace))
        if (folder / "manifest.json").is_file() and not folder.name.startswith("step-"):
            store = _store_of(folder, workspace)
            return lineage(store, Artifact.open(folder), _checkpoint_resolver(store))
    raise InputError(
        "this belongs to no artifact and no run", where=target, mend="give a folder of the workspace, or a fingerprint"
    )


def last_result(loaded: Loaded[Recipe], workspace: Path) -> Path:
    """The last stage of a recipe that has a result. Raises InputError if none has."""
    made = [resolved.path for resolved in Resolver(loaded.config, workspace).all() if resolved.done and resolved.path]
    if not made:
        raise InputError(
            "nothing of this recipe has been made yet", where=str(workspace), mend=f"headwater run {loaded.source}"
        )
    return made[-1]


def run_of(recipe: Path, overrides: Sequence[str], workspace: Path | None) -> RunFolder:
    """The training run of a recipe, finished or not. Raises InputError if it has not begun."""
    loaded = load(recipe, overrides)
    folder = workspace or Path(loaded.config.workspace)
    resolved = next(item for item in Resolver(loaded.config, folder).all() if item.stage.name == "train")
    if resolved.run is None:
        raise InputError(
            f"this recipe's training run has not begun ({resolved.state})",
            where=str(folder),
            mend=f"headwater run {recipe}",
        )
    return resolved.run


def _by_name(target: str, workspace: Path) -> Path:
    store = ArtifactStore(workspace)
    found = [
        artifact.path
        for stage in STAGES
        for artifact in store.all(stage.name)
        if artifact.fingerprint.startswith(target)
    ]
    found += [
        path.parent
        for path in (workspace / "runs").glob("*/run.json")
        if target in (path.parent.name, path.parent.name[-16:])
    ]
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(f"{path.parent.name}/{path.name}" for path in found[:4])
        raise InputError(f"{target!r} could mean {names}", mend="give more of the fingerprint")
    raise InputError(
        f"there is no path, fingerprint or run {target!r}",
        where=str(workspace),
        mend="`headwater status` lists what is in the workspace",
    )


def _store_of(folder: Path, workspace: Path) -> ArtifactStore:
    """The store a folder lies in: `WORKSPACE/STAGE/FINGERPRINT` names it, whatever `--workspace` says."""
    parent = folder.resolve().parent
    known = {stage.name for stage in STAGES} | {"runs"}
    return ArtifactStore(parent.parent if parent.name in known else workspace)


def _checkpoint_resolver(store: ArtifactStore) -> Callable[[str, str], dict[str, Any] | None]:
    def resolve(role: str, key: str) -> dict[str, Any] | None:
        if role != "checkpoint":
            return None
        run_id, step, _ = key.split("/")
        path = store.workspace / "runs" / run_id
        if not (path / "run.json").is_file():
            return {"kind": "missing", "fingerprint": key}
        return {**_run_node(RunFolder(path), store), "kind": "checkpoint", "fingerprint": key, "checkpoint": step}

    return resolve


def _run_node(run: RunFolder, store: ArtifactStore) -> dict[str, Any]:
    """A run as a node of the tree; its inputs are the dataset and the tokenizer it names."""
    record, state = run.record, run.status()
    inputs: dict[str, Any] = {}
    for role in ("dataset", "tokenizer"):
        key = record.get(role)
        artifact = store.locate(str(key)) if key else None
        inputs[role] = (
            lineage(store, artifact) if artifact is not None else {"kind": "missing", "fingerprint": str(key)}
        )
    return {
        "kind": "run",
        "fingerprint": run.run_id,
        "stage": "train",
        "path": str(run.path),
        "step": state.step,
        "steps": state.steps,
        "created": str(record.get("created", "")),
        "inputs": inputs,
    }


def lineage_text(node: dict[str, Any], role: str = "", depth: int = 0) -> str:
    """The tree, indented, one line a node."""
    label = f"{role}: " if role and role != node.get("stage") else ""
    special = {"content": "raw content", "missing": "not in this workspace"}
    name = special.get(node["kind"]) or node.get("stage", node["kind"])
    line = f"{'  ' * depth}{label}{name} {node['fingerprint']}"
    if node["kind"] == "artifact":
        shown = brief_counts(node["counts"])
        line += f"  {shown}" if shown else ""
    elif node["kind"] in ("run", "checkpoint"):
        line += f"  step {node['step']:,} of {node['steps']:,}"
    children = [lineage_text(child, name, depth + 1) for name, child in node.get("inputs", {}).items()]
    return "\n".join([line, *children])
