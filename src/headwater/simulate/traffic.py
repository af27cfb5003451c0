"""The communication and the arithmetic of a simulated rank: messages by axis and operation, products' FLOPs.

In: communication operations as they happen. Out: `Flow`s: how often, how many bytes in the messages, and how many of
them this rank puts on the wire when rings carry them (an all-reduce of S bytes over q ranks 2 S (q - 1) / q, the others
S (q - 1) / q of the whole tensor; what goes to a neighbouring stage S).

    traffic = Traffic(mesh); Recorder(ledger, traffic, ...); traffic.flows

Every message also belongs to what the rank was doing: a micro-batch (`at`), or the step as a whole.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed._tools.fake_collectives import CollectiveOp, collective_ops, sync_ops

from headwater.parallel.mesh import AXES, Mesh

STEP = -1
"""`at` of what belongs to no micro-batch."""

_PASSES = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0, "all_to_all": 1.0, "broadcast": 1.0}


@dataclass
class Flow:
    """Messages of one kind. `bytes`: of the whole tensor that the operation makes or consumes."""

    calls: int = 0
    bytes: float = 0.0
    wire_bytes: float = 0.0


Key = tuple[str, str, int]
"""(axis, operation, micro-batch or STEP)."""


class Traffic:
    """See the module."""

    def __init__(self, mesh: Mesh) -> None:
        self._axes = _axes_by_group(mesh)
        self.at = STEP
        self.flows: defaultdict[Key, Flow] = defaultdict(Flow)
        self.flops = 0.0
        self._names: dict[Any, str] = {}

    def message(self, func: Any, args: tuple[Any, ...], result: Any) -> None:
        if func not in collective_ops or func in sync_ops:
            return
        operation = self._name(func)
        group = CollectiveOp.get_process_group(func, args)
        size = int(group.size())
        axis = self._axes.get(str(group.group_name), "other")
        whole = _whole_bytes(func, args, result, size)
        if operation == "receive":
            wire = 0.0
        elif operation == "send":
            wire = whole
        else:
            wire = _PASSES.get(operation, 1.0) * whole * (size - 1) / size
        flow = self.flows[axis, operation, self.at]
        flow.calls += 1
        flow.bytes += whole
        flow.wire_bytes += wire

    def product(self, func: Any, args: tuple[Any, ...], result: Any) -> None:
        self.flops += _product_flops(func, args)

    def _name(self, func: Any) -> str:
        if func not in self._names:
            text = str(func).split("::")[-1]
            name = re.sub(r"[^a-z]+", "_", text.split(".")[1] if "." in text else text).strip("_")
            short = name.replace("_", "")
            for known in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send", "recv"):
                if known.replace("_", "") in short:
                    name = "receive" if known == "recv" else known
                    break
            self._names[func] = name
        return self._names[func]


def _axes_by_group(mesh: Mesh) -> dict[str, str]:
    """Process groups by name: the axis they run along, of those with more than one rank."""
    names: dict[str, str] = {}
    for axis in ("world", "loss", "dp", "fsdp", *AXES):
        group = mesh.group(axis)
        if group is not None:
            names[str(group.group_name)] = axis
    return names


def _whole_bytes(func: Any, args: tuple[Any, ...], result: Any, ranks: int) -> float:
    """Bytes of the largest tensor an operation touches: the gathered one, the one before it is scattered."""
    most = 0

    def look(value: Any) -> None:
        nonlocal most
        if isinstance(value, torch.Tensor):
            most = max(most, value.numel() * value.element_size())
        elif isinstance(value, (list, tuple)):
            if value and all(isinstance(item, torch.Tensor) for item in value):
                most = max(most, sum(item.numel() * item.element_size() for item in value))
            else:
                for item in value:
                    look(item)

    for value in (*args, result):
        look(value)
    return float(most)


def _product_flops(func: Any, args: tuple[Any, ...]) -> float:
    """Two FLOPs a multiply and add. Attention counts the causal half of its scores, and in its backward pass the scores
    that are made again: 2.5 times the forward pass."""
    name = str(func)
    if name.startswith("headwater."):
        if "attention" not in name:
            return 0.0
        tensors = [value for value in args if isinstance(value, torch.Tensor) and value.dim() == 4]
        backward = "backward" in name
        q, k = tensors[1 if backward else 0], tensors[2 if backward else 1]
        batch, queries, heads, width = q.shape
        share = 1.0 if "interval" in name else 0.5
        return 4.0 * batch * heads * queries * k.shape[1] * width * share * (2.5 if backward else 1.0)
    tensors = [value for value in args if isinstance(value, torch.Tensor)]
    # `addmm` has what is added first, `_scaled_mm` its scales behind.
    first, second = tensors[:2] if "_scaled_mm" in name else tensors[-2:]
    return 2.0 * first.numel() * second.shape[-1]
