"""Averages of the weights along the way, evaluated and exported in place of the last ones.

In: the parameters after a step. Out: averaged tensors by name. EMA keeps one copy; LAWA keeps the latest `last`
snapshots and averages them when asked.

    average = build_averaging(AveragingConfig(name="ema"), parameters); average.update(step)
    with average.swapped_in(): validate()
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from headwater.parallel.slices import copy_full_, from_local, local, shaped_like
from headwater.train.config import AveragingConfig

MEAN = "mean."
SNAPSHOT = "snapshot."


class WeightAveraging:
    """EMA or LAWA over `parameters`; state as tensors `mean.NAME` and, for LAWA, `snapshot.I.NAME`."""

    def __init__(self, config: AveragingConfig, parameters: dict[str, nn.Parameter]) -> None:
        self._config = config
        self._parameters = parameters
        self._ema: dict[str, Tensor] = {}
        self._snapshots: list[dict[str, Tensor]] = []

    @property
    def ready(self) -> bool:
        """Whether there is an average yet."""
        return bool(self._ema or self._snapshots)

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Take the weights after `step` into the average, if it is one of the steps that count."""
        config = self._config
        if step < config.start or step % config.every:
            return
        if config.name == "lawa":
            self._snapshots = (
                [*self._snapshots[-(config.last - 1) :], self._copy()] if config.last > 1 else [self._copy()]
            )
        elif not self._ema:
            self._ema = self._copy()
        else:
            weights = [local(parameter) for parameter in self._parameters.values()]
            torch._foreach_lerp_([local(mean) for mean in self._ema.values()], weights, 1.0 - config.decay)

    def _copy(self) -> dict[str, Tensor]:
        return {name: parameter.detach().clone() for name, parameter in self._parameters.items()}

    @torch.no_grad()
    def mean(self) -> dict[str, Tensor]:
        """The averaged weights by name; {} before the first update."""
        if self._ema or not self._snapshots:
            return self._ema
        means = {
            name: torch.stack([local(snapshot[name]) for snapshot in self._snapshots]).mean(dim=0)
            for name in self._parameters
        }
        return {name: from_local(mean, self._parameters[name]) for name, mean in means.items()}

    @contextmanager
    def swapped_in(self) -> Iterator[None]:
        """Put the averaged weights into the model for a block, then the trained ones back, bit for bit."""
        mean = self.mean()
        kept = self._copy()
        with torch.no_grad():
            for name, parameter in self._parameters.items():
                copy_full_(parameter, mean[name])
        try:
            yield
        finally:
            with torch.no_grad():
                for name, parameter in self._parameters.items():
                    copy_full_(parameter, kept[name])

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint keeps. The mean is always among it, so that weights can be read from it alone."""
        tensors = {MEAN + name: tensor for name, tensor in self.mean().items()}
        for index, snapshot in enumerate(self._snapshots):
            tensors.update({f"{SNAPSHOT}{index}.{name}": tensor for name, tensor in snapshot.items()})
        return tensors

    def load_tensors(self, tensors: dict[str, Tensor]) -> None:
        """Put back what `tensors` gave, on the parameters' devices."""
        self._ema, self._snapshots = {}, []
        if self._config.name == "ema":
            for name, parameter in self._parameters.items():
                if MEAN + name in tensors:
                    self._ema[name] = shaped_like(tensors[MEAN + name], parameter)
            return
        indices = sorted({int(key.split(".")[1]) for key in tensors if key.startswith(SNAPSHOT)})
        for index in indices:
            self._snapshots.append(
                {name: shaped_like(tensors[f"{SNAPSHOT}{index}.{name}"], p) for name, p in self._parameters.items()}
            )


def build_averaging(config: AveragingConfig, parameters: dict[str, nn.Parameter]) -> WeightAveraging | None:
    """None when averaging is off."""
    return None if config.name == "none" else WeightAveraging(config, parameters)
