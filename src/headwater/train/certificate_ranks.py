"""What each process of a certificate does: three real steps, and what came of them.

In: a `Case`. Out, from one process, a `Reference`: losses, norms, every gradient, the weights before and after; from a
rank of a layout, a `RankReport`: how far the parts it holds are from the reference's. Gradients are read where the
optimizer takes them: summed over all ranks, unscaled and clipped. A rank cuts its part out of the reference by itself,
so copies on several ranks are all compared, and nothing is communicated to compare.

    reference = run_local_ranks(1, run_reference, case)[0]; reports = run_local_ranks(8, run_rank, case, reference)
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor, nn

from headwater.parallel.config import ParallelConfig
from headwater.parallel.context import context_of
from headwater.parallel.mesh import Mesh, build_mesh
from headwater.parallel.slices import local, local_part
from headwater.train.batch import Batch
from headwater.train.certificate_case import STEPS, Case
from headwater.train.devices import Precision
from headwater.train.optimizers import named_parameters
from headwater.train.train_module import TrainModule

CPU = torch.device("cpu")


@dataclass
class Reference:
    """Three steps of one process. `gradients`: by step, then by name; a step the optimizer skipped has none.
    `validation`: loss after the last step, of rows that were not trained on."""

    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    gradients: list[dict[str, Tensor]] = field(default_factory=list)
    before: dict[str, Tensor] = field(default_factory=dict)
    after: dict[str, Tensor] = field(default_factory=dict)
    validation: float = 0.0

    @property
    def names(self) -> list[str]:
        """Parameters in the model's order."""
        return list(self.before)


@dataclass
class RankReport:
    """How far a rank is from the reference. `gradients`: largest absolute difference by step and name; `weights`: (sum
    of squares of the difference, of the change) by name; `strays`: what it has that the reference has not; `leaked`:
    (row, position) of hidden states that moved and should not; `moved` and `expected`: how many did and may move."""

    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    gradients: list[dict[str, float]] = field(default_factory=list)
    weights: dict[str, tuple[float, float]] = field(default_factory=dict)
    strays: list[str] = field(default_factory=list)
    validation: float = 0.0
    leaked: list[tuple[int, int]] = field(default_factory=list)
    moved: int = 0
    expected: int = 0


def run_reference(case: Case) -> Reference:
    """Three steps in this process alone."""
    module = _module(case, Mesh.single(CPU, ParallelConfig(micro_batch=case.micro_batch)))
    result = Reference(before=_copies(module))
    with _gradients(module) as gradients:
        for step in range(1, STEPS + 1):
            gradients.clear()
            outcome = module.train_step(step, case.batch(step), lr_factor=1.0)
            result.losses.append(outcome.loss)
            result.norms.append(outcome.grad_norm)
            result.gradients.append(dict(gradients))
    result.after = _copies(module)
    result.validation = _validate(module, case.batch(STEPS + 1))
    return result


def run_rank(case: Case, reference: Reference) -> RankReport:
    """The same three steps as a rank of the case's layout, compared with the reference; then the probes for leaks."""
    mesh = build_mesh(case.parallel, CPU)
    module = _module(case, mesh)
    report = RankReport()
    parameters = _parameters(module, case)
    report.strays = [name for name in parameters if name not in reference.before]
    known = {name: p for name, p in parameters.items() if name in reference.before}
    with _gradients(module, known) as gradients:
        for step in range(1, STEPS + 1):
            gradients.clear()
            outcome = module.train_step(step, _share(case.batch(step), mesh), lr_factor=1.0)
            report.losses.append(outcome.loss)
            report.norms.append(outcome.grad_norm)
            expected = reference.gradients[step - 1]
            if bool(gradients) != bool(expected):
                report.strays.append(f"step {step}: {'skipped' if expected else 'not skipped'}")
                report.gradients.append({})
                continue
            report.gradients.append(
                {name: _largest(local(g) - local_part(expected[name], g)) for name, g in gradients.items()}
            )
    for name, parameter in known.items():
        before, after = (local_part(x[name], parameter).double() for x in (reference.before, reference.after))
        difference, change = local(parameter).double() - after, after - before
        report.weights[name] = float(difference.square().sum()), float(change.square().sum())
    _probe(case, module, report)
    return report


def _module(case: Case, mesh: Mesh) -> TrainModule:
    return TrainModule.build(
        case.model,
        case.train,
        mesh=mesh,
        precision=cast(Precision, case.precision),
        micro_batch=case.micro_batch,
        seed=case.seed,
    )


def _parameters(module: TrainModule, case: Case) -> dict[str, nn.Parameter]:
    """This rank's parameters by the names they have in one process: a tied head on a stage of its own is a copy."""
    named = dict(named_parameters(*module.stages))
    if case.model.tie_word_embeddings and "lm_head.weight" in named:
        copy = named.pop("lm_head.weight")
        named.setdefault("model.embed_tokens.weight", copy)
    return named


def _share(batch: Batch, mesh: Mesh) -> Batch:
    return batch.share(mesh.coordinate("dp"), mesh.size("dp"))


def _copies(module: TrainModule) -> dict[str, Tensor]:
    return {name: local(p).clone() for name, p in named_parameters(*module.stages).items()}


@contextmanager
def _gradients(module: TrainModule, parameters: dict[str, nn.Parameter] | None = None) -> Iterator[dict[str, Tensor]]:
    """What the optimizer is about to take, of each step anew; empty after a step it skipped."""
    parameters = named_parameters(*module.stages) if parameters is None else parameters
    taken: dict[str, Tensor] = {}

    def take(*_: Any) -> None:
        taken.update({name: p.grad.detach().clone() for name, p in parameters.items() if p.grad is not None})

    handle = module.optimizer.register_step_pre_hook(take)
    try:
        yield taken
    finally:
        handle.remove()


def _largest(difference: Tensor) -> float:
    """Largest absolute value; NaN counts as infinite."""
    return float(difference.abs().nan_to_num(nan=float("inf")).amax()) if difference.numel() else 0.0


# Leaks: which hidden states move when one token changes.


def _probe(case: Case, module: TrainModule, report: RankReport) -> None:
    """Change one token of one row at a time, and see which of this rank's final hidden states move, bit for bit."""
    batch = case.batch(STEPS + 1)
    before, report.validation = _final_hidden(module, batch)
    if case.leak_unknown:
        return
    for row in sorted({0, case.rows - 1}):
        expected, changed = _perturbed(case, batch, row)
        after, _ = _final_hidden(module, changed)
        if before is None or after is None:
            continue
        mesh = module.mesh
        rows = case.rows // mesh.size("dp")
        first = rows * mesh.coordinate("dp")
        columns = _columns(case, mesh, before.shape[1])
        moved, should = (before != after).any(-1), expected[first : first + rows][:, columns]
        report.leaked += [(first + int(r), int(columns[int(c)])) for r, c in (moved & ~should).nonzero().tolist()]
        report.moved += int((moved & should).sum())
        report.expected += int(should.sum())


def _perturbed(case: Case, batch: Batch, row: int) -> tuple[Tensor, Batch]:
    """(bool [rows, seq]: what may move, the batch) with a token changed in the middle of a document of `row`."""
    documents = torch.zeros_like(batch.tokens) if batch.documents is None else batch.documents
    ids, counts = documents[row].unique(return_counts=True)
    own = (documents[row] == ids[counts.argmax()]).nonzero().flatten()
    place = int(own[len(own) // 3])
    tokens = batch.tokens.clone()
    tokens[row, place] = (tokens[row, place] + 1) % case.model.true_vocab_size
    expected = torch.zeros(tokens.shape, dtype=torch.bool)
    first = int(own[0]) if case.model.architecture == "encoder" else place
    expected[row, first : int(own[-1]) + 1] = True
    return expected, Batch(tokens, batch.targets, batch.positions, batch.documents)


def _final_hidden(module: TrainModule, batch: Batch) -> tuple[Tensor | None, float]:
    """(what the final norm gives, [this rank's rows, its columns, width], None where another rank has the last layer;
    the loss)."""
    taken: list[Tensor] = []
    norms = [stage.model.norm for stage in module.stages if stage.model.norm is not None]
    handles = [norm.register_forward_hook(lambda _, __, out: taken.append(local(out).clone())) for norm in norms]
    try:
        loss = _validate(module, batch)
    finally:
        for handle in handles:
            handle.remove()
    return torch.cat(taken) if taken else None, loss


def _validate(module: TrainModule, batch: Batch) -> float:
    with module.evaluation(averaged=False):
        nats, predicted, *_ = module.evaluate(batch)
    return nats / predicted


def _columns(case: Case, mesh: Mesh, count: int) -> Tensor:
    """Positions in the window of this rank's `count` hidden states."""
    columns = torch.arange(case.train.seq_len).unsqueeze(0)
    context = context_of(mesh, case.model)
    if context is not None:
        columns = context.cut(columns)
    shards = columns.shape[1] // count  # sequence parallelism cuts them once more
    return columns[0].chunk(shards)[mesh.coordinate("tp") if shards > 1 else 0]
