"""Norms of every parameter's gradient and weight, and how far the update moves it: ||dW|| / ||W||.

In: the parameters of a rank, plain or sharded, before and after an update. Out: on every rank, the figures of all
parameters of the model, by Hugging Face's names. Each rank adds up the squares of what it holds; one all-reduce makes
the totals. The gradient is the unscaled one before clipping.

    figures = TensorFigures(module.parameters, mesh, ranks)
    figures.before_update(module.parameters, turn=0); optimizer.step(); sample = figures.after_update(module.parameters)

The update is measured, not derived from the optimizer's state: weights are copied before it and subtracted after it,
so that it is right for every optimizer and in every precision. A rank copies at most `COPY_BYTES` at once; where its
share of the model is larger, parameters take turns from sample to sample.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor, nn

from headwater.monitor.tensor_series import model_order
from headwater.parallel.agreement import Ranks
from headwater.parallel.gradients import copies, squares
from headwater.parallel.memory import is_out_of_memory
from headwater.parallel.mesh import Mesh
from headwater.parallel.slices import local

COPY_BYTES = 2 << 30
GRADIENT, WEIGHT, OLD_WEIGHT, CHANGE = range(4)
"""Rows of the sums of squares."""


class TensorFigures:
    """See the module. All methods are called by all ranks together."""

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        mesh: Mesh,
        ranks: Ranks,
        *,
        updates: bool = True,
        copy_bytes: int = COPY_BYTES,
    ) -> None:
        """`updates`: also measure how far parameters move, which takes a copy of them."""
        self._mesh = mesh
        names = {name for own in ranks.gather(list(parameters)) for name in own}
        self.names = sorted(names, key=model_order)
        self._place = {name: place for place, name in enumerate(self.names)}
        self._turns = _turns(parameters, mesh, copy_bytes) if updates else [[]]
        self._sums: Tensor | None = None
        self._old: dict[str, Tensor] = {}

    @torch.no_grad()
    def before_update(self, parameters: Mapping[str, nn.Parameter], turn: int) -> None:
        """Look at gradients and weights, and keep the weights whose `turn` it is."""
        wide = torch.float32 if self._mesh.device.type == "mps" else torch.float64
        # The second half counts the ranks that have a figure: a parameter without a gradient has none.
        self._sums = torch.zeros(8, len(self.names), dtype=wide, device=self._mesh.device)
        graded = {name: p.grad for name, p in parameters.items() if p.grad is not None}
        self._enter(GRADIENT, list(graded), squares(list(graded.values()), self._mesh))
        self._enter(WEIGHT, list(parameters), squares(list(parameters.values()), self._mesh))
        chosen = self._turns[turn % len(self._turns)]
        try:
            self._old = {name: local(parameters[name]).clone() for name in chosen}
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            self._old = {}  # no reason to end a run: these are not measured

    @torch.no_grad()
    def after_update(self, parameters: Mapping[str, nn.Parameter]) -> dict[str, dict[str, float]]:
        """`{"grad_norm": ..., "weight_norm": ..., "update_ratio": ...}`, each by name; weights as before the update."""
        assert self._sums is not None, "nothing was looked at before the update"
        changed = [parameters[name] for name in self._old]
        if changed:
            names, old = list(self._old), list(self._old.values())
            self._enter(OLD_WEIGHT, names, squares(changed, self._mesh, parts=old))
            torch._foreach_sub_(old, [local(parameter) for parameter in changed])
            self._enter(CHANGE, names, squares(changed, self._mesh, parts=old))
        sums, self._sums, self._old = self._sums, None, {}
        if (world := self._mesh.group("world")) is not None:
            dist.all_reduce(sums, group=world)
        values, there = sums[:4].sqrt().tolist(), sums[4:].tolist()
        ratios = {
            name: values[CHANGE][place] / values[OLD_WEIGHT][place]
            for name, place in self._place.items()
            if there[CHANGE][place] == there[WEIGHT][place] and values[OLD_WEIGHT][place]
        }
        found = {
            metric: {name: values[row][place] for name, place in self._place.items() if there[row][place]}
            for metric, row in (("grad_norm", GRADIENT), ("weight_norm", WEIGHT))
        }
        return found | ({"update_ratio": ratios} if ratios else {})

    def _enter(self, row: int, names: list[str], own: Tensor) -> None:
        assert self._sums is not None
        if names:
            places = torch.tensor([self._place[name] for name in names], device=own.device)
            self._sums[row, places] = own
            self._sums[row + 4, places] = 1


def _turns(parameters: Mapping[str, nn.Parameter], mesh: Mesh, copy_bytes: int) -> list[list[str]]:
    """Groups of parameters small enough to copy at once; the same on ranks that share the parameters."""
    groups: list[list[str]] = [[]]
    size = 0
    for name, parameter in parameters.items():
        shards = mesh.world // mesh.size("pp") // copies(parameter, mesh)
        share = -(-parameter.numel() // shards) * parameter.element_size()
        if groups[-1] and size + share > copy_bytes:
            groups.append([])
            size = 0
        groups[-1].append(name)
        size += share
    return groups
