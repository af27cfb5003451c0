"""What training software does: attention kernels, overlap, fusion. Facts by stack, read from `data/stacks.yaml`.

python -c "from headwater.plan.stacks import stack; print(stack('megatron-core'))"
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

from headwater.core.errors import InputError

from .cases import Attention


@dataclass(frozen=True)
class Stack:
    """A software stack; numbers are 0 or 1 unless said. See `data/stacks.yaml` for the meaning of each."""

    name: str
    attention: Attention
    fusion: int = 1
    slow_host: int = 0
    gathers: int = 0
    spread: int = 0
    overlap_wgrad: int = 0
    dropout: int = 0
    grad_bytes: float = 4.0
    grad_kept: float = 0.0  # 0: as reduced
    optimizer_bytes: float = 12.0
    bucket_bytes: float = 0.0
    sequence_parallel: int = 0
    overlap_grad: int = 0
    overlap_param: int = 0
    overlap_tp: int = 0
    overlap_p2p: int = 0
    overlap_ep: int = 0
    scatter_gather: int = 0
    fused_loss: int = 0
    reshard: int = 1
    graphs: int = 0
    expandable: int = 0

    def fields(self) -> dict[str, float]:
        """The fields of `Cases` this stack decides."""
        values = {key: float(value) for key, value in vars(self).items() if key != "name"}
        values["grad_kept"] = values["grad_kept"] or values["grad_bytes"]
        return values


@cache
def raw() -> dict[str, Any]:
    return yaml.safe_load(files("headwater.plan").joinpath("data/stacks.yaml").read_text())


@cache
def stack(name: str) -> Stack:
    """A stack by name; InputError with the known names."""
    table = raw()["stacks"]
    if name not in table:
        raise InputError(f"unknown software stack {name!r}", where="stack", mend=f"one of {', '.join(sorted(table))}")
    entry = dict(table[name])
    attention = Attention[str(entry.pop("attention")).upper()]
    return Stack(name=name, attention=attention, **entry)
