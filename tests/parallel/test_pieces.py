"""Pieces of the layout on their own: the loss over a shared vocabulary, a rank's part of a tensor, the norm of all."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from headwater.model import cross_entropy
from headwater.model.loss import IGNORE
from headwater.parallel.config import ParallelConfig
from headwater.parallel.data import fsdp_modules, shard_data_parallel
from headwater.parallel.gradients import global_norm, scale_, settle
from headwater.parallel.mesh import build_mesh
from headwater.parallel.slices import copy_full_, local, local_part, shaped_like, whole
from headwater.parallel.tensor import apply_tensor_parallel
from headwater.parallel.vocab import sharded_cross_entropy
from tests.parallel.parity import MODEL
from tests.parallel.ranks import run_ranks

CPU = torch.device("cpu")
VOCABULARY, ROWS = 90, 128  # over 4 ranks the last one has padding only


def problem() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    hidden, weight = (torch.randn(*shape, generator=generator) for shape in ((2, 8, 16), (ROWS, 16)))
    targets = torch.randint(VOCABULARY, (2, 8), generator=generator)
    targets[0, :3] = IGNORE
    return hidden, weight, targets


def shared_loss() -> dict[str, Any]:
    mesh = build_mesh(ParallelConfig(tp=4), CPU)
    hidden, weight, targets = problem()
    own = hidden.chunk(4, 1)[mesh.coordinate("tp")].clone().requires_grad_()
    head = nn.Parameter(distribute_tensor(weight, mesh.submesh("tp"), [Shard(0)], src_data_rank=None))
    loss = sharded_cross_entropy(
        own, head, targets, mesh=mesh, vocab_size=VOCABULARY, z_loss=1e-2, per_token=True, chunk=5, accuracy=True
    )
    (loss.total / 7).backward()
    assert isinstance(head.grad, DTensor)
    return {
        "loss": [loss.total.item(), loss.nats.item(), loss.count.item(), loss.correct.item()],  # type: ignore[union-attr]
        "per_token": loss.per_token,
        "hidden": own.grad,
        "weight": head.grad.full_tensor(),
    }


def test_a_shared_vocabulary_gives_the_loss_and_gradients_of_a_whole_one() -> None:
    hidden, weight, targets = problem()
    hidden.requires_grad_()
    weight.requires_grad_()
    loss = cross_entropy(hidden, weight, targets, vocab_size=VOCABULARY, z_loss=1e-2, per_token=True, accuracy=True)
    (loss.total / 7).backward()
    expected = [loss.total.item(), loss.nats.item(), loss.count.item(), loss.correct.item()]  # type: ignore[union-attr]
    found = run_ranks(4, shared_loss)
    for rank, one in enumerate(found):
        torch.testing.assert_close(torch.tensor(one["loss"]), torch.tensor(expected))
        torch.testing.assert_close(one["per_token"], loss.per_token)
        torch.testing.assert_close(one["hidden"], hidden.grad.chunk(4, 1)[rank], rtol=1e-5, atol=1e-6)  # type: ignore[union-attr]
        torch.testing.assert_close(one["weight"], weight.grad, rtol=1e-5, atol=1e-6)
    assert not weight.grad[VOCABULARY:].any()  # type: ignore[index]


def parts() -> list[tuple[str, bool]]:
    """A model of every way to lie over a 2 x 2 grid, filled from whole tensors and read back."""
    from headwater.model import Decoder, initial_tensor

    mesh = build_mesh(ParallelConfig(dp_shard=2, tp=2), CPU)
    model = MODEL.model_copy(update={"intermediate_size": 98})  # 49 for a tp rank: 25 and 24 for its shards
    with torch.device("meta"):
        stage = Decoder(model)
    apply_tensor_parallel(stage, mesh)
    shard_data_parallel(stage, list(stage.model.layers.values()), mesh, zero=3)
    stage.to_empty(device="cpu")
    assert len(fsdp_modules(stage)) == MODEL.num_hidden_layers + 1
    checks = []
    for name, parameter in stage.named_parameters():
        full = initial_tensor(name, parameter.shape, model, 5)
        copy_full_(parameter, full)
        assert isinstance(parameter, DTensor)
        same = torch.equal(whole(parameter), full)
        same &= torch.equal(local(shaped_like(full, parameter)), local(parameter))
        same &= torch.equal(local_part(full, parameter), local(parameter))
        checks.append((name, same))
    return checks


def test_a_rank_takes_its_part_of_a_full_tensor_without_asking_others() -> None:
    for checks in run_ranks(4, parts):
        assert len(checks) == 2 + 9 * MODEL.num_hidden_layers + 1
        assert all(same for _, same in checks), checks


def norms() -> tuple[float, float, float]:
    """Gradients that are whole, sharded, and parts of a sum: 1 and 2 on ranks make 3."""
    mesh = build_mesh(ParallelConfig(tp=2), CPU)
    grid, rank = mesh.submesh("tp"), mesh.coordinate("tp")
    from torch.distributed.tensor import Partial, Replicate

    sharded = nn.Parameter(distribute_tensor(torch.zeros(4), grid, [Shard(0)], src_data_rank=None))
    sharded.grad = distribute_tensor(torch.tensor([1.0, 2.0, 3.0, 4.0]), grid, [Shard(0)], src_data_rank=None)
    summed = nn.Parameter(distribute_tensor(torch.zeros(2), grid, [Replicate()], src_data_rank=None))
    summed.grad = DTensor.from_local(torch.full((2,), 1.0 + rank), grid, [Partial()], run_check=False)
    tied = nn.Parameter(distribute_tensor(torch.zeros(2), grid, [Replicate()], src_data_rank=None))
    tied.grad = distribute_tensor(torch.full((2,), 100.0), grid, [Replicate()], src_data_rank=None)
    parameters = {"sharded": sharded, "summed": summed, "tied": tied}
    settle(parameters.values(), mesh)
    without = global_norm({name: p for name, p in parameters.items() if name != "tied"}, mesh)
    all_of_them = global_norm(parameters, mesh)
    scale_(parameters.values(), 0.5)
    return without, all_of_them, global_norm(parameters, mesh)


def test_the_norm_counts_every_number_once() -> None:
    few = math.sqrt(1 + 4 + 9 + 16 + 9 + 9)
    everything = math.sqrt(few**2 + 2 * 100.0**2)
    for found in run_ranks(2, norms):
        torch.testing.assert_close(torch.tensor(found), torch.tensor((few, everything, everything / 2)))
