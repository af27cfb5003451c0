"""The recipe's `executor` section: how data stages spread over processes. Nothing in it changes a result."""

from __future__ import annotations

from typing import Literal

from pydantic import model_validator

from headwater.core.config import Section, field

LOCAL_RAY = "local"
"""Ray's own name for a Ray on this machine alone."""


class ExecutorConfig(Section):
    """Where the work on document and token shards runs."""

    kind: Literal["inline", "process", "ray"] = field("process", kind="operational")
    """`inline` runs in the calling process; `process` in a pool of worker processes on this machine; `ray` on a Ray
    cluster (extra `ray`) whose nodes share the workspace's storage. The result is the same bytes."""

    workers: int = field(0, unit="processes", kind="operational", ge=0, aliases=("num_workers",))
    """Worker processes; 0 takes one for each processor core this process may use. On Ray: items at once, 0 for as many
    as the cluster has cores."""

    address: str | None = field(None, kind="operational", min_length=1)
    """Where the Ray cluster is: HOST:PORT, or `auto` for the one this machine is part of. None: a Ray of this machine's
    own, for as long as the command runs."""

    @model_validator(mode="after")
    def _check_address(self) -> ExecutorConfig:
        if self.address is not None and self.kind != "ray":
            raise ValueError(f"an address belongs to kind ray, not {self.kind}")
        return self
