"""Where a checkpoint's tensors go in the layout at hand: the memory that `read_tensors` fills.

In: a checkpoint's index and this rank's parameters. Out: a target for every stored tensor that concerns this rank. What
belongs to a parameter (its weight, its moments, its averages) is laid out as the parameter is, so a rank reads its own
part only, whatever the layout that wrote; what belongs to layers of other ranks is left out.

    targets = targets_for(ref.path, module.parameters); read_tensors(ref.path, targets)
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from headwater.train.checkpoint_format import read_index

WEIGHTS = "weights."


def targets_for(folder: Path, parameters: Mapping[str, Tensor], *, skip: Collection[str] = ()) -> dict[str, Tensor]:
    """Targets by stored name: for a weight the parameter itself, for what goes with it new memory laid out alike, and
    plain CPU memory for the rest. Names that start with one of `skip` are left out.

    CorruptArtifactError if the index cannot be read.
    """
    stored = {
        name: meta
        for name, meta in read_index(folder).state_dict_metadata.items()
        if isinstance(meta, TensorStorageMetadata) and not name.startswith(tuple(skip))
    }
    everyones = {name.removeprefix(WEIGHTS) for name in stored if name.startswith(WEIGHTS)}
    targets: dict[str, Tensor] = {}
    for name, meta in stored.items():
        owner = parameter_of(name, everyones)
        if owner is not None and owner not in parameters:
            continue
        parameter = parameters[owner] if owner is not None else None
        dtype = meta.properties.dtype
        if parameter is None or parameter.shape != meta.size:
            targets[name] = torch.empty(meta.size, dtype=dtype)
        elif name == WEIGHTS + str(owner):
            targets[name] = parameter.detach()
        else:
            targets[name] = torch.empty_like(parameter.detach(), dtype=dtype)
    return targets


def parameter_of(name: str, parameters: Collection[str]) -> str | None:
    """The parameter that a stored tensor goes with, by its name: `average.mean.model.norm.weight` and
    `optimizer.model.norm.weight/exp_avg` go with `model.norm.weight`; None for what goes with none."""
    base = name.split("/", 1)[0]
    while base:
        if base in parameters:
            return base
        base = base.partition(".")[2]
    return None
