"""The dynamic loss scale of fp16, agreed by every rank.

In: gradients of a scaled loss. Out: gradients unscaled in place, and whether the step must be skipped because a value
on some rank overflowed.

    scaler = DynamicScaler(LossScaleConfig(), device)
    (loss * scaler.scale).backward()
    if not scaler.unscale_(gradients): optimizer.step()
    scaler.update(overflow)

Found-inf is agreed by a MAX over all ranks of the world, pipeline stages included, so that all skip or none does
(`torch.amp.GradScaler` asks only the ranks that share a tensor, and then scales of pipeline stages drift apart).
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from headwater.core.errors import HeadwaterError
from headwater.parallel.step_config import LossScaleConfig


class LossScaleError(HeadwaterError):
    """The loss scale has fallen to its floor: gradients overflow whatever it is."""


class DynamicScaler:
    """A loss scale that halves on overflow and doubles after a long time without.

    `scale`: what the loss is multiplied with now. `skipped`: steps skipped since the run began. All ranks hold the same
    numbers. `group`: all ranks of the run, to agree with; None: this process alone.
    """

    def __init__(self, config: LossScaleConfig, device: torch.device, group: ProcessGroup | None = None) -> None:
        self._config = config
        self._device = device
        self._group = group
        self.scale = config.init_scale
        self.growth_tracker = 0
        self.skipped = 0

    @torch.no_grad()
    def unscale_(self, gradients: Iterable[Tensor]) -> bool:
        """Divide gradients (plain or DTensors, fp32) by the scale in place. True, on every rank alike, if any value on
        any rank is infinite or NaN. A collective call: every rank makes it, with or without gradients of its own.
        """
        found = torch.zeros(1, dtype=torch.float32, device=self._device)
        inverse = torch.full((1,), 1.0 / self.scale, dtype=torch.float64).to(self._device, torch.float32)
        by_kind: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
        for gradient in gradients:
            local = getattr(gradient, "_local_tensor", gradient)
            if local.numel():
                by_kind.setdefault((local.device, local.dtype), []).append(local)
        for locals_ in by_kind.values():
            torch._amp_foreach_non_finite_check_and_unscale_(locals_, found, inverse)
        if self._group is not None:
            dist.all_reduce(found, dist.ReduceOp.MAX, self._group)
        return bool(found.item())

    def update(self, overflow: bool, *, where: str = "") -> None:
        """Move the scale on after a step. LossScaleError if it would fall below its floor."""
        config = self._config
        if not overflow:
            self.growth_tracker += 1
            if self.growth_tracker == config.growth_interval:
                self.growth_tracker = 0
                if self.scale * config.growth_factor <= torch.finfo(torch.float32).max:
                    self.scale *= config.growth_factor
            return
        self.growth_tracker = 0
        self.skipped += 1
        lower = self.scale * config.backoff_factor
        if lower < config.min_scale:
            raise LossScaleError(
                f"gradients overflow fp16 even at a loss scale of {self.scale:g}, and {lower:g} is below the floor "
                f"{config.min_scale:g}: training has diverged, or the step's data breaks it",
                where=where or "train.scaler",
                mend="look at the step's documents with `headwater trace`; a lower train.optimizer.lr, a longer "
                "warm-up, model.qk_norm or train.precision: bf16 make it steadier; earlier checkpoints are intact",
            )
        self.scale = lower

    # State: bitwise, the same on every rank.

    def state_tensors(self) -> dict[str, Tensor]:
        """Scale float64 [], growth tracker int64 [] and skipped steps int64 []."""
        return {
            "scale": torch.tensor(self.scale, dtype=torch.float64),
            "growth_tracker": torch.tensor(self.growth_tracker),
            "skipped": torch.tensor(self.skipped),
        }

    def load_state_tensors(self, tensors: dict[str, Tensor]) -> None:
        """Put back what `state_tensors` gave. KeyError if something is missing."""
        self.scale = float(tensors["scale"])
        self.growth_tracker = int(tensors["growth_tracker"])
        self.skipped = int(tensors["skipped"])
