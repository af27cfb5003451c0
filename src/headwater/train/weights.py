"""Weights out of a run, for whoever uses the model: generation, evaluation, export.

In: a run folder or one checkpoint's folder. Out: the model's configuration and its tensors by name.

    weights = load_weights(Path("runs/4f2a")); model.load_state_dict(weights.tensors)
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from headwater.core.errors import InputError
from headwater.train.checkpoint_format import empty_tensors, read_tensors
from headwater.train.checkpoint_load import load_checkpoint
from headwater.train.run_folder import MANIFEST, CheckpointRef, RunFolder

WEIGHTS = "weights."
AVERAGE = "average.mean."
"""Names in a checkpoint are these prefixes before the model's own parameter names."""


@dataclass(frozen=True)
class Weights:
    """`tensors` by parameter name, on the CPU; `averaged` tells whether they are averages over the run's way."""

    model: dict[str, Any]
    tensors: dict[str, torch.Tensor]
    step: int
    averaged: bool
    checkpoint: CheckpointRef


def find_checkpoint(path: Path | str) -> CheckpointRef:
    """The checkpoint meant by a path: itself, or the final or newest one of a run. InputError if there is none."""
    path = Path(path)
    if (path / MANIFEST).is_file() and path.name.startswith("step-"):
        return CheckpointRef(path, int(path.name.removeprefix("step-")))
    run = RunFolder.open(path)
    ref = run.final or run.newest_checkpoint()
    if ref is None:
        raise InputError("the run has no checkpoint yet", where=str(path), mend="wait for the first one")
    return ref


def load_weights(path: Path | str, *, averaged: bool | None = None) -> Weights:
    """Read and verify weights. `averaged` None: the averaged ones if the run keeps them, else the last.

    Raises InputError if there is no checkpoint, or no averaged weights where they are asked for;
    CorruptArtifactError if a file is damaged.
    """
    loaded = load_checkpoint(find_checkpoint(path))
    averages = empty_tensors(loaded.ref.path, AVERAGE)
    if averaged and not averages:
        raise InputError(
            "this checkpoint holds no averaged weights", where=str(loaded.ref.path), mend="set train.averaging"
        )
    take = bool(averages) if averaged is None else averaged
    prefix = AVERAGE if take else WEIGHTS
    stored = averages if take else empty_tensors(loaded.ref.path, WEIGHTS)
    read_tensors(loaded.ref.path, stored)
    tensors = {name.removeprefix(prefix): tensor for name, tensor in stored.items()}
    return Weights(loaded.state["model"], tensors, loaded.ref.step, take, loaded.ref)
