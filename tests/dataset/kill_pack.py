"""Packs a corpus artifact: the process that test_build kills. Arguments: workspace, worker processes."""

import sys
from pathlib import Path

from headwater.core.artifacts import ArtifactStore
from headwater.core.executor import make_executor
from headwater.core.stage import StageContext
from headwater.dataset.build import build
from headwater.dataset.config import DatasetConfig

workspace, workers = Path(sys.argv[1]), int(sys.argv[2])
store = ArtifactStore(workspace)
inputs = {name: store.all(name)[0] for name in ("curate", "tokenizer")}
keys = {name: artifact.fingerprint for name, artifact in inputs.items()}
with make_executor("process" if workers else "inline", workers) as executor:
    if store.find("dataset", "d" * 16) is None:
        with store.writer("dataset", "d" * 16, version=1, identity={}, inputs=keys) as out:
            out.commit(build(DatasetConfig(), inputs, out, StageContext(workspace, executor)))
