"""Forward and backward over pipeline stages, by the schedules of torch.distributed.pipelining.

In: this rank's stages (whole modules, already tensor- and data-parallel), micro-batches, what a stage computes and what
the loss is. Out: gradients, and the sums the last stage made (zeros on the other ranks of the pipeline).

    pipeline = Pipeline(specs, chunks, parallel, group, device, width=config.hidden_size)
    sums = pipeline.forward_backward(micro_batches, forward, loss)

Every rank of a pipeline is given the same rows: tokens matter to the first stage, targets to the last, positions and
document borders to all. What travels between stages is the residual stream, `[rows, seq, width]` (under tensor
parallelism `[rows, seq / tp, width]`), and its gradient on the way back, in the dtype that products are made in: two
bytes an element in bf16 and fp16. Inside a stage the stream is float32 and products are added to it, as without a
pipeline.

torch fixes shapes when a schedule first runs, and another shape would hang; here a new shape gets a new schedule.
Shapes are declared rather than tried out, so building one costs no forward pass. Gradients are never divided by the
number of micro-batches: the loss already is, by the tokens of the whole batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import (
    PipelineScheduleMulti,
    PipelineScheduleSingle,
    _Action,
    _ComputationType,
    _PipelineScheduleRuntime,
    get_schedule_class,
)

from headwater.core.errors import HeadwaterError, RecipeError
from headwater.parallel.config import ParallelConfig
from headwater.parallel.context import Columns
from headwater.parallel.memory import is_out_of_memory
from headwater.parallel.stages import StageSpec, compile_problem, micro_batch_problem, of_rank
from headwater.parallel.tied import TiedEmbedding

CLASSES = {
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "interleaved_1f1b": "Interleaved1F1B",
    "interleaved_zero_bubble": "InterleavedZeroBubble",
    "zbv": "ZBVZeroBubble",
    "dualpipev": "DualPipeV",
}
"""Our names of schedules and torch's."""

INSIDE = torch.float32
"""The residual stream's dtype inside a stage."""

Forward = Callable[[Any, Tensor, Columns], Tensor]
"""(stage, tokens or the stream, micro-batch) -> the stream, or hidden states after the final norm."""

Loss = Callable[[Any, Tensor, Columns], tuple[Tensor, Tensor]]
"""(last stage, hidden states, micro-batch) -> (scalar to differentiate, figures [n] to add up over micro-batches)."""


class _Work:
    """What the stages of a rank work on in the running step."""

    def __init__(self) -> None:
        self.parts: Sequence[Columns] = ()
        self.forward: Forward | None = None


class _Stage(PipelineStage):
    """A stage that looks its micro-batch up by place and holds receive buffers no longer than they are used.

    torch keeps a buffer for every micro-batch of a step, although a stage has only a few under way.
    """

    def __init__(
        self, module: nn.Module, spec: StageSpec, stages: int, work: _Work, stream: Tensor, group: dist.ProcessGroup
    ) -> None:
        place = torch.empty(1, dtype=torch.int64, device="meta")
        super().__init__(
            module,
            spec.index,
            stages,
            _device_of(module),
            input_args=place if spec.first else stream,
            output_args=stream,
            group=group,
        )
        self._work, self._stream = work, stream

    def forward_maybe_with_nosync(self, *args: Any, **kwargs: Any) -> Tensor:
        part = self._work.parts[int(kwargs["place"])]
        assert self._work.forward is not None
        out = self._work.forward(self.submod, part.tokens if self.is_first else args[0].to(INSIDE), part)
        if self.is_last:
            return out
        if out.shape != self._stream.shape:
            # The next stage waits for another message: say so here rather than let it wait for ever.
            given, taken = list(out.shape), list(self._stream.shape)
            raise HeadwaterError(f"stage {self.stage_index} gives {given} where the next stage takes {taken}")
        return out.to(self._stream.dtype)

    def _setup_forward_recv_info(self, *args: Any, **kwargs: Any) -> None:
        super()._setup_forward_recv_info(*args, **kwargs)
        self.release()

    def _setup_backward_recv_info(self, *args: Any, **kwargs: Any) -> None:
        super()._setup_backward_recv_info(*args, **kwargs)
        self.release()

    def get_fwd_recv_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        self._fresh(self.args_recv_info[fwd_chunk_id])
        return super().get_fwd_recv_ops(fwd_chunk_id)

    def get_bwd_recv_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        if self.has_backward and not self.is_last:
            self._fresh(self.grad_recv_info[bwd_chunk_id])
        return super().get_bwd_recv_ops(bwd_chunk_id)

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        out = super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)
        self._drop(self.args_recv_info[fwd_chunk_id])
        if not self.has_backward:
            self.fwd_cache[fwd_chunk_id] = (self.fwd_cache[fwd_chunk_id][0], [])
        return out

    def backward_one_chunk(self, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> None:
        super().backward_one_chunk(bwd_chunk_id, *args, **kwargs)
        if self.has_backward and not self.is_last:
            self._drop(self.grad_recv_info[bwd_chunk_id])

    # torch passes gradients between a rank's own neighbouring stages (the V's point) in a forward-only run as well.

    def get_local_bwd_output(self, mb_index: int) -> tuple[Tensor | None, ...]:
        return super().get_local_bwd_output(mb_index) if self.has_backward else ()

    def set_local_bwd_input(self, next_stage_bwd_outputs: tuple[Tensor | None, ...], mb_index: int) -> None:
        if self.has_backward:
            super().set_local_bwd_input(next_stage_bwd_outputs, mb_index)

    def release(self) -> None:
        """Give back all receive buffers."""
        for infos in (*self.args_recv_info.values(), *self.grad_recv_info.values()):
            self._drop(infos)

    def _fresh(self, infos: tuple[Any, ...]) -> None:
        for info in infos:
            if not info.is_root_arg and info.tensor_meta is not None:
                info.buffer = torch.empty(info.tensor_meta.shape, dtype=info.tensor_meta.dtype, device=self.device)

    def _drop(self, infos: tuple[Any, ...]) -> None:
        for info in infos:
            if not info.is_root_arg:
                info.buffer = None


class Pipeline:
    """This rank's part of one pipeline. Every rank of the pipeline calls the same methods in the same order."""

    def __init__(
        self,
        specs: Sequence[StageSpec],
        chunks: Sequence[nn.Module],
        parallel: ParallelConfig,
        group: dist.ProcessGroup,
        device: torch.device,
        *,
        width: int,
        message_dtype: torch.dtype = INSIDE,
        sequence_shards: int = 1,
        tied: bool = False,
    ) -> None:
        """specs: all stages; chunks: this rank's modules, in the order of its specs; width: of the residual stream;
        message_dtype: in which it travels between stages; sequence_shards: ranks that share each row of the stream
        (sequence parallelism); tied: the head is the embedding.

        Raises RecipeError for compiled stages in a schedule that computes input and weight gradients apart.
        """
        self._rank, self._device, self._group, self._parallel = dist.get_rank(group), device, group, parallel
        self._specs, own = list(specs), of_rank(specs, dist.get_rank(group))
        assert len(own) == len(chunks), f"{len(own)} stages and {len(chunks)} modules"
        self._chunks = list(zip(own, chunks, strict=True))
        self._width, self._dtype, self._shards = width, message_dtype, sequence_shards
        self._last_rank = specs[-1].rank
        self.tied = TiedEmbedding(specs, self._chunks, group, tied=tied)
        self._work = _Work()
        self._loss: Loss | None = None
        self._sums: Tensor | None = None
        self._built: dict[tuple[bool, int, int, int], tuple[list[_Stage], Any]] = {}
        refuse_compiled(chunks, parallel)

    @property
    def has_last(self) -> bool:
        """Whether this rank makes the loss."""
        return self._rank == self._last_rank

    def forward_backward(self, parts: Sequence[Columns], forward: Forward, loss: Loss, *, figures: int) -> Tensor:
        """Run a step's micro-batches through the schedule; gradients are added to the parameters', reduced over data
        parallel ranks once, after the last micro-batch.

        Returns the `figures` sums that `loss` gave, float64, where the last stage is, and zeros elsewhere. RecipeError
        if the schedule cannot run so many micro-batches; HeadwaterError if the pipeline's ranks do not agree on what to
        run.
        """
        problem = micro_batch_problem(self._parallel, len(parts))
        if problem is not None:
            raise RecipeError(problem[0], where="parallel.schedule", mend=problem[1])
        self._agree(parts, training=True)
        self.tied.pull()
        sums = self._run(parts, forward, loss, figures, training=True)
        self.tied.push()
        return sums

    @torch.no_grad()
    def evaluate(self, parts: Sequence[Columns], forward: Forward, loss: Loss, *, figures: int) -> Tensor:
        """The sums of `loss` without gradients; any number of micro-batches of one shape, whatever the schedule."""
        self._agree(parts, training=False)
        self.tied.pull()
        sums = torch.zeros(figures, dtype=torch.float64, device=self._device)
        # In rounds, because torch keeps the outputs of all micro-batches of a forward-only run.
        most = 2 * self._parallel.pp
        for start in range(0, len(parts), most):
            sums += self._run(parts[start : start + most], forward, loss, figures, training=False)
        return sums

    def _run(self, parts: Sequence[Columns], forward: Forward, loss: Loss, figures: int, *, training: bool) -> Tensor:
        rows, seq = parts[0].tokens.shape
        stages, schedule = self._schedule(training, len(parts), rows, seq)
        sums = torch.zeros(figures, dtype=torch.float64, device=self._device)
        self._work.parts, self._work.forward, self._loss, self._sums = parts, forward, loss, sums
        places = torch.arange(len(parts))
        run = schedule.step if training else schedule.eval
        first = any(spec.first for spec, _ in self._chunks)
        arguments: dict[str, Any] = {"target": places} if self.has_last else {}
        try:
            run(*([places] if first else []), place=places, return_outputs=False, **arguments)
        except Exception as error:
            _raise_cause(error)
        finally:
            self._work.parts, self._work.forward, self._loss, self._sums = (), None, None, None
            for stage in stages:
                stage.clear_runtime_states()
                stage.release()
        return sums

    def _compute_loss(self, hidden: Tensor, place: Tensor) -> Tensor:
        assert self._loss is not None
        assert self._sums is not None
        scalar, sums = self._loss(self._chunks[-1][1], hidden, self._work.parts[int(place)])
        self._sums += sums
        return scalar

    def _schedule(self, training: bool, number: int, rows: int, seq: int) -> tuple[list[_Stage], Any]:
        """Stages and schedule for a shape, made when first met."""
        key = (training, number, rows, seq)
        if key not in self._built:
            shape = (rows, seq // self._shards, self._width)
            stream = torch.empty(shape, dtype=self._dtype, device="meta", requires_grad=True)
            stages = [
                _Stage(module, spec, len(self._specs), self._work, stream, self._group) for spec, module in self._chunks
            ]
            make = self._training_schedule if training else self._forward_schedule
            self._built[key] = stages, make(stages, number)
        return self._built[key]

    def _training_schedule(self, stages: list[_Stage], number: int) -> Any:
        kind = get_schedule_class(CLASSES[self._parallel.schedule])
        if issubclass(kind, PipelineScheduleSingle):
            return kind(stages[0], number, loss_fn=self._compute_loss, scale_grads=False)
        assert issubclass(kind, PipelineScheduleMulti)
        return kind(list(stages), number, loss_fn=self._compute_loss, scale_grads=False)

    def _forward_schedule(self, stages: list[_Stage], number: int) -> Any:
        """All micro-batches through a rank's first stage, then its next: any number of them, which training schedules
        would not take. torch wants a complete order; run forward-only, backward passes in it do nothing."""
        schedule = _PipelineScheduleRuntime(list(stages), number, loss_fn=self._compute_loss, scale_grads=False)
        order: dict[int, list[_Action | None]] = {}
        for rank in range(self._parallel.pp):
            own = [spec.index for spec in of_rank(self._specs, rank)]
            forward = [_Action(stage, _ComputationType.FORWARD, place) for stage in own for place in range(number)]
            backward = [
                _Action(stage, _ComputationType.FULL_BACKWARD, place)
                for stage in reversed(own)
                for place in range(number)
            ]
            order[rank] = [*forward, *backward]
        schedule.pipeline_order = order
        schedule._prepare_schedule_with_comms(order)
        return schedule

    def _agree(self, parts: Sequence[Columns], *, training: bool) -> None:
        """All ranks of the pipeline are about to run the same shapes, or HeadwaterError tells which are not. Also what
        makes every pair of ranks know one another before the first stage sends (NCCL builds groups when first used)."""
        shapes = {tuple(part.tokens.shape) for part in parts}
        if len(shapes) != 1:
            raise HeadwaterError(
                f"micro-batches of {len(parts)} in a pipeline have the shapes {sorted(shapes)}",
                mend="give a pipeline micro-batches of one shape",
            )
        rows, seq = next(iter(shapes))
        own = torch.tensor([training, len(parts), rows, seq], dtype=torch.int64, device=self._device)
        everyone = own.new_empty(self._parallel.pp * own.numel())
        dist.all_gather_single(everyone, own, group=self._group)
        plans = everyone.view(self._parallel.pp, -1).tolist()
        if any(plan != plans[0] for plan in plans):
            lines = "; ".join(
                f"pipeline rank {rank}: {'training' if plan[0] else 'evaluating'} {plan[1]} micro-batches of "
                f"{plan[2]} x {plan[3]} tokens"
                for rank, plan in enumerate(plans)
            )
            raise HeadwaterError(f"the ranks of a pipeline do not run the same step: {lines}")


def _device_of(module: nn.Module) -> torch.device:
    """Where a stage's parameters are."""
    return next(module.parameters()).device


def refuse_compiled(chunks: Sequence[nn.Module], parallel: ParallelConfig) -> None:
    """RecipeError if a block is compiled and the schedule splits the backward pass: compiled code computes all of its
    gradients at once."""
    compiled = any(module._compiled_call_impl is not None for chunk in chunks for module in chunk.modules())
    if (problem := compile_problem(parallel, compiled=compiled)) is not None:
        raise RecipeError(problem[0], where="parallel.schedule", mend=problem[1])


def _raise_cause(error: Exception) -> NoReturn:
    """torch wraps what goes wrong in a stage; raise what it was where the caller has words for it."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, (HeadwaterError, IndexError)) or is_out_of_memory(cause):
            raise cause
        cause = cause.__cause__
    raise error
