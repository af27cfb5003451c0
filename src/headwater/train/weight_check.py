"""Weights that change while nobody changes them: a bit that flipped in memory, or code that writes where it must not.

In: a train module. Out: the names of tensors whose bits differ from what the last update left, asked before the next
one. Sums of all bits as integers are kept, one a tensor: a single flip always changes such a sum, whichever bit it is,
also one that no figure of the training would ever show. The two passes over the weights cost about as much as a third
of an AdamW update, and no copy is made.

    check = WeightCheck(module); module.train_step(...); check.compare(); check.changed, check.moved
"""

from __future__ import annotations

import torch
from torch import Tensor

from headwater.parallel.slices import local
from headwater.train.train_module import TrainModule

WIDE, HALF, BYTE = torch.int64, torch.int32, torch.uint8


class WeightCheck:
    """This rank's part of the weights. `changed`: names of tensors that were not as the last update left them, when
    `compare` was called last. `moved`: whether the update before changed anything; None where there was none."""

    def __init__(self, module: TrainModule) -> None:
        self._parameters = module.parameters
        self._kept: Tensor | None = None
        self._before: Tensor | None = None
        self._fresh = False
        self.changed: list[str] = []
        self.moved: bool | None = None
        module.optimizer.register_step_post_hook(lambda *_: self._updated())

    def forget(self) -> None:
        """Weights have been put back, or replaced, on purpose."""
        self._kept = self._before = None
        self.changed, self.moved = [], None

    def compare(self) -> None:
        """Between a backward pass and its update. Waits for the device, which the gradient's norm has done anyway."""
        now = self._sums()
        self.changed, self.moved = [], None
        if self._kept is not None:
            differs = (now != self._kept).tolist()
            self.changed = [name for name, bad in zip(self._parameters, differs, strict=True) if bad]
            if self._before is not None and self._fresh:
                self.moved = not torch.equal(self._kept, self._before)
        self._before, self._kept = now, None if self.changed else self._kept
        self._fresh = False

    def _updated(self) -> None:
        self._kept, self._fresh = self._sums(), True

    @torch.no_grad()
    def _sums(self) -> Tensor:
        sums = [_words(local(parameter)).sum(dtype=torch.int64) for parameter in self._parameters.values()]
        return torch.stack(sums) if sums else torch.zeros(0, dtype=torch.int64)


def _words(tensor: Tensor) -> Tensor:
    """A tensor's memory as the widest integers it can be read as; no copy where it is contiguous."""
    flat = tensor.reshape(-1)
    for words in (WIDE, HALF):
        per = words.itemsize // flat.element_size()
        if per and flat.numel() % per == 0 and flat.storage_offset() % per == 0:
            return flat.view(words)
    return flat.view(BYTE)
