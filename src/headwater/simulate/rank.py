"""One rank of a layout, simulated: its stages built, wrapped and trained for a step by the trainer's code.

In: a model, the training section, a layout, the place of a rank. Out: a `RankReport`: peak memory and what it is made
of, memory an allocator would hold, messages by axis, FLOPs, and the order in which its stages worked.

    simulate_rank(Flight(model, config, parallel, precision="bf16", micro_batch=1, rows=24, seq_len=2048), rank=8)

What is real: the split into stages, tensor parallelism, checkpointing, FSDP, the pipeline's schedule, the loss over the
shared vocabulary, the optimizer, clipping. What is not: numbers (there are none), other ranks (messages go nowhere and
nothing arrives), initial values (memory is taken, not filled) and compilation.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from torch.distributed.pipelining import PipelineStage

from headwater.model import CrossEntropy, ModelConfig
from headwater.model.hf import Model
from headwater.parallel import environment
from headwater.parallel.apply import shape_stages
from headwater.parallel.config import ParallelConfig
from headwater.parallel.context import Columns
from headwater.parallel.mesh import Mesh, build_mesh
from headwater.parallel.precision import Precision
from headwater.simulate.allocator import reserved
from headwater.simulate.ledger import Ledger
from headwater.simulate.repeat import NotAlike, Repeats
from headwater.simulate.tensors import Recorder
from headwater.simulate.traffic import STEP, Flow, Traffic
from headwater.train.batch import Batch
from headwater.train.config import TrainConfig
from headwater.train.train_module import TrainModule, options_of

_CPU = torch.device("cpu")


@dataclass(frozen=True)
class Flight:
    """What is simulated: `rows` samples of `seq_len` tokens a step and data-parallel rank. `gpu`: memory is counted as
    on a GPU, whose attention keeps no probabilities and whose loss takes larger chunks than a CPU's. `repeat`: a
    pipeline's micro-batches after the third are done again rather than run (`headwater.simulate.repeat`)."""

    model: ModelConfig
    config: TrainConfig
    parallel: ParallelConfig
    precision: Precision
    micro_batch: int
    rows: int
    seq_len: int
    gpu: bool = True
    repeat: bool = True


@dataclass(frozen=True)
class Action:
    """What a stage did: `kind` F (forward), B (backward), I (gradient of inputs) or W (of weights)."""

    kind: str
    stage: int
    micro_batch: int
    flops: float


@dataclass(frozen=True)
class RankReport:
    """What the simulation of a rank found; bytes. `rows`: samples that were run (see `headwater.simulate.flight`);
    `operations` of all of them, `repeated`: passes of stages that were done again instead of run."""

    rank: int
    place: str
    pp: int
    stages: list[str]
    parameters: int
    allocated_bytes: int
    reserved_bytes: int
    at_peak: dict[str, int]
    after_step: dict[str, int]
    flows: list[dict[str, Any]]
    flops: float
    actions: list[Action]
    rows: int
    operations: int
    repeated: int
    seconds: float
    cpu_seconds: float
    outcome: dict[str, float] = field(default_factory=dict)


class _Rows(Batch):
    """A batch whose tokens are all predicted; counting them would read tensors without data."""

    @property
    def predicted_tokens(self) -> int:
        return self.tokens.numel()


class Module(TrainModule):
    """The trainer's module, which tells the ledger what it is doing."""

    ledger: Ledger
    begin: Callable[[int], None]
    """Called with the rows of a step before its forward pass."""

    def _accumulate(self, batch: Batch, predicted: int) -> list[float]:
        self.begin(batch.rows)
        with self.ledger.during("backward"):
            return super()._accumulate(batch, predicted)

    def _columns(self, part: Batch) -> Columns:
        with self.ledger.during("batch"):
            return super()._columns(part)

    def _hidden(self, stage: Model, stream: Tensor, own: Columns) -> Tensor:
        with self.ledger.during("activations"):
            hidden = super()._hidden(stage, stream, own)
        _mark_gathered(stage, self.ledger)
        return hidden

    def _loss(self, stage: Model, hidden: Tensor, targets: Tensor) -> CrossEntropy:
        with self.ledger.during("loss"):
            return super()._loss(stage, hidden, targets)

    def _clip(self, norm: float) -> float:
        self.ledger.kind = "optimizer"  # what comes next
        return super()._clip(norm)


def simulate_rank(flight: Flight, rank: int) -> RankReport:
    """One step of one rank. RecipeError and the like where the trainer would raise them."""
    started = time.perf_counter()
    world = environment.World(rank, flight.parallel.ranks, launched=True)
    if flight.parallel.ranks > 1:
        environment.start(world, _CPU, backend="fake")
    try:
        mesh = build_mesh(flight.parallel, _CPU)
        try:
            return _simulate(flight, mesh, started)
        except NotAlike:
            return _simulate(replace(flight, repeat=False), mesh, started)
    finally:
        environment.stop()


def _simulate(flight: Flight, mesh: Mesh, started: float) -> RankReport:
    config = flight.config
    stages = shape_stages(flight.model, mesh, options_of(config, mesh, flight.precision))
    ledger, traffic = Ledger(), Traffic(mesh)
    cpu = time.process_time()
    actions: list[Action] = []
    limit = config.clip_grad_norm or 1.0
    recorder = Recorder(ledger, traffic, norm=2.0 * limit, chosen=config.objective.scored_ratio)
    with _as_on_gpu(flight.gpu), ledger.watching(), recorder.watching():
        with ledger.during("weights"):
            for stage in stages:
                stage.to_empty(device=_CPU)
        with ledger.during("other"):
            module = Module(stages, config, mesh=mesh, precision=flight.precision, micro_batch=flight.micro_batch)
        module.ledger, module.begin = ledger, lambda rows: None
        with ledger.during("batch"):
            tokens = torch.zeros(flight.rows, flight.seq_len, dtype=torch.int64)
            batch = _Rows(tokens, tokens)
        _as_after_a_step(module, ledger)
        ledger.start_again()
        repeats = Repeats(ledger, traffic, recorder) if flight.repeat else None
        with _watched_stages(ledger, traffic, actions, module, repeats), _watched_averages(module, ledger):
            outcome = module.train_step(1, batch, lr_factor=1.0)
        after = dict(ledger.held)
        report = RankReport(
            rank=mesh.rank,
            place=mesh.place(),
            pp=mesh.coordinate("pp"),
            stages=_describe(flight, mesh),
            parameters=sum(p.numel() for p in module.parameters.values()),
            allocated_bytes=ledger.peak,
            reserved_bytes=reserved(ledger.events),
            at_peak={kind: size for kind, size in ledger.at_peak.items() if size},
            after_step={kind: size for kind, size in after.items() if size},
            flows=[
                {"axis": axis, "operation": operation, "at": at, **asdict(flow)}
                for (axis, operation, at), flow in sorted(traffic.flows.items())
            ],
            flops=traffic.flops,
            actions=actions,
            rows=flight.rows,
            operations=recorder.operations,
            repeated=repeats.repeated if repeats is not None else 0,
            seconds=time.perf_counter() - started,
            cpu_seconds=time.process_time() - cpu,
            outcome={"clip_factor": outcome.clip_factor},
        )
        del module, batch, tokens
    return report


def _as_after_a_step(module: TrainModule, ledger: Ledger) -> None:
    """Optimizer state and averages, which the first update makes, are there in every later step."""
    with ledger.during("gradients"):
        for parameter in module.parameters.values():
            parameter.grad = torch.empty_like(parameter)
    with ledger.during("optimizer"):
        module.optimizer.step()
    if module.averaging is not None:
        with ledger.during("averages"):
            module.averaging.update(1)
    module.optimizer.zero_grad(set_to_none=True)


def _describe(flight: Flight, mesh: Mesh) -> list[str]:
    from headwater.parallel.stages import of_rank, split

    return [spec.describe() for spec in of_rank(split(flight.model, flight.parallel), mesh.coordinate("pp"))]


@contextmanager
def _as_on_gpu(wanted: bool) -> Iterator[None]:
    """The sizes that differ by device, as a GPU's: attention that keeps no probabilities, chunks of the loss."""
    from headwater.model import blocked_attention, interval_attention, loss

    places = ((blocked_attention, "KEEP_UP_TO"), (interval_attention, "KEEP_UP_TO"), (loss, "_CPU_ELEMENTS"))
    before = [getattr(module, name) for module, name in places]
    if wanted:
        for (module, name), value in zip(places, (0, 0, loss._GPU_ELEMENTS), strict=True):
            setattr(module, name, value)
    try:
        yield
    finally:
        for (module, name), value in zip(places, before, strict=True):
            setattr(module, name, value)


@contextmanager
def _watched_averages(module: TrainModule, ledger: Ledger) -> Iterator[None]:
    """Averages of the weights are a kind of their own."""
    averaging = module.averaging
    if averaging is None:
        yield
        return
    update = averaging.update

    def watched(step: int) -> None:
        with ledger.during("averages"):
            update(step)

    averaging.update = watched  # type: ignore[method-assign]
    try:
        yield
    finally:
        averaging.update = update  # type: ignore[method-assign]


@contextmanager
def _watched_stages(
    ledger: Ledger, traffic: Traffic, actions: list[Action], module: Module, repeats: Repeats | None
) -> Iterator[None]:
    """Write down what each pipeline stage does and when; without a pipeline, the rank's only stage and each of its
    micro-batches."""
    methods = {
        "forward_one_chunk": lambda bound: "F",
        "backward_one_chunk": lambda bound: "B" if bound.get("full_backward", True) else "I",
        "backward_weight_one_chunk": lambda bound: "W",
    }
    originals = {name: getattr(PipelineStage, name) for name in methods}

    def watched(name: str, kind: Callable[[dict[str, Any]], str]) -> Callable[..., Any]:
        original = originals[name]

        def method(self: Any, chunk: int, *args: Any, **kwargs: Any) -> Any:
            before = traffic.flops
            traffic.at = chunk
            try:
                if repeats is None:
                    return original(self, chunk, *args, **kwargs)
                return repeats.run(kind(kwargs), original, self, chunk, args, kwargs)
            finally:
                traffic.at = STEP
                actions.append(Action(kind(kwargs), self.stage_index, chunk, traffic.flops - before))
                if name != "forward_one_chunk" and chunk in (0, self.chunks - 1):  # made, and reduced
                    _mark_gradients(self.submod, ledger)

        return method

    for name, kind in methods.items():
        setattr(PipelineStage, name, watched(name, kind))
    try:
        if module.mesh.size("pp") == 1:
            with _watched_micro_batches(module, ledger, traffic, actions):
                yield
        else:
            yield
    finally:
        for name in methods:  # they are the base class's own
            delattr(PipelineStage, name)


@contextmanager
def _watched_micro_batches(module: Module, ledger: Ledger, traffic: Traffic, actions: list[Action]) -> Iterator[None]:
    original = Tensor.backward
    place, forward, rows = 0, 0.0, 0

    def begin(count: int) -> None:
        nonlocal rows
        rows, traffic.at = count, 0

    def backward(self: Tensor, *args: Any, **kwargs: Any) -> None:
        nonlocal place, forward
        actions.append(Action("F", 0, place, traffic.flops - forward))
        before = traffic.flops
        original(self, *args, **kwargs)
        actions.append(Action("B", 0, place, traffic.flops - before))
        _mark_gradients(module.stages[0], ledger)
        forward = traffic.flops
        place += 1
        traffic.at = place if place * module.micro_batch < rows else STEP

    module.begin = begin
    Tensor.backward = backward  # type: ignore[method-assign]
    try:
        yield
    finally:
        Tensor.backward = original  # type: ignore[method-assign]


def _mark_gathered(stage: torch.nn.Module, ledger: Ledger) -> None:
    """Weights that came from other ranks, in whatever pass they came."""
    for parameter in _sharded_parameters(stage):
        for gathered in parameter.all_gather_outputs:
            ledger.mark(gathered, "gathered")


def _sharded_parameters(stage: torch.nn.Module) -> Iterator[Any]:
    """FSDP's own record of each parameter."""
    for module in stage.modules():
        if isinstance(module, FSDPModule):
            state = module._get_fsdp_state()
            for group in getattr(state, "_fsdp_param_groups", None) or [state._fsdp_param_group]:
                yield from group.fsdp_params if group is not None else ()


def _mark_gradients(stage: torch.nn.Module, ledger: Ledger) -> None:
    """Gradients that wait for the optimizer, or for more micro-batches, are no longer the backward pass's."""
    for parameter in _sharded_parameters(stage):
        held = [parameter.unsharded_accumulated_grad]
        if hasattr(parameter, "_unsharded_param"):
            held.append(parameter._unsharded_param.grad)
        for gradient in held:
            if gradient is not None:
                ledger.mark(_local(gradient), "gradients")
    for parameter in stage.parameters():
        if parameter.grad is not None:
            ledger.mark(_local(parameter.grad), "gradients")


def _local(tensor: Tensor) -> Tensor:
    part = getattr(tensor, "_local_tensor", tensor)
    assert isinstance(part, Tensor)
    return part


def per_micro_batch(flows: list[dict[str, Any]], rows: int, micro_batch: int, wanted: int) -> list[dict[str, Any]]:
    """Flows of a step of `wanted` micro-batches out of those of a step of fewer: those between the first and the last
    are alike, and messages between stages (which belong to none) are as many for each."""
    ran = rows // micro_batch
    totals: defaultdict[tuple[str, str], Flow] = defaultdict(Flow)
    for flow in flows:
        inside = 0 < flow["at"] < ran - 1
        between = flow["operation"] in ("send", "receive") and flow["bytes"] > 4096 * flow["calls"]
        factor = (wanted - 2) / (ran - 2) if inside and ran > 2 else wanted / ran if between else 1.0
        total = totals[flow["axis"], flow["operation"]]
        total.calls += round(flow["calls"] * factor)
        total.bytes += flow["bytes"] * factor
        total.wire_bytes += flow["wire_bytes"] * factor
    return [{"axis": axis, "operation": name, **asdict(flow)} for (axis, name), flow in sorted(totals.items())]


__all__ = ["Action", "Flight", "RankReport", "per_micro_batch", "simulate_rank"]
