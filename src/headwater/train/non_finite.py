"""Gradients that are not finite: the step stops before any weight has changed, and the first tensor is named.

In: this rank's parameters with their gradients, whole or sharded. Out: on all ranks the same name, and the error for a
step that nobody held back.

    tensor = first_non_finite(parameters, mesh); raise NonFiniteError.of(Reading(step, loss, norm, tensor))
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import nn

from headwater.core.errors import HeadwaterError
from headwater.parallel.mesh import Mesh
from headwater.parallel.slices import local
from headwater.train.outcome import Reading


class NonFiniteError(HeadwaterError):
    """Loss or gradient is NaN or infinite; nothing has been updated with it.

    `tensor`: the first parameter whose gradient is not finite, "" where the loss alone is.
    """

    loss: float = 0.0
    grad_norm: float = 0.0
    tensor: str = ""

    @classmethod
    def of(cls, reading: Reading) -> NonFiniteError:
        named = f", first in the gradient of {reading.tensor}" if reading.tensor else ""
        error = cls(
            f"loss {reading.loss:g}, gradient norm {reading.grad_norm:g}{named}: training has diverged, or the step's "
            "data breaks it",
            where=f"step {reading.step}",
            mend=f"look at the documents with `headwater trace --step {reading.step}`; a lower train.optimizer.lr, a "
            "longer warm-up, model.qk_norm or train.z_loss make training steadier; earlier checkpoints are intact",
        )
        error.loss, error.grad_norm, error.tensor = reading.loss, reading.grad_norm, reading.tensor
        return error


@torch.no_grad()
def first_non_finite(parameters: Mapping[str, nn.Parameter], mesh: Mesh) -> str:
    """The first parameter, by name (layer 2 before layer 10), whose gradient has a norm that is NaN or infinite, on any
    rank and pipeline stage; "" if there is none. Squares of numbers above 1e19 are infinite, too. Collective."""
    own = ""
    for name in sorted(parameters, key=_natural):
        gradient = parameters[name].grad
        if gradient is not None and not bool(torch.linalg.vector_norm(local(gradient)).isfinite()):
            own = name
            break
    group = mesh.group("world")
    if group is None:
        return own
    names: list[str] = [""] * mesh.world
    dist.all_gather_object(names, own, group=group)
    return min((name for name in names if name), key=_natural, default="")


def _natural(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]
