"""Faults on purpose: what goes wrong in real runs, put into a real run at a step of one's choice.

In: a step and a seed. Out: callbacks for `train(..., callbacks=[...])`; they reach into the run from outside, the
trainer knows nothing of them. The same seed gives the same fault. Try a detector, an alert rule or a recovery with:

    from headwater.diagnose.faults import PoisonedBatch
    train(dataset=..., tokenizer=..., run_dir="broken", model=..., config=..., callbacks=[PoisonedBatch(50)])

Each is active at `step` and the `steps - 1` after it; None: to the end. Faults of single bits and of the machine are in
`faults_bits` and `faults_machine`; what can't be found of all this is said in `docs/chaos.md`.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from headwater.model.loss import IGNORE
from headwater.parallel.slices import local
from headwater.train.batch import Batch
from headwater.train.callbacks import Callback
from headwater.train.trainer import Trainer


class Fault(Callback):
    """Base of all faults. A subclass says what happens when `now` is true: before the step, to its batch, to its
    gradients (between the backward pass and the norm), to the optimizer before its update or to the weights after."""

    name = "fault"

    def __init__(self, step: int, *, steps: int | None = None, seed: int = 0) -> None:
        self.step, self.steps = step, steps
        self.random = random.Random(f"{self.name}/{seed}")
        self._at = 0

    @property
    def now(self) -> bool:
        """Whether the fault is active in the step in progress."""
        return self._at >= self.step and (self.steps is None or self._at < self.step + self.steps)

    def on_start(self, trainer: Trainer) -> None:
        module = trainer.module
        train_step, unscale = module.train_step, module.numerics.unscale_

        def with_batch(step: int, batch: Batch, **options: Any) -> Any:
            return train_step(step, self.batch(batch) if self.now else batch, **options)

        def with_gradients(parameters: Any) -> bool:
            skipped = unscale(parameters)
            if self.now:
                self.gradients(trainer)
            return skipped

        if type(self).batch is not Fault.batch:
            module.train_step = with_batch  # type: ignore[method-assign]
        if type(self).gradients is not Fault.gradients:
            module.numerics.unscale_ = with_gradients  # type: ignore[method-assign]
        if type(self).optimizer is not Fault.optimizer:
            module.optimizer.register_step_pre_hook(lambda optimizer, *_: self._when(self.optimizer, optimizer))
        if type(self).weights is not Fault.weights:
            module.optimizer.register_step_post_hook(lambda *_: self._when(self.weights, trainer))

    def _when(self, act: Callable[[Any], None], target: Any) -> None:
        if self.now:
            with torch.no_grad():
                act(target)

    def before_step(self, trainer: Trainer, step: int) -> None:
        self._at = step
        self._when(self.before, trainer)

    def before(self, trainer: Trainer) -> None:
        """Before the batch is taken: time here counts as waiting for data."""

    def batch(self, batch: Batch) -> Batch:
        """What is trained on in place of the batch. Time here counts as the step's own."""
        return batch

    def gradients(self, trainer: Trainer) -> None:
        """Damage the gradients, after the backward pass and before the norm is taken."""

    def optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Change the optimizer's settings for this update; learning rates are set anew for every step."""

    def weights(self, trainer: Trainer) -> None:
        """Change weights as a part of the update."""


class PoisonedBatch(Fault):
    """A step's text is noise: tokens drawn evenly from the whole vocabulary, in every row or in a `share` of them."""

    name = "poisoned_batch"

    def __init__(self, step: int, *, steps: int | None = 1, seed: int = 0, share: float = 1.0) -> None:
        super().__init__(step, steps=steps, seed=seed)
        self.share = share
        self._vocabulary = 0

    def on_start(self, trainer: Trainer) -> None:
        super().on_start(trainer)
        self._vocabulary = trainer.module.model_config.true_vocab_size

    def batch(self, batch: Batch) -> Batch:
        draw = torch.Generator().manual_seed(self.random.getrandbits(31))
        rows = max(1, round(self.share * batch.rows))
        noise = torch.randint(0, self._vocabulary, (rows, batch.tokens.shape[1] + 1), generator=draw)
        tokens, targets = batch.tokens.clone(), batch.targets.clone()
        tokens[:rows] = noise[:, :-1]
        targets[:rows] = torch.where(targets[:rows] == IGNORE, targets[:rows], noise[:, 1:])
        return replace(batch, tokens=tokens, targets=targets)


class ShuffledTargets(Fault):
    """Targets that belong to other places of the batch: how often each token comes is all that can be learned."""

    name = "shuffled_targets"

    def batch(self, batch: Batch) -> Batch:
        draw = torch.Generator().manual_seed(self.random.getrandbits(31))
        counted = batch.targets != IGNORE
        values = batch.targets[counted]
        targets = batch.targets.clone()
        targets[counted] = values[torch.randperm(len(values), generator=draw)]
        return replace(batch, targets=targets)


class LearningRate(Fault):
    """The learning rate times `factor`, growing by `growth` with every step; 0 stands still. The record shows it."""

    name = "learning_rate"

    def __init__(
        self, step: int, factor: float, *, growth: float = 1.0, steps: int | None = None, seed: int = 0
    ) -> None:
        super().__init__(step, steps=steps, seed=seed)
        self.factor, self.growth = factor, growth

    def optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        for group in optimizer.param_groups:
            group["lr"] *= self.factor * self.growth ** (self._at - self.step)


class Betas(Fault):
    """Moments of Adam that remember for another time: oscillation, with a second moment that forgets at once."""

    name = "betas"

    def __init__(
        self, step: int, beta1: float, beta2: float, *, factor: float = 1.0, steps: int | None = None, seed: int = 0
    ) -> None:
        super().__init__(step, steps=steps, seed=seed)
        self.betas, self.factor = (beta1, beta2), factor

    def optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        for group in optimizer.param_groups:
            group["lr"] *= self.factor
            if "betas" in group:
                group["betas"] = self.betas


class ScaledGradients(Fault):
    """All gradients times `factor`: 1e-9 vanishes, 1e4 explodes, NaN is NaN everywhere."""

    name = "scaled_gradients"

    def __init__(self, step: int, factor: float, *, steps: int | None = None, seed: int = 0) -> None:
        super().__init__(step, steps=steps, seed=seed)
        self.factor = factor

    def gradients(self, trainer: Trainer) -> None:
        for parameter in trainer.module.parameters.values():
            if parameter.grad is not None:
                local(parameter.grad).mul_(self.factor)


class NotANumber(Fault):
    """One element of one gradient is NaN or infinite. `parameter`: which tensor; drawn where it is None."""

    name = "not_a_number"

    def __init__(self, step: int, *, parameter: str | None = None, steps: int | None = 1, seed: int = 0) -> None:
        super().__init__(step, steps=steps, seed=seed)
        self.parameter = parameter

    def gradients(self, trainer: Trainer) -> None:
        parameters = trainer.module.parameters
        name = self.parameter or self.random.choice(sorted(parameters))
        gradient = parameters[name].grad if name in parameters else None
        if gradient is not None:
            flat = local(gradient).view(-1)
            flat[self.random.randrange(flat.numel())] = self.random.choice((float("nan"), float("inf")))


class Overflow(Fault):
    """fp16's loss scale is set to a size at which everything overflows, as a broken growth rule would."""

    name = "overflow"

    def __init__(self, step: int, *, scale: float = 2.0**80, seed: int = 0) -> None:
        super().__init__(step, steps=1, seed=seed)
        self.scale = scale

    def before(self, trainer: Trainer) -> None:
        scaler = trainer.module.numerics.scaler
        if scaler is None:
            raise ValueError("only a run in fp16 has a loss scale")
        scaler.scale = self.scale


class DeadHead(Fault):
    """An attention head whose output is 0 from here on: its columns of the output projection are kept at 0."""

    name = "dead_head"

    def __init__(self, step: int, *, layer: int = 0, head: int = 0, steps: int | None = None, seed: int = 0) -> None:
        super().__init__(step, steps=steps, seed=seed)
        self.layer, self.head = layer, head

    def weights(self, trainer: Trainer) -> None:
        weight: Tensor = trainer.module.parameters[f"model.layers.{self.layer}.self_attn.o_proj.weight"]
        size = trainer.module.model_config.head_dim
        local(weight)[:, self.head * size : (self.head + 1) * size] = 0
