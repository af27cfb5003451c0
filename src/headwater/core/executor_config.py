"""The recipe's `executor` section: how data stages spread over processes. Nothing in it changes a result."""

from __future__ import annotations

from typing import Literal

from headwater.core.config import Section, field


class ExecutorConfig(Section):
    """Where the work on document and token shards runs."""

    kind: Literal["inline", "process"] = field("process", kind="operational")
    """`inline` runs in the calling process; `process` in a pool of worker processes on this machine."""

    workers: int = field(0, unit="processes", kind="operational", ge=0, aliases=("num_workers",))
    """Worker processes; 0 takes one for each processor core this process may use."""
