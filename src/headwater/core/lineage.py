"""From an artifact back to all it was made from.

tree = lineage(store, artifact)
tree["inputs"]["curate"]["inputs"]["collect"]["inputs"]["raw:web"]["kind"]      # "content"
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from headwater.core.artifacts import Artifact, ArtifactStore

_FINGERPRINT = re.compile(r"[0-9a-f]{16}")

Resolve = Callable[[str, str], dict[str, Any] | None]


def lineage(store: ArtifactStore, artifact: Artifact, resolve: Resolve | None = None) -> dict[str, Any]:
    """A tree as plain JSON data, one node an artifact or input; an input used twice appears twice.

    A node has `kind` and `fingerprint`. Of kind "artifact": also `stage`, `path`, `version`, `counts`, `created` (UTC
    or ""), and `inputs`, role -> node. "content" is a raw input known by its content hash; "missing" an artifact that
    is no longer in the workspace. `resolve(role, fingerprint)` may give the node of what is no artifact of the store,
    such as a run's checkpoint, or None.
    """
    return _node(store, artifact, resolve, {})


def _node(
    store: ArtifactStore, artifact: Artifact, resolve: Resolve | None, seen: dict[str, dict[str, Any]]
) -> dict[str, Any]:
    if artifact.fingerprint not in seen:
        seen[artifact.fingerprint] = {
            "kind": "artifact",
            "fingerprint": artifact.fingerprint,
            "stage": artifact.stage,
            "path": str(artifact.path),
            "version": artifact.version,
            "counts": artifact.counts,
            "created": artifact.provenance.get("finished", ""),
            "inputs": {role: _input(store, role, key, resolve, seen) for role, key in sorted(artifact.inputs.items())},
        }
    return seen[artifact.fingerprint]


def _input(
    store: ArtifactStore, role: str, key: str, resolve: Resolve | None, seen: dict[str, dict[str, Any]]
) -> dict[str, Any]:
    if resolve is not None and (node := resolve(role, key)) is not None:
        return node
    if not _FINGERPRINT.fullmatch(key):
        return {"kind": "content", "fingerprint": key}
    if key in seen:
        return seen[key]
    found = store.locate(key)
    return _node(store, found, resolve, seen) if found else {"kind": "missing", "fingerprint": key}
