"""The mathematics of a step: accumulation, valid tokens, clipping, z-loss, precision, checkpointed activations."""

from __future__ import annotations

import copy
import itertools
import math

import pytest
import torch
from torch.nn import functional as F

from headwater.core.errors import InputError
from headwater.model import ModelConfig
from headwater.model.loss import IGNORE
from headwater.parallel.mesh import Mesh
from headwater.parallel.remat import checkpoint_layers
from headwater.train.batch import Batch
from headwater.train.config import TrainConfig
from headwater.train.non_finite import NonFiniteError
from headwater.train.train_module import TrainModule
from tests.train.conftest import TINY

CPU = torch.device("cpu")
MODEL = ModelConfig(**TINY, vocab_size=300)


def module(micro_batch: int = 8, precision: str = "fp32", **config: object) -> TrainModule:
    train = TrainConfig(steps=10, **config)
    mesh = Mesh.single(CPU)
    return TrainModule.build(MODEL, train, mesh=mesh, precision=precision, micro_batch=micro_batch, seed=1)  # type: ignore[arg-type]


def uneven_batch(rows: int = 8, seq: int = 48, seed: int = 0) -> Batch:
    """Rows with documents of very different lengths, and one row that is almost all ignored."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(300, (rows, seq + 1), generator=generator)
    documents = (torch.rand(rows, seq + 1, generator=generator) < 0.15).cumsum(1).int()
    documents[1] = torch.arange(seq + 1).int()
    documents[1, :3] = 0
    targets = torch.where(documents[:, 1:] == documents[:, :-1], tokens[:, 1:], IGNORE)
    inputs = documents[:, :-1].contiguous()
    starts = torch.where(F.pad(inputs.diff(dim=1) != 0, (1, 0)), torch.arange(seq), 0).cummax(1).values
    positions = (torch.arange(seq) - starts).int()
    return Batch(tokens[:, :-1].contiguous(), targets, positions, inputs, {"web": rows * seq}, 1000.0)


def gradients(one: TrainModule, batch: Batch) -> dict[str, torch.Tensor]:
    one._accumulate(batch, int((batch.targets != IGNORE).sum()))
    return {name: p.grad.clone() for name, p in one.model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("micro_batch", [1, 2, 3, 5])
def test_accumulation_equals_one_big_batch(micro_batch: int) -> None:
    batch = uneven_batch()
    whole, parts = gradients(module(8), batch), gradients(module(micro_batch), batch)
    for name in whole:
        assert (whole[name] - parts[name]).abs().max() <= 1e-6 * max(1e-3, whole[name].abs().max()), name


def test_the_loss_is_the_mean_over_valid_tokens_not_a_mean_of_means() -> None:
    batch = uneven_batch()
    one = module(2)
    logits = one.model.logits(
        torch.cat(
            [
                one.model(batch.tokens[i : i + 1, : e + 1][:, s:], None)[0]
                for i in range(8)
                for s, e in runs(batch.documents[i])  # type: ignore[index]
            ]
        )
    )
    flat_targets = torch.cat([batch.targets[i, s : e + 1] for i in range(8) for s, e in runs(batch.documents[i])])  # type: ignore[index]
    expected = F.cross_entropy(logits, flat_targets, ignore_index=IGNORE, reduction="mean")
    outcome = one.train_step(1, batch, lr_factor=1.0)
    assert outcome.loss == pytest.approx(expected.item(), rel=1e-5)
    assert outcome.predicted_tokens == int((batch.targets != IGNORE).sum())
    assert outcome.bits_per_byte == pytest.approx(outcome.loss * outcome.predicted_tokens / math.log(2) / 1000)
    assert outcome.tokens == batch.tokens.numel()


def runs(documents: torch.Tensor) -> list[tuple[int, int]]:
    """(first, last) position of each document of a row."""
    edges = [0, *((documents.diff() != 0).nonzero().flatten() + 1).tolist(), len(documents)]
    return [(a, b - 1) for a, b in itertools.pairwise(edges)]


def test_the_norm_is_that_of_all_gradients_before_clipping() -> None:
    batch = uneven_batch()
    expected = math.sqrt(sum(float(g.square().sum()) for g in gradients(module(), batch).values()))
    outcome = module(clip_grad_norm=expected / 4).train_step(1, batch, lr_factor=1.0)
    assert outcome.grad_norm == pytest.approx(expected, rel=1e-5)
    assert outcome.clip_factor == pytest.approx(0.25, rel=1e-5)
    assert module(clip_grad_norm=None).train_step(1, batch, lr_factor=1.0).clip_factor == 1


def test_clipping_scales_what_the_optimizer_sees() -> None:
    """With momentum only, a gradient clipped to a quarter moves plain AdamW's first moment by a quarter."""
    batch = uneven_batch()
    free, clipped = module(clip_grad_norm=None), module()
    norm = free.train_step(1, batch, lr_factor=1.0).grad_norm
    clipped = module(clip_grad_norm=norm / 4)
    clipped.train_step(1, batch, lr_factor=1.0)
    for key, tensor in free.state_tensors().items():
        if key.endswith("/exp_avg"):
            torch.testing.assert_close(clipped.state_tensors()[key] * 4, tensor, rtol=1e-4, atol=1e-9)


def test_z_loss_is_reported_apart_and_changes_the_gradient() -> None:
    batch = uneven_batch()
    without, with_z = module(), module(z_loss=0.01)
    a, b = without.train_step(1, batch, lr_factor=1.0), with_z.train_step(1, batch, lr_factor=1.0)
    assert a.loss == pytest.approx(b.loss, rel=1e-6)
    assert a.z_loss is None
    assert b.z_loss == pytest.approx(0.01 * math.log(300) ** 2, rel=0.05)
    assert a.grad_norm != b.grad_norm


def test_documents_do_not_see_each_other() -> None:
    """Changing a token of one document leaves the loss of the others' tokens as it was."""
    batch = uneven_batch()
    one = module()
    before = one.model(batch.tokens, batch.positions, layout(batch)).detach()
    changed = batch.tokens.clone()
    first, last = runs(batch.documents[0])[1]  # type: ignore[index]
    changed[0, first] = (changed[0, first] + 1) % 300
    after = one.model(changed, batch.positions, layout(batch)).detach()
    moved = (before - after).abs().amax(-1) > 0
    assert moved[0, first : last + 1].any()
    moved[0, first : last + 1] = False
    assert not moved.any()


def layout(batch: Batch) -> object:
    from headwater.model import BlockLayout

    assert batch.documents is not None
    return BlockLayout(batch.documents)


@pytest.mark.parametrize("mode", ["selective", "full"])
def test_checkpointed_activations_give_the_same_gradients(mode: str) -> None:
    batch = uneven_batch()
    plain, other = gradients(module(4), batch), gradients(module(4, activation_checkpointing=mode), batch)
    assert plain.keys() == other.keys()
    for name in plain:
        torch.testing.assert_close(plain[name], other[name], rtol=1e-5, atol=1e-7)


CALLS: dict[str, int] = {"headwater": 0, "foreign": 0}


def counted_operator(namespace: str) -> torch.library.CustomOpDef:
    """An operator that counts how often it really runs."""

    @torch.library.custom_op(f"{namespace}::counted_for_a_test", mutates_args=())
    def counted(x: torch.Tensor) -> torch.Tensor:
        CALLS[namespace] += 1
        return x * 2

    counted.register_autograd(lambda ctx, grad: grad * 2)
    return counted


OWN, FOREIGN = counted_operator("headwater"), counted_operator("foreign")


class CountingBlock(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return FOREIGN(OWN(x).sin()).sin()


@pytest.mark.parametrize(("mode", "own", "foreign"), [("none", 1, 1), ("selective", 1, 2), ("full", 2, 2)])
def test_selective_checkpointing_keeps_what_is_costly_and_recomputes_the_rest(
    mode: str, own: int, foreign: int
) -> None:
    block = CountingBlock()
    checkpoint_layers({"0": block}, mode)  # type: ignore[arg-type]
    CALLS.update(headwater=0, foreign=0)
    x = torch.ones(3, requires_grad=True)
    block(x).sum().backward()
    assert {"headwater": own, "foreign": foreign} == CALLS


def test_bf16_autocast_is_close_to_fp32() -> None:
    batch = uneven_batch()
    exact = module().train_step(1, batch, lr_factor=1.0)
    rounded = module(precision="bf16").train_step(1, batch, lr_factor=1.0)
    assert rounded.loss == pytest.approx(exact.loss, rel=1e-2)
    assert rounded.grad_norm == pytest.approx(exact.grad_norm, rel=5e-2)
    assert rounded.loss != exact.loss


def test_a_compiled_model_gives_the_same_step() -> None:
    batch = uneven_batch()
    try:
        compiled = module(compile=True).train_step(1, batch, lr_factor=1.0)
    except Exception as error:
        if "compiler" in str(error).lower():
            pytest.skip("no C++ compiler")
        raise
    plain = module().train_step(1, batch, lr_factor=1.0)
    assert compiled.loss == pytest.approx(plain.loss, rel=1e-5)
    assert compiled.grad_norm == pytest.approx(plain.grad_norm, rel=1e-4)


def test_a_gradient_that_is_not_finite_stops_before_the_update() -> None:
    one = module()
    one.train_step(1, uneven_batch(), lr_factor=1.0)
    before = {k: v.clone() for k, v in one.state_tensors().items()}
    with torch.no_grad():
        one.model.model.norm.weight[3] = math.inf  # type: ignore[union-attr]
    with pytest.raises(NonFiniteError) as caught:
        one.train_step(2, uneven_batch(seed=1), lr_factor=1.0)
    assert caught.value.where == "step 2"
    assert caught.value.tensor in dict(one.model.named_parameters())
    assert f"first in the gradient of {caught.value.tensor}" in caught.value.what
    for key, tensor in one.state_tensors().items():
        if key != "weights.model.norm.weight":
            assert torch.equal(tensor, before[key]), key


def test_a_batch_without_a_target_is_named() -> None:
    batch = uneven_batch()
    batch.targets.fill_(IGNORE)
    with pytest.raises(InputError, match="no token"):
        module().train_step(7, batch, lr_factor=1.0)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("averaging", ["none", "ema", "lawa"])
def test_state_put_into_a_fresh_module_goes_on_exactly(optimizer: str, averaging: str) -> None:
    config = {"optimizer": {"name": optimizer}, "averaging": {"name": averaging, "every": 1, "last": 2}}
    straight = module(**config)
    for step in range(1, 4):
        straight.train_step(step, uneven_batch(seed=step), lr_factor=1.0)
    resumed = module(**config)
    resumed.load_state_tensors({k: v.clone() for k, v in straight.state_tensors().items()})
    for step in range(4, 7):
        a = straight.train_step(step, uneven_batch(seed=step), lr_factor=0.5)
        b = resumed.train_step(step, uneven_batch(seed=step), lr_factor=0.5)
        assert (a.loss, a.grad_norm) == (b.loss, b.grad_norm)
    ours, theirs = straight.state_tensors(), resumed.state_tensors()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[key], theirs[key]) for key in ours)


def test_averages_are_what_they_say() -> None:
    config = {"averaging": {"name": "lawa", "every": 2, "last": 2}, "optimizer": {"lr": 0.01}}
    one = module(**config)
    history = []
    for step in range(1, 7):
        one.train_step(step, uneven_batch(seed=step), lr_factor=1.0)
        history.append(copy.deepcopy(dict(one.model.named_parameters())))
    assert one.averaging is not None
    mean = one.averaging.mean()
    for name in mean:
        torch.testing.assert_close(mean[name], (history[3][name] + history[5][name]) / 2)
    trained = {name: p.clone() for name, p in one.model.named_parameters()}
    with one.evaluation(averaged=True):
        assert torch.equal(one.model.lm_head_weight, mean["model.embed_tokens.weight"])
    assert all(torch.equal(p, trained[name]) for name, p in one.model.named_parameters())


def test_ema_follows_its_formula() -> None:
    one = module(averaging={"name": "ema", "every": 1, "decay": 0.7, "start": 2})
    expected: torch.Tensor | None = None
    for step in range(1, 6):
        one.train_step(step, uneven_batch(seed=step), lr_factor=1.0)
        weight = one.model.lm_head_weight.detach()
        if step >= 2:
            expected = weight.clone() if expected is None else 0.7 * expected + 0.3 * weight
    assert one.averaging is not None
    assert expected is not None
    torch.testing.assert_close(one.averaging.mean()["model.embed_tokens.weight"], expected)


def test_a_dry_run_leaves_no_trace() -> None:
    one = module(4)
    before = {k: v.clone() for k, v in one.state_tensors().items()}
    assert one.dry_run(64) > 0
    assert all(torch.equal(tensor, before[key]) for key, tensor in one.state_tensors().items())
    assert all(p.grad is None for p in one.model.parameters())


def test_another_rope_theta_changes_what_far_positions_see() -> None:
    one = module()
    tokens = uneven_batch().tokens
    before = one.model(tokens).detach()
    one.set_rope_theta(5e5)
    assert one.model_record["rope_theta"] == 5e5
    assert not torch.equal(one.model(tokens).detach(), before)
