"""What a stage is handed besides its configuration and inputs.

A stage is one function:

    def build(config: XConfig, inputs: dict[str, Artifact], out: ArtifactWriter, context: StageContext)
        -> dict[str, Any]:
        ...                       # writes shards into `out`, returns the counts the pipeline commits
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from headwater.core.executor import Executor, InlineExecutor
from headwater.core.progress import SILENT, Reporter


@dataclass(frozen=True)
class StageContext:
    """Where a stage runs and whom it tells. Nothing in it may change the result."""

    workspace: Path
    executor: Executor = field(default_factory=InlineExecutor)
    reporter: Reporter = SILENT
