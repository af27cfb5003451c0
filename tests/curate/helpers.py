"""What the tests of curation share: stages run as the pipeline runs them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import zstandard

from headwater.core.artifacts import Artifact, ArtifactStore, fingerprint
from headwater.core.config import identity
from headwater.core.executor import Executor, InlineExecutor
from headwater.core.progress import SILENT, Reporter
from headwater.core.stage import StageContext
from headwater.curate.config import CollectConfig, CurateConfig
from headwater.curate.identity import curate_digests, raw_inputs
from headwater.curate.stage import build_collect, build_curate


class Told(Reporter):
    """Keeps what is said."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def decide(self, what: str, why: str = "") -> None:
        self.lines.append(f"{what}: {why}")


def collect(workspace: Path, config: CollectConfig, executor: Executor | None = None) -> Artifact:
    """The `collect` artifact, made or found."""
    inputs = {"raw": raw_inputs(config)}
    key = fingerprint("collect", 1, identity(config), inputs)
    store = ArtifactStore(workspace)
    if (found := store.find("collect", key)) is not None:
        return found
    context = StageContext(workspace, executor or InlineExecutor(), SILENT)
    with store.writer("collect", key, version=1, identity=identity(config), inputs=inputs) as out:
        return out.commit(build_collect(config, {}, out, context))


def curate(
    workspace: Path, collected: Artifact, config: CurateConfig | None = None, executor: Executor | None = None
) -> Artifact:
    """The `curate` artifact, made or found."""
    config = config or CurateConfig()
    inputs = {"collect": collected.fingerprint, **curate_digests(config)}
    key = fingerprint("curate", 1, identity(config), inputs)
    store = ArtifactStore(workspace)
    if (found := store.find("curate", key)) is not None:
        return found
    context = StageContext(workspace, executor or InlineExecutor(), SILENT)
    with store.writer("curate", key, version=1, identity=identity(config), inputs=inputs) as out:
        return out.commit(build_curate(config, {"collect": collected}, out, context))


def hashes(artifact: Artifact) -> dict[str, str]:
    """Name -> SHA-256 of every file."""
    return {name: artifact.facts(name)["sha256"] for name in artifact.files()}


def write_rows(path: Path, rows: Iterable[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in rows))
    return path


def read_zst(path: Path) -> list[dict[str, Any]]:
    with zstandard.open(path, "rb") as file:
        return [json.loads(line) for line in file.read().splitlines()]


CHINESE = "第{0}篇：今天天气很好，我们一起去公园散步，看到了{0}只鸟和许多花，然后回家吃饭。"
ENGLISH = "Story {0}: the weather was fine, so we went to the park, saw {0} birds and many flowers, and walked home."


def sentence(number: int) -> str:
    """A document that no other number gives, Chinese and English in turn."""
    return (CHINESE if number % 2 else ENGLISH).format(number)
