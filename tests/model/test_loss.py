"""Chunked cross-entropy equals PyTorch's in value and gradient, whatever the chunk, dtype and padding."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from headwater.model import cross_entropy
from headwater.model.loss import IGNORE, chunk_tokens


def case(n: int, d: int, vocab: int, ignored: float, seed: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(n, d, generator=generator, dtype=dtype, requires_grad=True)
    weight = torch.randn(vocab, d, generator=generator, dtype=dtype, requires_grad=True)
    targets = torch.randint(0, vocab, (n,), generator=generator)
    targets[torch.rand(n, generator=generator) < ignored] = IGNORE
    return [hidden, weight, targets]


@settings(max_examples=60)
@given(
    n=st.integers(0, 30),
    vocab=st.integers(1, 20),
    padding=st.integers(0, 5),
    ignored=st.sampled_from([0.0, 0.3, 1.0]),
    z_loss=st.sampled_from([0.0, 0.01]),
    chunk=st.integers(1, 40),
    seed=st.integers(0, 1 << 30),
)
def test_value_and_gradient_equal_pytorchs(
    n: int, vocab: int, padding: int, ignored: float, z_loss: float, chunk: int, seed: int
) -> None:
    hidden, weight, targets = case(n, 4, vocab, ignored, seed)
    padded = torch.cat([weight.detach(), torch.full((padding, 4), 9.0, dtype=torch.float64)]).requires_grad_()
    ours = cross_entropy(hidden, padded, targets, vocab_size=vocab, z_loss=z_loss, chunk=chunk, per_token=True)
    gradients = torch.autograd.grad(3 * ours.total, (hidden, padded))
    logits = F.linear(hidden, weight)
    nats = F.cross_entropy(logits, targets, ignore_index=IGNORE, reduction="sum")
    total = nats + z_loss * (logits.logsumexp(-1).square() * (targets != IGNORE)).sum()
    assert torch.allclose(ours.nats, nats)
    assert torch.allclose(ours.total, total)
    assert int(ours.count) == int((targets != IGNORE).sum())
    assert ours.per_token is not None
    assert torch.allclose(ours.per_token, F.cross_entropy(logits, targets, ignore_index=IGNORE, reduction="none"))
    expected = torch.autograd.grad(3 * total, (hidden, weight))
    assert torch.allclose(gradients[0], expected[0])
    assert torch.allclose(gradients[1][:vocab], expected[1])
    assert (gradients[1][vocab:] == 0).all()


def test_gradcheck() -> None:
    hidden, weight, targets = case(7, 3, 5, 0.2, 1)
    assert torch.autograd.gradcheck(
        lambda h, w: cross_entropy(h, w, targets, z_loss=0.1, chunk=3).total, (hidden, weight)
    )


def test_chunks_do_not_change_the_float32_result_beyond_rounding() -> None:
    hidden, weight, targets = case(300, 32, 1000, 0.1, 2, torch.float32)
    results = [cross_entropy(hidden, weight, targets, chunk=chunk) for chunk in (7, 128, 300, None)]
    for other in results[1:]:
        assert torch.allclose(results[0].total, other.total, rtol=1e-6)
    first, *others = (torch.autograd.grad(r.total, (hidden, weight)) for r in results)
    for other_gradients in others:
        for a, b in zip(first, other_gradients, strict=True):
            assert torch.allclose(a, b, atol=1e-4)


def test_under_autocast_the_softmax_is_float32_and_gradients_keep_the_parameters_dtype() -> None:
    hidden, weight, targets = case(64, 32, 500, 0.1, 3, torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        ours = cross_entropy(hidden, weight, targets)
        logits = F.linear(hidden, weight)
    gradients = torch.autograd.grad(ours.total, (hidden, weight))
    assert ours.total.dtype == gradients[0].dtype == gradients[1].dtype == torch.float32
    expected = F.cross_entropy(logits.float(), targets, ignore_index=IGNORE, reduction="sum")
    assert torch.allclose(ours.total, expected, rtol=1e-6)
    for mine, theirs in zip(gradients, torch.autograd.grad(expected, (hidden, weight)), strict=True):
        assert float((mine - theirs).norm() / theirs.norm()) < 0.02


def test_float16_gradients_of_rare_tokens_survive() -> None:
    """Probabilities of 1e-7 vanish in float16; the gradients of their rows must not."""
    hidden = torch.ones(16, 8, requires_grad=True)
    weight = torch.zeros(64, 8)
    weight[1:] = -2.0  # token 0 has all the probability but e^-16 each
    weight.requires_grad_()
    targets = torch.zeros(16, dtype=torch.int64)
    half = cross_entropy(hidden.half(), weight.half(), targets)
    gradient = torch.autograd.grad(half.total, weight)[0]
    exact = torch.autograd.grad(cross_entropy(hidden, weight, targets).total, weight)[0]
    assert torch.allclose(gradient[1:], exact[1:], rtol=0.05, atol=0)


def test_huge_logits_give_finite_losses() -> None:
    hidden = torch.tensor([[1000.0, 0.0]], requires_grad=True)
    weight = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    ours = cross_entropy(hidden, weight, torch.tensor([1]))
    assert ours.nats.item() == 2000.0
    ours.total.backward()
    assert hidden.grad is not None
    assert torch.isfinite(hidden.grad).all()


def test_memory_is_bounded_by_the_chunk() -> None:
    """16,384 tokens of 8,192 logits are 512 MiB in float32; no tensor near that is ever made."""
    hidden = torch.randn(16384, 4, requires_grad=True)
    weight = torch.randn(8192, 4, requires_grad=True)
    targets = torch.zeros(16384, dtype=torch.int64)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        cross_entropy(hidden[:2048], weight, targets[:2048]).total.backward()
    largest = max(event.self_cpu_memory_usage for event in profile.events())
    assert largest <= chunk_tokens(8192, hidden.device) * 8192 * 4 + 1024
    assert chunk_tokens(8192, hidden.device) * 8192 * 4 <= 8 << 20


def test_no_gradient_is_computed_where_none_is_wanted() -> None:
    hidden, weight, targets = case(40, 8, 30, 0.0, 5)
    with torch.no_grad():
        ours = cross_entropy(hidden, weight, targets)
    assert not ours.total.requires_grad
    only_hidden = cross_entropy(hidden, weight.detach(), targets)
    only_hidden.total.backward()
    assert hidden.grad is not None
    assert weight.grad is None


def test_batches_keep_their_shape_and_wrong_targets_are_named() -> None:
    hidden, weight, targets = case(12, 8, 30, 0.0, 5)
    ours = cross_entropy(hidden.view(3, 4, 8), weight, targets.view(3, 4), per_token=True)
    assert ours.per_token is not None
    assert ours.per_token.shape == (3, 4)
    assert math.isclose(float(ours.per_token.sum()), float(ours.nats))
    with pytest.raises(IndexError, match="target 30 is outside the vocabulary of 30"):
        cross_entropy(hidden, weight, torch.full((12,), 30))
    with pytest.raises(IndexError, match="target 29"):
        cross_entropy(hidden, weight, torch.full((12,), 29), vocab_size=29)
    with pytest.raises(ValueError, match="do not go with"):
        cross_entropy(hidden, weight, targets[:5])
