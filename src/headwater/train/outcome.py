"""What a step is about to do and what it did, as callbacks and the record see it.

outcome = module.train_step(1, batch, lr_factor=1.0); outcome.loss, outcome.grad_norm
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reading:
    """What a step's gradient says before anything is changed with it, over all ranks. `tensor`: the first parameter
    whose gradient is not finite, "" where there is none (the loss may still not be)."""

    step: int
    loss: float
    grad_norm: float
    tensor: str = ""

    @property
    def finite(self) -> bool:
        return math.isfinite(self.loss) and math.isfinite(self.grad_norm)


Gate = Callable[[Reading], bool]
"""Whether a step's update is to be made; where it is not, the step changes nothing. Every rank says the same."""


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """What a step did, over all ranks. `loss` is the cross-entropy in nats per predicted token; `z_loss` its weighted
    companion, None where it is off; `lr` that of the optimizer's first group; `clip_factor` what the gradient was
    multiplied with; `domain_loss` the loss by domain, {} where rows do not tell theirs. `loss_scale` is the one of the
    step in fp16, else None. A `skipped` step changed nothing and has a clip factor of 0: its update was held back, or
    (`overflow`, with an infinite norm) it overflowed the loss scale.
    """

    loss: float
    z_loss: float | None
    tokens: int
    seq_len: int
    predicted_tokens: int
    grad_norm: float
    clip_factor: float
    lr: float
    bits_per_byte: float | None
    domain_tokens: dict[str, int]
    domain_loss: dict[str, float]
    forward_backward_seconds: float
    optimizer_seconds: float
    loss_scale: float | None = None
    skipped: bool = False
    overflow: bool = False
