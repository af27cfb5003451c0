"""The mathematics of a step: forward, loss, backward, gradient norm, clipping, update, averaging.

In: this rank's stages of a model, its place in the layout, batches. Out: `StepOutcome`s, equal on all ranks, and the
state as tensors by name. The loss is the sum of cross-entropies over the whole batch of all ranks divided by the number
of its predicted tokens, however it is cut. The gradient norm is global, unscaled and taken before clipping.

    module = TrainModule.build(model, TrainConfig(steps=10), mesh=Mesh.single(torch.device("cpu")), precision="fp32",
                               micro_batch=8, seed=0)
    outcome = module.train_step(1, batch, lr_factor=1.0)
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from headwater.core.errors import InputError
from headwater.model import CrossEntropy, Decoder, Encoder, ModelConfig
from headwater.model.hf import Model
from headwater.model.rope import Rotary
from headwater.parallel.apply import ParallelOptions, build_stages
from headwater.parallel.context import Columns, context_of, take_columns
from headwater.parallel.data import reshard
from headwater.parallel.gradients import global_norm, scale_, settle
from headwater.parallel.mesh import Mesh
from headwater.parallel.precision import Precision
from headwater.parallel.slices import copy_full_
from headwater.parallel.stages import least_micro_batches
from headwater.parallel.vocab import sharded_cross_entropy
from headwater.parallel.whole import whole_model
from headwater.train.accumulate import Accumulator, Executor, wide_dtype
from headwater.train.averaging import build_averaging
from headwater.train.batch import Batch
from headwater.train.config import TrainConfig
from headwater.train.devices import synchronise
from headwater.train.memory_fit import Fitting
from headwater.train.non_finite import NonFiniteError, first_non_finite
from headwater.train.numerics import Numerics
from headwater.train.observing import StepObserver
from headwater.train.optimizers import (
    build_optimizer,
    load_state_tensors,
    named_parameters,
    set_lr_factor,
    state_tensors,
)
from headwater.train.outcome import Gate, Reading, StepOutcome
from headwater.train.pipelined import PipelineExecutor
from headwater.train.totals import count

WEIGHTS = "weights."
OPTIMIZER = "optimizer."
AVERAGE = "average."
SCALER = "scaler."


def admit_all(reading: Reading) -> bool:
    """The gate of a training without recovery."""
    return True


def options_of(config: TrainConfig, mesh: Mesh, precision: Precision) -> ParallelOptions:
    """What the training section asks of the layout."""
    return ParallelOptions(
        zero=mesh.config.zero,
        activation_checkpointing=config.activation_checkpointing,
        recompute=config.recompute,
        precision=precision,
        float8=config.float8,
        compile=config.compile,
    )


class TrainModule:
    """This rank's stages of a model, their optimizer and averages. All methods are called by all ranks together."""

    def __init__(
        self,
        stages: Sequence[Model],
        config: TrainConfig,
        *,
        mesh: Mesh,
        precision: Precision,
        micro_batch: int,
    ) -> None:
        """`stages`: on the mesh's device, with the layout applied (`headwater.parallel.apply`)."""
        self.stages = list(stages)
        self.mesh = mesh
        self.device = mesh.device
        self.precision: Precision = precision
        self._config = config
        self.numerics = Numerics(precision, config.scaler, mesh)
        self._parameters = named_parameters(*self.stages)
        self.context = context_of(mesh, self.stages[0].config)
        self.optimizer = build_optimizer(config.optimizer, *self.stages, bf16=self.numerics.is_bf16)
        self.averaging = build_averaging(config.averaging, self._parameters)
        self.observer = StepObserver()
        executor: Executor
        if mesh.size("pp") == 1:
            executor = Accumulator(self.stages[0], self._forward, mesh, micro_batch=micro_batch)
        else:
            executor = PipelineExecutor(
                self.stages,
                mesh,
                micro_batch=micro_batch,
                message_dtype=self.numerics.product_dtype,
                columns=self._columns,
                hidden=self._hidden,
                loss=self._loss,
            )
        self.fitting = Fitting(executor, mesh, clear=self.optimizer.zero_grad)

    @classmethod
    def build(
        cls,
        model: ModelConfig,
        config: TrainConfig,
        *,
        mesh: Mesh,
        precision: Precision,
        micro_batch: int,
        seed: int,
    ) -> TrainModule:
        """A new model with the weights of `seed`, laid out over the mesh, and its train module."""
        stages = build_stages(model, mesh, options_of(config, mesh, precision), seed)
        return cls(stages, config, mesh=mesh, precision=precision, micro_batch=micro_batch)

    @property
    def model(self) -> Model:
        """The whole model, where one rank holds all layers (its matrices may be shared with others)."""
        if self.mesh.size("pp") > 1:
            raise ValueError("this rank holds only some layers")
        return self.stages[0]

    @property
    def micro_batch(self) -> int:
        """Samples of one forward pass of a rank."""
        return self.fitting.micro_batch

    @property
    def parameters(self) -> dict[str, torch.nn.Parameter]:
        """This rank's parameters, whole or as its parts of them, by name."""
        return self._parameters

    @property
    def model_config(self) -> ModelConfig:
        """The model's configuration as it is now."""
        return self.stages[0].config

    # The step.

    def train_step(self, step: int, batch: Batch, *, lr_factor: float, gate: Gate = admit_all) -> StepOutcome:
        """One optimizer step over all rows of `batch` and of the other ranks' batches.

        `gate` is asked before anything changes, and may raise; where it says no, weights, optimizer, averages and loss
        scale stay as they are. Raises, on all ranks, NonFiniteError if the loss or the gradient is not finite and the
        gate let it pass (in fp16 the step is skipped, until the loss scale reaches its floor: LossScaleError);
        InputError for a step without a single predicted token.
        """
        self.observer.before_step(self, batch)
        started = time.perf_counter()
        totals = count(batch, self.mesh)
        if totals.predicted == 0:
            raise InputError(
                "no token of the batch can be predicted: every document in it has a single token",
                where=f"step {step}",
                mend="look at the step's documents with `headwater trace`, and drop such documents in curation",
            )
        nats, penalty, *domain_nats = self._accumulate(batch, totals.predicted)
        loss, z_loss = nats / totals.predicted, penalty / totals.predicted
        forward_backward = time.perf_counter() - started
        loss_scale, overflow = self.numerics.loss_scale, self.numerics.unscale_(self._parameters.values())
        norm, clip_factor, held = math.inf, 0.0, False
        set_lr_factor(self.optimizer, lr_factor)
        try:
            if not overflow:
                norm = global_norm(self._parameters, self.mesh)
                held = not self._admitted(step, loss, norm, gate)
            if not overflow and not held:
                self.observer.before_update(self)
                clip_factor = self._clip(norm)
                self.optimizer.step()
                self.observer.after_update(self)
                if self.averaging is not None:
                    self.averaging.update(step)
        finally:
            self.optimizer.zero_grad(set_to_none=True)
        if not held:
            self.numerics.update(step, overflow=overflow)
        synchronise(self.device)
        self.observer.after_step(self)
        return StepOutcome(
            loss=loss,
            z_loss=z_loss if self._config.z_loss else None,
            tokens=totals.tokens,
            seq_len=batch.tokens.shape[1],
            predicted_tokens=totals.predicted,
            grad_norm=norm,
            clip_factor=clip_factor,
            lr=float(self.optimizer.param_groups[0]["lr"]),
            bits_per_byte=nats / math.log(2) / totals.text_bytes if totals.text_bytes else None,
            domain_tokens=totals.domain_tokens,
            domain_loss=totals.domain_loss(domain_nats),
            forward_backward_seconds=forward_backward,
            optimizer_seconds=time.perf_counter() - started - forward_backward - self.observer.seconds,
            loss_scale=loss_scale,
            skipped=overflow or held,
            overflow=overflow,
        )

    def _accumulate(self, batch: Batch, predicted: int) -> list[float]:
        """Forward and backward; gradients of the mean over `predicted` tokens. Global sums as of `Executor.run`."""
        sums = self._everywhere(self.fitting.run(batch, self.numerics.divisor(predicted)))
        settle(self._parameters.values(), self.mesh)
        found: list[float] = sums.tolist()
        return found

    def _everywhere(self, sums: Tensor) -> Tensor:
        """Sums of an executor, added up over the ranks that made different parts of them."""
        if (world := self.mesh.group("world")) is not None:
            dist.all_reduce(sums, group=world)
            sums /= self.mesh.size("tp")
        return sums

    def _forward(self, stage: Model, part: Batch) -> CrossEntropy:
        """Sums over the predicted tokens of a micro-batch, by a stage that holds all layers."""
        own = self._columns(part)
        return self._loss(stage, self._hidden(stage, own.tokens, own), own.targets)

    def _columns(self, part: Batch) -> Columns:
        """What this rank computes on of a micro-batch."""
        columns = take_columns(self.context, part.tokens, part.targets, part.positions, part.documents)
        return replace(columns, domains=part.domains)

    def _hidden(self, stage: Model, stream: Tensor, own: Columns) -> Tensor:
        """A stage's output for its input: tokens, or the output of the stage before."""
        with self.numerics.autocast():
            hidden: Tensor = stage(stream, own.positions, own.layout)
        return hidden

    def _loss(self, stage: Model, hidden: Tensor, targets: Tensor) -> CrossEntropy:
        """Sums over the predicted tokens, from the last layer's hidden states."""
        with self.numerics.autocast():
            return sharded_cross_entropy(
                hidden,
                stage.lm_head_weight,
                targets,
                mesh=self.mesh,
                vocab_size=stage.config.true_vocab_size,
                z_loss=self._config.z_loss,
                bias=stage.lm_head_bias if isinstance(stage, Encoder) else None,
                sparse=isinstance(stage, Encoder),
                accuracy=not torch.is_grad_enabled(),
                per_token=torch.is_grad_enabled(),
            )

    def _admitted(self, step: int, loss: float, norm: float, gate: Gate) -> bool:
        reading = Reading(step, loss, norm)
        if not reading.finite:
            reading = Reading(step, loss, norm, first_non_finite(self._parameters, self.mesh))
        if not gate(reading):
            return False
        if not reading.finite:
            raise NonFiniteError.of(reading)
        return True

    def _clip(self, norm: float) -> float:
        """The factor that gradients of this norm were scaled with."""
        limit = self._config.clip_grad_norm
        if limit is None or norm <= limit:
            return 1.0
        scale_(self._parameters.values(), limit / norm)
        return limit / norm

    # Without training.

    @torch.no_grad()
    def evaluate(self, batch: Batch) -> tuple[float, int, int]:
        """(sum of nats, predicted tokens, tokens whose prediction is right) of a batch under the weights as they are.

        All ranks bring the same batch; each data-parallel rank computes a share of its rows.
        """
        share = batch.share(self.mesh.coordinate("dp"), self.mesh.size("dp"))
        nats, correct = self._everywhere(self.fitting.evaluate(share)).tolist()
        return nats, batch.predicted_tokens, round(correct)

    @torch.no_grad()
    def sample_losses(self, batch: Batch) -> list[float]:
        """Nats per predicted token of every sample of a step, in the step's order, under the weights as they are: NaN
        where none is predicted, infinite where the loss is not a number. `batch`: this rank's rows, as many on each."""
        rows = batch.rows
        sums = torch.zeros(self.mesh.size("dp"), rows, 2, dtype=wide_dtype(self.device), device=self.device)
        own = sums[self.mesh.coordinate("dp")]
        for row in range(rows):
            part = batch.part(row, row + 1, torch.device("cpu"))
            own[row, 0] = self.fitting.evaluate(part)[0]
            own[row, 1] = part.predicted_tokens
        # Targets are whole on every rank of a data-parallel place, nats are parts of a sum there.
        own[:, 1] *= self.mesh.size("tp") / (self.mesh.world / self.mesh.size("dp"))
        nats, predicted = self._everywhere(sums).flatten(0, 1).unbind(1)
        means = torch.where(nats.isfinite(), nats, math.inf) / predicted.round()
        return [float(mean) for mean in means.where(predicted > 0.5, math.nan)]

    @property
    def has_average(self) -> bool:
        return self.averaging is not None and self.averaging.ready

    @contextmanager
    def evaluation(self, *, averaged: bool) -> Iterator[None]:
        """The model in evaluation mode, with the averaged weights if wanted (and there are some)."""
        with ExitStack() as stack:
            if averaged and self.averaging is not None and self.averaging.ready:
                stack.enter_context(self.averaging.swapped_in())
            for stage in self.stages:
                stage.eval()
            try:
                yield
            finally:
                for stage in self.stages:
                    stage.train()
                    reshard(stage)

    @contextmanager
    def inference(self, *, averaged: bool) -> Iterator[Decoder | None]:
        """The whole model to generate with, on rank 0 (None on others), without compiled code: generation has a new
        shape at every token. Only where `sampling.inference_obstacle` gives none."""
        with self.evaluation(averaged=averaged), torch.compiler.set_stance("force_eager"):
            model = self.model
            assert isinstance(model, Decoder), "an encoder does not generate"
            yield whole_model(model, self.mesh)

    def dry_run(self, seq_len: int) -> float:
        """Forward and backward of one full micro-batch of `seq_len` tokens a rank, without an update; seconds it took.

        In a pipeline of as many micro-batches as it takes to fill it, and the seconds are their mean. What does not fit
        into memory becomes smaller, as in a step (`memory_fit`).
        """
        vocabulary, number = self.model_config.true_vocab_size, least_micro_batches(self.mesh.config)
        rows = self.micro_batch * number
        tokens = torch.arange(rows * seq_len).remainder(vocabulary).view(rows, seq_len)
        started = time.perf_counter()
        try:
            self._accumulate(Batch(tokens, tokens), tokens.numel() * self.mesh.size("dp"))
            synchronise(self.device)
        finally:
            self.optimizer.zero_grad(set_to_none=True)
        return (time.perf_counter() - started) / number

    def set_rope_theta(self, rope_theta: float) -> None:
        """Change the base of the rotary embedding from here on (long-context phases)."""
        config = self.model_config.model_copy(update={"rope_theta": rope_theta})
        for stage in self.stages:
            stage.config = config
            stage.rotary = Rotary(config)

    def flops_per_token(self, seq_len: int) -> int:
        """Model FLOPs of a trained token, forward and backward."""
        return self.model_config.flops_per_token(seq_len, scored=self._config.objective.scored_ratio)

    # State.

    @property
    def model_record(self) -> dict[str, Any]:
        """The model's configuration as it is now, for the checkpoint."""
        return self.model_config.to_dict()

    def state_tensors(self) -> dict[str, Tensor]:
        """Everything of the step that decides the future and that this rank holds a part of, by name; no copies.

        A `DTensor` where the tensor is sharded; other tensors are whole, and the same on every rank that has them.
        """
        tensors = {WEIGHTS + name: parameter.detach() for name, parameter in self._parameters.items()}
        tensors |= {OPTIMIZER + key: t for key, t in state_tensors(self.optimizer, self._parameters).items()}
        if self.averaging is not None:
            tensors |= {AVERAGE + key: t for key, t in self.averaging.tensors().items()}
        return tensors | {SCALER + key: t for key, t in self.numerics.state_tensors().items()}

    @torch.no_grad()
    def load_state_tensors(self, tensors: dict[str, Tensor]) -> None:
        """Put back what `state_tensors` gave: sharded as here, or whole. KeyError if a weight is missing."""
        for name, parameter in self._parameters.items():
            copy_full_(parameter, tensors[WEIGHTS + name])
        by_prefix = {
            prefix: {k.removeprefix(prefix): t for k, t in tensors.items() if k.startswith(prefix)}
            for prefix in (OPTIMIZER, AVERAGE, SCALER)
        }
        load_state_tensors(self.optimizer, self._parameters, by_prefix[OPTIMIZER])
        if self.averaging is not None:
            self.averaging.load_tensors(by_prefix[AVERAGE])
        self.numerics.load_state_tensors(by_prefix[SCALER])
