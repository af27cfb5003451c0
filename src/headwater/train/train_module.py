"""The mathematics of a step: forward, loss, backward, gradient norm, clipping, update, averaging.

In: a model, its configuration, batches. Out: `StepOutcome`s, and the state as tensors by name. The loss is the sum of
cross-entropies over the whole batch divided by the number of its predicted tokens, however it is cut into
micro-batches. The gradient norm is global, unscaled and taken before clipping.

    module = TrainModule(model, TrainConfig(steps=10), device=torch.device("cpu"), precision="fp32", micro_batch=8)
    outcome = module.train_step(1, batch, lr_factor=1.0)
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from headwater.core.errors import HeadwaterError, InputError
from headwater.model import BlockLayout, CrossEntropy, Decoder, cross_entropy
from headwater.model.loss import IGNORE
from headwater.model.rope import Rotary
from headwater.train.averaging import build_averaging
from headwater.train.config import TrainConfig
from headwater.train.devices import Precision, synchronise
from headwater.train.optimizers import (
    build_optimizer,
    load_state_tensors,
    named_parameters,
    set_lr_factor,
    state_tensors,
)
from headwater.train.remat import checkpoint_blocks

WEIGHTS = "weights."
OPTIMIZER = "optimizer."
AVERAGE = "average."


class NonFiniteError(HeadwaterError):
    """Loss or gradient is NaN or infinite; nothing has been updated with it."""


@dataclass(frozen=True)
class Batch:
    """Rows of one step. `tokens`, `targets` int64 [B, S], a target that is not predicted being IGNORE; `positions`
    int32 and `documents` int32 [B, S], or None where a row is one document; `domain_tokens` tokens read by domain;
    `text_bytes` how many bytes of text the predicted tokens stand for (0 if not known).
    """

    tokens: Tensor
    targets: Tensor
    positions: Tensor | None = None
    documents: Tensor | None = None
    domain_tokens: dict[str, int] = field(default_factory=dict)
    text_bytes: float = 0.0

    @property
    def rows(self) -> int:
        return self.tokens.shape[0]

    def part(self, start: int, stop: int, device: torch.device) -> Batch:
        """Rows start..stop (exclusive) on `device`; counts stay with the whole."""

        def cut(tensor: Tensor | None) -> Tensor | None:
            return None if tensor is None else tensor[start:stop].to(device, non_blocking=True)

        return Batch(
            self.tokens[start:stop].to(device, non_blocking=True),
            self.targets[start:stop].to(device, non_blocking=True),
            cut(self.positions),
            cut(self.documents),
        )


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """What a step did. `loss` is the cross-entropy in nats per predicted token; `z_loss` its weighted companion, None
    where it is off; `lr` that of the optimizer's first group; `clip_factor` what the gradient was multiplied with.
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


class TrainModule:
    """Model, optimizer and averages of one run on one device."""

    def __init__(
        self,
        model: Decoder,
        config: TrainConfig,
        *,
        device: torch.device,
        precision: Precision,
        micro_batch: int,
    ) -> None:
        self.model = model.to(device)
        self.device = device
        self.precision: Precision = precision
        self.micro_batch = micro_batch
        self._config = config
        self._parameters = named_parameters(self.model)
        self.optimizer = build_optimizer(config.optimizer, self.model, bf16=precision == "bf16")
        self.averaging = build_averaging(config.averaging, self._parameters)
        blocks = list(self.model.model.layers.values())
        checkpoint_blocks(blocks, config.activation_checkpointing)
        if config.compile:
            for block in blocks:
                block.compile()

    # The step.

    def train_step(self, step: int, batch: Batch, *, lr_factor: float) -> StepOutcome:
        """One optimizer step over all rows of `batch`.

        Raises NonFiniteError, before any weight has changed, if the loss or the gradient is not finite; InputError for
        a batch without a single predicted token.
        """
        started = time.perf_counter()
        predicted = int((batch.targets != IGNORE).sum())
        if predicted == 0:
            raise InputError(
                "no token of the batch can be predicted: every document in it has a single token",
                where=f"step {step}",
                mend="look at the step's documents with `headwater trace`, and drop such documents in curation",
            )
        nats, penalty = self._accumulate(batch, predicted)
        loss, z_loss = nats / predicted, penalty / predicted
        forward_backward = time.perf_counter() - started
        norm, clip_factor = self._clip(step, loss)
        set_lr_factor(self.optimizer, lr_factor)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if self.averaging is not None:
            self.averaging.update(step)
        synchronise(self.device)
        return StepOutcome(
            loss=loss,
            z_loss=z_loss if self._config.z_loss else None,
            tokens=batch.tokens.numel(),
            seq_len=batch.tokens.shape[1],
            predicted_tokens=predicted,
            grad_norm=norm,
            clip_factor=clip_factor,
            lr=float(self.optimizer.param_groups[0]["lr"]),
            bits_per_byte=nats / math.log(2) / batch.text_bytes if batch.text_bytes else None,
            domain_tokens=batch.domain_tokens,
            forward_backward_seconds=forward_backward,
            optimizer_seconds=time.perf_counter() - started - forward_backward,
        )

    def _accumulate(self, batch: Batch, predicted: int) -> tuple[float, float]:
        """Forward and backward by micro-batches; gradients of the mean over `predicted` tokens. Sums of nats and of the
        weighted z-loss."""
        sums = torch.zeros(2, dtype=torch.float64 if self.device.type != "mps" else torch.float32, device=self.device)
        for start in range(0, batch.rows, self.micro_batch):
            part = batch.part(start, start + self.micro_batch, self.device)
            result = self._forward(part)
            (result.total / predicted).backward()
            sums += torch.stack((result.nats, result.total.detach() - result.nats))
        nats, penalty = sums.tolist()
        return nats, penalty

    def _forward(self, part: Batch) -> CrossEntropy:
        """Sums over the predicted tokens of a micro-batch."""
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision == "bf16"):
            layout = None if part.documents is None else BlockLayout(part.documents)
            hidden = self.model(part.tokens, part.positions, layout)
            return cross_entropy(
                hidden,
                self.model.lm_head_weight,
                part.targets,
                vocab_size=self.model.config.true_vocab_size,
                z_loss=self._config.z_loss,
            )

    def _clip(self, step: int, loss: float) -> tuple[float, float]:
        """(norm before clipping, factor applied)."""
        gradients = [p.grad for p in self._parameters.values() if p.grad is not None]
        norm = float(torch.nn.utils.get_total_norm(gradients))
        if not (math.isfinite(loss) and math.isfinite(norm)):
            self.optimizer.zero_grad(set_to_none=True)
            raise NonFiniteError(
                f"loss {loss:g}, gradient norm {norm:g}: training has diverged, or the step's data breaks it",
                where=f"step {step}",
                mend=f"look at the documents with `headwater trace --step {step}`; a lower train.optimizer.lr, a "
                "longer warm-up, model.qk_norm or train.z_loss make training steadier; earlier checkpoints are intact",
            )
        limit = self._config.clip_grad_norm
        if limit is None or norm <= limit:
            return norm, 1.0
        factor = limit / norm
        torch._foreach_mul_(gradients, factor)
        return norm, factor

    # Without training.

    @torch.no_grad()
    def evaluate(self, batch: Batch) -> tuple[float, int]:
        """(sum of nats, predicted tokens) of a batch under the weights as they are, by micro-batches."""
        nats = 0.0
        for start in range(0, batch.rows, self.micro_batch):
            part = batch.part(start, start + self.micro_batch, self.device)
            nats += float(self._forward(part).nats)
        return nats, int((batch.targets != IGNORE).sum())

    @property
    def has_average(self) -> bool:
        return self.averaging is not None and self.averaging.ready

    @contextmanager
    def evaluation(self, *, averaged: bool) -> Iterator[None]:
        """The model in evaluation mode, with the averaged weights if wanted (and there are some)."""
        with ExitStack() as stack:
            if averaged and self.averaging is not None and self.averaging.ready:
                stack.enter_context(self.averaging.swapped_in())
            self.model.eval()
            try:
                yield
            finally:
                self.model.train()

    @contextmanager
    def inference(self, *, averaged: bool) -> Iterator[None]:
        """As `evaluation`, without compiled code: generation has a new shape at every token."""
        with self.evaluation(averaged=averaged), torch.compiler.set_stance("force_eager"):
            yield

    def dry_run(self, seq_len: int) -> float:
        """Forward and backward of one full micro-batch of `seq_len` tokens, without an update; seconds it took.

        HeadwaterError if it does not fit into memory.
        """
        vocabulary = self.model.config.true_vocab_size
        tokens = torch.arange(self.micro_batch * seq_len).remainder(vocabulary).view(self.micro_batch, seq_len)
        started = time.perf_counter()
        try:
            self._accumulate(Batch(tokens, tokens), tokens.numel())
            synchronise(self.device)
        except torch.OutOfMemoryError as error:
            raise HeadwaterError(
                f"a micro-batch of {self.micro_batch} x {seq_len:,} tokens does not fit into memory of {self.device}",
                where="parallel.micro_batch",
                mend="set a smaller parallel.micro_batch (the result is the same), or train.activation_checkpointing",
            ) from error
        finally:
            self.optimizer.zero_grad(set_to_none=True)
        return time.perf_counter() - started

    def set_rope_theta(self, rope_theta: float) -> None:
        """Change the base of the rotary embedding from here on (long-context phases)."""
        config = self.model.config.model_copy(update={"rope_theta": rope_theta})
        self.model.config = config
        self.model.rotary = Rotary(config)

    def flops_per_token(self, seq_len: int) -> int:
        """Model FLOPs of a trained token, forward and backward."""
        return self.model.config.flops_per_token(seq_len)

    # State.

    @property
    def model_record(self) -> dict[str, Any]:
        """The model's configuration as it is now, for the checkpoint."""
        return self.model.config.to_dict()

    def state_tensors(self) -> dict[str, Tensor]:
        """Everything of the step that decides the future, by name; no copies."""
        tensors = {WEIGHTS + name: parameter.detach() for name, parameter in self._parameters.items()}
        tensors |= {OPTIMIZER + key: t for key, t in state_tensors(self.optimizer, self._parameters).items()}
        if self.averaging is not None:
            tensors |= {AVERAGE + key: t for key, t in self.averaging.tensors().items()}
        return tensors

    @torch.no_grad()
    def load_state_tensors(self, tensors: dict[str, Tensor]) -> None:
        """Put back what `state_tensors` gave. KeyError if a weight is missing."""
        for name, parameter in self._parameters.items():
            parameter.copy_(tensors[WEIGHTS + name])
        by_prefix = {
            prefix: {k.removeprefix(prefix): t for k, t in tensors.items() if k.startswith(prefix)}
            for prefix in (OPTIMIZER, AVERAGE)
        }
        load_state_tensors(self.optimizer, self._parameters, by_prefix[OPTIMIZER])
        if self.averaging is not None:
            self.averaging.load_tensors(by_prefix[AVERAGE])
