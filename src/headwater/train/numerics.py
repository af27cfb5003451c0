"""The precision of a run's steps: autocast around forward passes and, in fp16, the loss scale around the backward pass.

In: the precision, the scale's settings, the mesh. Out: contexts and figures for `TrainModule`.

    numerics = Numerics("fp16", config.scaler, mesh)
    with numerics.autocast(): total = forward()
    (total / numerics.divisor(predicted)).backward()
    skipped = numerics.unscale_(parameters); numerics.update(step, overflow=skipped)
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn

from headwater.parallel.mesh import Mesh
from headwater.parallel.precision import Precision, autocast, product_dtype_of
from headwater.parallel.scaler import DynamicScaler
from headwater.parallel.step_config import LossScaleConfig


class Numerics:
    """See the module. All methods are called by all ranks together."""

    def __init__(self, precision: Precision, config: LossScaleConfig, mesh: Mesh) -> None:
        self.precision: Precision = precision
        self._device = mesh.device
        self.scaler = DynamicScaler(config, mesh.device, mesh.group("world")) if precision == "fp16" else None

    @property
    def is_bf16(self) -> bool:
        """Whether products are in bf16 (those beside fp8's are)."""
        return self.product_dtype == torch.bfloat16

    @property
    def product_dtype(self) -> torch.dtype:
        """What matrix products take and give."""
        return product_dtype_of(self.precision)

    @property
    def loss_scale(self) -> float | None:
        """The scale now; None where there is none."""
        return None if self.scaler is None else self.scaler.scale

    def autocast(self) -> AbstractContextManager[object]:
        """Around every forward pass."""
        return autocast(self.precision, self._device)

    def divisor(self, predicted: int) -> float:
        """What the sum of the loss is divided by before the backward pass: the global number of predicted tokens, and
        less by the loss scale."""
        return predicted if self.scaler is None else predicted / self.scaler.scale

    def unscale_(self, parameters: Iterable[nn.Parameter]) -> bool:
        """Bring gradients back to their size, in place. True if any overflowed, on any rank: skip the step."""
        if self.scaler is None:
            return False
        return self.scaler.unscale_(p.grad for p in parameters if p.grad is not None)

    def update(self, step: int, *, overflow: bool) -> None:
        """After a step. LossScaleError if the scale falls below its floor."""
        if self.scaler is not None:
            self.scaler.update(overflow, where=f"step {step}")

    def state_tensors(self) -> dict[str, Tensor]:
        """The loss scale's state; empty where there is none."""
        return {} if self.scaler is None else self.scaler.state_tensors()

    def load_state_tensors(self, tensors: dict[str, Tensor]) -> None:
        """Put back what `state_tensors` gave. A run that was in another precision before begins with a fresh scale."""
        if self.scaler is not None and tensors:
            self.scaler.load_state_tensors(tensors)
