"""Micro-batches that are alike: what a stage does with one is written down, and done again without being run.

In: the passes of pipeline stages, by kind and micro-batch. Out: the same memory, messages and FLOPs as if each had been
run. A stage runs its first three micro-batches. What it did with the second and the third is written down: every piece
of memory taken and given back in order, every message, every product. Where the two agree to the last byte, the rest
are the same again; where they do not, `NotAlike` says so and the whole step is run.

    repeats = Repeats(ledger, traffic, recorder); repeats.run("F", original, stage, micro_batch, args, kwargs)

What is kept of a forward pass is given back by the backward pass of its micro-batch: pieces are named by (kind of pass,
number), so that a pass can name those of an earlier one. What stages hand on (outputs, gradients of inputs) is made as
tensors, which live as long as the schedule holds them. The last stage is always run: its loss is made outside.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from headwater.simulate.ledger import Event, Ledger
from headwater.simulate.tensors import Recorder
from headwater.simulate.traffic import Flow, Traffic

RUN = 3
"""Micro-batches of a stage that are run: the first, which differs, and two that are compared."""

Name = tuple[str, int]
"""A piece of memory of a micro-batch: the pass that took it, and its number there."""


class NotAlike(Exception):
    """Two micro-batches of a stage did not do the same."""


@dataclass(frozen=True)
class _Record:
    """What a pass did. `steps`: (what, piece, bytes, kind of memory, number of the tensor handed on or -1)."""

    steps: list[tuple[str, Name, int, str, int]]
    handed_on: list[tuple[tuple[int, ...], torch.dtype] | None]
    flows: dict[tuple[str, str], tuple[int, float, float]]
    flops: float
    operations: int = field(compare=False)  # PyTorch asks for some sizes once, and then knows them


class Repeats:
    """See the module. One for a step."""

    def __init__(self, ledger: Ledger, traffic: Traffic, recorder: Recorder) -> None:
        self._ledger, self._traffic, self._recorder = ledger, traffic, recorder
        self._records: defaultdict[tuple[int, str], list[_Record | None]] = defaultdict(list)
        self._names: defaultdict[tuple[int, int], dict[int, Name]] = defaultdict(dict)
        self._handed: defaultdict[tuple[int, int], set[int]] = defaultdict(set)
        self._alive: defaultdict[tuple[int, int], dict[Name, tuple[int, int, str]]] = defaultdict(dict)
        self.repeated = 0

    def run(self, kind: str, original: Callable[..., Any], stage: Any, place: int, args: Any, kwargs: Any) -> Any:
        """A pass of `stage` (`kind` F, B, I or W) over micro-batch `place`: run, or done again."""
        if place == 0 or stage.is_last:
            return original(stage, place, *args, **kwargs)
        if place < RUN:
            return self._written_down(kind, original, stage, place, args, kwargs)
        second, third = (self._records[stage.stage_index, kind] + [None, None])[:2]
        if third is None or second != third:
            raise NotAlike(f"pass {kind} of stage {stage.stage_index}")
        self.repeated += 1
        return self._again(kind, third, stage, place, args)

    def _written_down(
        self, kind: str, original: Callable[..., Any], stage: Any, place: int, args: Any, kwargs: Any
    ) -> Any:
        ledger, traffic = self._ledger, self._traffic
        flows = self._flows_of(place)
        flops, operations, first_new = traffic.flops, self._recorder.operations, ledger.serial
        events: list[Event] = []
        ledger.journal = events
        try:
            result = original(stage, place, *args, **kwargs)
        finally:
            ledger.journal = None
        handed = [result] if kind == "F" else list(stage.bwd_cache.get(place, ())) if kind in "BI" else []
        steps = self._steps(kind, stage, place, events, first_new, [ledger.serial_of(t) for t in handed])
        record = None
        if steps is not None:
            record = _Record(
                steps,
                [None if t is None else (tuple(t.shape), t.dtype) for t in handed],
                {
                    key: (calls - flows[key][0], size - flows[key][1], wire - flows[key][2])
                    for key, (calls, size, wire) in self._flows_of(place).items()
                },
                traffic.flops - flops,
                self._recorder.operations - operations,
            )
        self._records[stage.stage_index, kind].append(record)
        return result

    def _flows_of(self, place: int) -> defaultdict[tuple[str, str], tuple[int, float, float]]:
        found: defaultdict[tuple[str, str], tuple[int, float, float]] = defaultdict(lambda: (0, 0.0, 0.0))
        for (axis, operation, at), flow in self._traffic.flows.items():
            if at == place:
                found[axis, operation] = flow.calls, flow.bytes, flow.wire_bytes
        return found

    def _steps(
        self, kind: str, stage: Any, place: int, events: list[Event], first_new: int, handed: list[int | None]
    ) -> list[tuple[str, Name, int, str, int]] | None:
        """Events by the names of their pieces; None if there is one that another micro-batch could not do again.

        Memory of others (messages received, mostly) and what is handed on go with the schedule's own references.
        """
        names, kept = self._names[stage.stage_index, place], self._handed[stage.stage_index, place]
        kept.update(serial for serial in handed if serial is not None)
        steps, number = [], 0
        for what, serial, size, memory in events:
            if what == "take":
                if serial < first_new:
                    return None  # resized: FSDP gathers
                names[serial] = (kind, number)
                number += 1
            elif what == "give" and (serial in kept or serial not in names):
                continue
            elif serial not in names:
                return None
            steps.append((what, names[serial], size, memory, handed.index(serial) if serial in handed else -1))
        if kind in "BW" and self._ledger.any_alive(names.keys() - kept):
            return None
        fresh = {serial for what, serial, _, _ in events if what == "take"}
        return steps if all(serial is None or serial in fresh for serial in handed) else None

    def _again(self, kind: str, record: _Record, stage: Any, place: int, args: Any) -> Any:
        """The schedule's own bookkeeping as `PipelineStage` does it, around the record's memory and messages."""
        held: Any = None
        if kind == "F":
            inputs = args[0] if stage.is_first else stage._retrieve_recv_activations(place)
        elif kind == "W":
            stage.dw_runner.pop(place)
            held = stage.backward_state.pop(place)
        else:
            outputs, inputs = stage.fwd_cache.pop(place)
            held = outputs, inputs, stage._retrieve_recv_grads(place)
        made = self._memory(kind, record, stage, place)
        for (axis, operation), (calls, size, wire) in record.flows.items():
            flow: Flow = self._traffic.flows[axis, operation, place]
            flow.calls, flow.bytes, flow.wire_bytes = flow.calls + calls, flow.bytes + size, flow.wire_bytes + wire
        self._traffic.flops += record.flops
        self._recorder.operations += record.operations - sum(tensor is not None for tensor in made)
        if kind == "F":
            stage.fwd_cache[place] = (made[0],), list(inputs)
            return made[0]
        if kind in "BI":
            stage.bwd_cache[place] = tuple(made)
        if kind == "I":
            outputs, inputs, gradients = held
            stage.backward_state[place] = inputs, None, outputs, gradients
            stage.dw_runner[place] = lambda: None
        return None

    def _memory(self, kind: str, record: _Record, stage: Any, place: int) -> list[Tensor | None]:
        ledger, alive = self._ledger, self._alive[stage.stage_index, place]
        made: list[Tensor | None] = [None] * len(record.handed_on)
        for what, name, size, memory, number in record.steps:
            if what == "take" and number >= 0:
                shape, dtype = record.handed_on[number] or ((), torch.float32)
                with ledger.during(memory):
                    made[number] = torch.empty(shape, dtype=dtype)
            elif what == "take":
                alive[name] = ledger.take(size, memory), size, memory
            elif what == "give":
                ledger.give(*alive.pop(name))
            else:
                serial, size, before = alive[name]
                ledger.move(size, before, memory)
                alive[name] = serial, size, memory
        if kind in "BW" and alive:
            raise NotAlike(f"memory that stage {stage.stage_index} keeps")
        return made
