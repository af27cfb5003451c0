"""What a step did, as callbacks and the record see it.

outcome = module.train_step(1, batch, lr_factor=1.0); outcome.loss, outcome.grad_norm
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """What a step did, over all ranks. `loss` is the cross-entropy in nats per predicted token; `z_loss` its weighted
    companion, None where it is off; `lr` that of the optimizer's first group; `clip_factor` what the gradient was
    multiplied with. `loss_scale` is the one of the step in fp16, else None; a `skipped` step overflowed it and changed
    nothing: its norm is infinite and its clip factor 0.
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
    forward_backward_seconds: float
    optimizer_seconds: float
    loss_scale: float | None = None
    skipped: bool = False
