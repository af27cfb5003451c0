"""Optimizers: against references, by group, and through a save."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from headwater.train.config import OptimizerConfig
from headwater.train.muon import MuonAdamW, orthogonalise, update_scale
from headwater.train.optimizers import (
    build_optimizer,
    load_state_tensors,
    named_parameters,
    set_lr_factor,
    state_tensors,
)


class Small(nn.Module):
    """An embedding, two matrices of one shape, one of another, a norm, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(32, 16)
        self.up = nn.Linear(16, 24, bias=False)
        self.gate = nn.Linear(16, 24, bias=False)
        self.down = nn.Linear(24, 16, bias=True)
        self.norm = nn.RMSNorm(16)
        self.head = nn.Linear(16, 32, bias=False)

    @property
    def lm_head_weight(self) -> torch.Tensor:
        return self.head.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        return self.head(self.norm(x + self.down(self.up(x) * self.gate(x).sigmoid())))


def small() -> Small:
    torch.manual_seed(0)
    return Small()


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int, start: int = 0) -> None:
    for step in range(start, start + steps):
        generator = torch.Generator().manual_seed(step)
        ids = torch.randint(32, (4, 8), generator=generator)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.roll(-1, 1).flatten()).backward()
        optimizer.step()


@pytest.mark.parametrize("shape", [(8, 8), (8, 24), (24, 8)])
def test_newton_schulz_brings_singular_values_near_one(shape: tuple[int, int]) -> None:
    torch.manual_seed(1)
    stack = torch.randn(5, *shape) * torch.tensor([1e-3, 1, 10, 100, 1e4]).view(5, 1, 1)
    values = torch.linalg.svdvals(orthogonalise(stack, steps=8))
    assert values.min() > 0.5
    assert values.max() < 1.3


def test_a_zero_matrix_stays_zero() -> None:
    assert orthogonalise(torch.zeros(1, 4, 6), 5).abs().max() == 0


def test_stacking_changes_nothing() -> None:
    torch.manual_seed(2)
    stack = torch.randn(3, 12, 20)
    one_by_one = torch.cat([orthogonalise(matrix[None], 5) for matrix in stack])
    torch.testing.assert_close(orthogonalise(stack, 5), one_by_one, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize(("ours", "theirs"), [("spectral", "original"), ("rms", "match_rms_adamw")])
def test_muon_follows_torch_within_the_rounding_of_its_bf16(ours: str, theirs: str, bf16: bool) -> None:
    models = [small(), small()]
    matrices = [[m.up.weight, m.gate.weight, m.down.weight] for m in models]
    group = {"params": matrices[0], "kind": "muon", "lr": 0.02, "weight_decay": 0.1, "scale": ours, "bf16": bf16}
    mine = MuonAdamW([group])
    reference = torch.optim.Muon(matrices[1], lr=0.02, weight_decay=0.1, momentum=0.95, adjust_lr_fn=theirs)
    start = [w.detach().clone() for w in matrices[0]]
    train(models[0], mine, 3)
    train(models[1], reference, 3)
    for before, a, b in zip(start, *matrices, strict=True):
        assert (a - b).norm() / (b - before).norm() < 0.02


def test_muon_matches_a_plain_reference_exactly() -> None:
    """The published algorithm, matrix by matrix, in the same precision."""

    def newton_schulz(g: torch.Tensor) -> torch.Tensor:
        x = g.T if g.size(0) > g.size(1) else g
        x = x / (x.norm() + 1e-7)
        for _ in range(5):
            a = x @ x.T
            x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
        return x.T if g.size(0) > g.size(1) else x

    model = small()
    weights = [model.up.weight, model.gate.weight, model.down.weight]
    expected = [w.detach().clone() for w in weights]
    momenta = [torch.zeros_like(w) for w in expected]
    optimizer = MuonAdamW([{"params": weights, "kind": "muon", "lr": 0.02, "weight_decay": 0.1}])
    for step in range(4):
        train(model, optimizer, 1, start=step)
        for w, m, parameter in zip(expected, momenta, weights, strict=True):
            assert parameter.grad is not None
            m.mul_(0.95).add_(parameter.grad, alpha=0.05)
            update = newton_schulz(parameter.grad * 0.05 + m * 0.95)
            w.mul_(1 - 0.02 * 0.1).sub_(update * max(1, w.size(0) / w.size(1)) ** 0.5, alpha=0.02)
            torch.testing.assert_close(parameter.detach(), w, rtol=1e-4, atol=1e-6)
            w.copy_(parameter.detach())


def test_the_adamw_half_is_torchs_adamw() -> None:
    models = [small(), small()]
    settings = {"lr": 0.003, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}
    train(models[0], MuonAdamW([{"params": models[0].parameters(), "kind": "adamw", **settings}]), 4)
    train(models[1], torch.optim.AdamW(models[1].parameters(), fused=True, **settings), 4)
    for a, b in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert torch.equal(a, b)


def test_moonlight_scale_gives_updates_the_size_of_adamws() -> None:
    torch.manual_seed(3)
    for rows, columns in ((64, 64), (64, 256), (256, 64)):
        update = orthogonalise(torch.randn(1, rows, columns), 5) * update_scale(rows, columns, "rms")
        assert 0.15 < update.square().mean().sqrt() < 0.25


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_decay_falls_on_matrices_only(name: str) -> None:
    model = small()
    optimizer = build_optimizer(OptimizerConfig(name=name, decay_embeddings=False), model)
    names = {id(p): n for n, p in model.named_parameters()}
    decayed = {names[id(p)] for g in optimizer.param_groups if g["weight_decay"] for p in g["params"]}
    assert decayed == {"up.weight", "gate.weight", "down.weight"}
    assert sum(len(g["params"]) for g in optimizer.param_groups) == len(names)


def test_embeddings_are_decayed_by_default_and_never_orthogonalised() -> None:
    model = small()
    optimizer = build_optimizer(OptimizerConfig(name="muon"), model)
    names = {id(p): n for n, p in model.named_parameters()}
    muon = {names[id(p)] for g in optimizer.param_groups if g["kind"] == "muon" for p in g["params"]}
    assert muon == {"up.weight", "gate.weight", "down.weight"}
    decayed = {names[id(p)] for g in optimizer.param_groups if g["weight_decay"] for p in g["params"]}
    assert decayed - muon == {"embed.weight", "head.weight"}


def test_muon_refuses_what_is_not_a_matrix() -> None:
    with pytest.raises(ValueError, match="matrices"):
        MuonAdamW([{"params": [nn.Parameter(torch.zeros(3))], "kind": "muon"}])


def test_the_schedule_moves_every_group_alike() -> None:
    optimizer = build_optimizer(OptimizerConfig(name="muon", lr=0.02), small())
    set_lr_factor(optimizer, 0.5)
    assert {g["kind"]: g["lr"] for g in optimizer.param_groups} == {"muon": 0.01, "adamw": 0.0015}


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_state_by_name_goes_on_exactly(name: str) -> None:
    config = OptimizerConfig(name=name, lr=0.01)
    straight = small()
    optimizer = build_optimizer(config, straight)
    train(straight, optimizer, 3)
    resumed = copy.deepcopy(straight)
    state = {k: v.clone() for k, v in state_tensors(optimizer, named_parameters(straight)).items()}
    train(straight, optimizer, 3, start=3)
    second = build_optimizer(config, resumed)
    load_state_tensors(second, named_parameters(resumed), state)
    train(resumed, second, 3, start=3)
    for a, b in zip(straight.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(a, b)


def test_an_unknown_parameter_in_a_state_is_refused() -> None:
    model = small()
    with pytest.raises(KeyError):
        load_state_tensors(
            build_optimizer(OptimizerConfig(), model), named_parameters(model), {"x/step": torch.ones(())}
        )
