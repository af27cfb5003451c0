"""A curated corpus as the target of a verb, and what was made from it: datasets, runs, steps.

In: a corpus's folder, or a recipe whose corpus is made. Out: the artifact; and for documents to take down, every
dataset and run of the workspace that holds them, with the steps that read them.

    corpus = find_corpus(Path("recipe.yaml"), None, ())
    who_saw(workspace, {"0123456789abcdef0123456789abcdef"})
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from headwater.core.artifacts import Artifact, ArtifactStore
from headwater.core.errors import HeadwaterError, InputError
from headwater.core.recipe import Loaded
from headwater.pipeline.resolve import Resolver
from headwater.pipeline.schema import Recipe
from headwater.pipeline.tracing import trace
from headwater.train.run_folder import RunFolder


def corpus_of_recipe(loaded: Loaded[Recipe], workspace: Path | None) -> Artifact:
    """The corpus of a recipe. Raises InputError if it is not made."""
    folder = workspace or Path(loaded.config.workspace)
    resolved = next(item for item in Resolver(loaded.config, folder).all() if item.stage.name == "curate")
    if resolved.artifact is None:
        raise InputError(
            f"this recipe's corpus is not there ({resolved.state})",
            where=str(folder),
            mend=f"headwater curate {loaded.source}",
        )
    return resolved.artifact


def datasets_of(corpus: Artifact) -> list[Artifact]:
    """Datasets of the workspace that were packed from a corpus."""
    store = ArtifactStore(corpus.path.resolve().parent.parent)
    return [artifact for artifact in store.all("dataset") if artifact.inputs.get("curate") == corpus.fingerprint]


def tokens_of(corpus: Artifact) -> dict[str, Any]:
    """Tokens by split and domain of each dataset packed from a corpus."""
    return {
        dataset.fingerprint: {
            split: {domain: item["tokens"] for domain, item in domains.items()}
            for split, domains in dataset.counts["splits"].items()
        }
        for dataset in datasets_of(corpus)
    }


def who_saw(workspace: Path, ids: Iterable[str]) -> dict[str, Any]:
    """Datasets that hold some of the documents, and runs that read them: run -> document -> steps.

    Runs whose dataset is gone are named under `unknown`: nobody can say what they read.
    """
    from headwater.dataset.dataset import TokenDataset

    wanted = sorted(ids)
    datasets = [
        {"dataset": str(artifact.path), "documents": found}
        for artifact in ArtifactStore(workspace).all("dataset")
        if (found := _held(TokenDataset.open(artifact), wanted))
    ]
    runs: list[dict[str, Any]] = []
    unknown: list[str] = []
    for record in sorted((workspace / "runs").glob("*/run.json")):
        run = RunFolder(record.parent)
        seen: list[dict[str, Any]] = []
        done = run.status().step
        for name in wanted:
            try:
                found = trace(run, document=name)["documents"]
            except InputError as error:
                if "dataset" in error.what:
                    unknown.append(run.run_id)
                    break
                continue  # not in what this run was trained on
            except HeadwaterError:
                unknown.append(run.run_id)
                break
            steps = sorted({step for part in found for step in part["steps"] if step <= done})
            if steps:
                seen.append({"id": name, "steps": steps})
        if seen:
            runs.append({"run": run.run_id, "path": str(run.path), "steps_done": done, "documents": seen})
    return {"datasets": datasets, "runs": runs, "unknown": unknown}


def _held(dataset: Any, ids: Sequence[str]) -> list[dict[str, str]]:
    found = []
    for split in dataset.splits:
        for stream in dataset.split(split).domains.values():
            found += [{"id": name, "split": split} for name in ids if stream.find(name)]
    return found
