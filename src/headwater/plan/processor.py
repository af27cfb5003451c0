"""Machines without accelerators: what a rank on a processor has that one on a GPU has not.

In: the `processor` section of a machine file, written by `headwater plan calibrate`. Out: fields of `Cases`; all are 0
for a GPU, and then nothing of this counts.

    Processor(process_bytes=4e8).case_fields()["process_bytes"]
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from headwater.core.errors import InputError

from .quantities import plain

LIMITS = {
    "process_bytes": 1e15,
    "rank_bytes": 1e15,
    "allocator_share": 1e3,
    "neighbours": 1e3,
    "attention_tile": 1e6,
    "attention_kept_keys": 1e9,
}
"""The most of each; above are slips of a key, which would end in sums without a meaning."""


@dataclass(frozen=True)
class Processor:
    """Measured on the machine, but for the attention kernel's two, which are the trainer's own.

    A process's memory is `process_bytes` and, of what its tensors take at their peak, `1 + allocator_share`.
    """

    process_bytes: float
    """Interpreter and libraries of a training process, before any model."""

    rank_bytes: float = 0.0
    """More of the same in each of several ranks: process group, buffers of messages."""

    allocator_share: float = 0.0
    """Freed blocks that the allocator keeps between others, by the bytes of tensors at the peak."""

    neighbours: float = 0.0
    """How much slower a rank is while ranks on all other processors of the node work too: 0.15 is 15 % more time."""

    attention_tile: float = 0.0
    """Queries of one tile of the attention kernel: a tile is computed whole, so a query meets half a tile more keys."""

    attention_kept_keys: float = 0.0
    """Windows of up to so many keys keep the attention's probabilities for the backward pass."""

    def case_fields(self) -> dict[str, float]:
        """By the names of `Cases`."""
        return {field.name: float(getattr(self, field.name)) for field in fields(self)}


def from_mapping(values: Any, where: str) -> Processor:
    """The section of a machine file; InputError with the field for whatever is wrong."""
    names = [field.name for field in fields(Processor)]
    if not isinstance(values, Mapping) or (unknown := sorted(set(map(str, values)) - set(names))):
        raise InputError(
            f"unknown field {unknown[0]!r}" if isinstance(values, Mapping) else f"{values!r} is no mapping",
            where=where,
            mend=f"known: {', '.join(names)}",
        )
    found = {str(name): plain(value, f"{where}.{name}") for name, value in values.items()}
    for name, value in found.items():
        if value < 0:
            raise InputError(f"{value:g} is below 0", where=f"{where}.{name}", mend="use 0 or more")
        if value > LIMITS[name]:
            raise InputError(
                f"{value:g} is more than a machine has", where=f"{where}.{name}", mend=f"at most {LIMITS[name]:g}"
            )
    if found.get("process_bytes", 0.0) <= 0:
        raise InputError("process_bytes is not given", where=where, mend="measure it: headwater plan calibrate")
    return Processor(**found)
