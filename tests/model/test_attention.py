"""Attention: every back end that runs here equals plain softmax attention, and documents never see each other."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from headwater.model import BlockLayout, blocked_attention
from headwater.model.attention import attend, scaled_dot_product
from headwater.model.blocked_attention import blocked_attention as blocked
from tests.model.conftest import random_tokens, small_model


def reference(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """Softmax attention written out. mask [batch, 1, query, key]."""
    share = q.shape[2] // k.shape[2]
    k, v = k.repeat_interleave(share, 2), v.repeat_interleave(share, 2)
    scores = torch.einsum("bqhe,bkhe->bhqk", q, k).masked_fill(~mask, float("-inf"))
    return torch.einsum("bhqk,bkhe->bqhe", scores.softmax(-1), v)


def random_documents(batch: int, seq: int, borders: float, generator: torch.Generator) -> Tensor:
    return (torch.rand(batch, seq, generator=generator) < borders).cumsum(-1)


def tensors(batch: int, seq: int, heads: int, kv: int, dim: int, generator: torch.Generator) -> list[Tensor]:
    shapes = [(batch, seq, n, dim) for n in (heads, kv, kv)]
    return [torch.randn(s, generator=generator, dtype=torch.float64, requires_grad=True) for s in shapes]


@settings(max_examples=40)
@given(
    seed=st.integers(0, 1 << 30),
    batch=st.integers(1, 5),
    seq=st.integers(1, 40),
    heads=st.sampled_from([(1, 1), (4, 4), (4, 2), (6, 1)]),
    borders=st.sampled_from([0.0, 0.02, 0.1, 0.6]),
    block=st.sampled_from([4, 16, 128]),
    tile_bytes=st.sampled_from([1, 3000, 1 << 20]),
    keep=st.booleans(),
)
def test_blocked_attention_equals_plain_attention_with_gradients(
    seed: int,
    batch: int,
    seq: int,
    heads: tuple[int, int],
    borders: float,
    block: int,
    tile_bytes: int,
    keep: bool,
) -> None:
    generator = torch.Generator().manual_seed(seed)
    q, k, v = tensors(batch, seq, *heads, 4, generator)
    layout = BlockLayout(random_documents(batch, seq, borders, generator))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocked_attention, "QUERY_BLOCK", block)
        patch.setattr(blocked_attention, "TILE_BYTES", tile_bytes)
        patch.setattr(blocked_attention, "KEEP_UP_TO", 1000 if keep else 0)
        ours = blocked(q, k, v, layout.starts)
        gradient = torch.randn(ours.shape, generator=generator, dtype=torch.float64)
        ours_gradients = torch.autograd.grad(ours, (q, k, v), gradient)
    plain = reference(q, k, v, layout.mask)
    assert torch.allclose(ours, plain)
    for mine, theirs in zip(ours_gradients, torch.autograd.grad(plain, (q, k, v), gradient), strict=True):
        assert torch.allclose(mine, theirs)


def test_blocked_attention_passes_gradcheck_and_pytorchs_operator_checks() -> None:
    generator = torch.Generator().manual_seed(0)
    q, k, v = tensors(2, 5, 2, 1, 3, generator)
    starts = BlockLayout(random_documents(2, 5, 0.4, generator)).starts
    assert torch.autograd.gradcheck(lambda *x: blocked(*x, starts), (q, k, v))
    for keep in (False, True):
        torch.library.opcheck(torch.ops.headwater.blocked_attention.default, (q, k, v, starts, keep))


@settings(max_examples=30)
@given(
    seed=st.integers(0, 1 << 30),
    batch=st.integers(1, 4),
    seq=st.integers(2, 40),
    tail=st.floats(0, 1),
    borders=st.sampled_from([0.0, 0.05, 0.3, 0.9]),
    block=st.sampled_from([4, 128]),
    tile_bytes=st.sampled_from([1, 1 << 20]),
    keep=st.booleans(),
)
def test_the_last_queries_of_a_window_equal_those_of_the_whole_with_gradients(
    seed: int, batch: int, seq: int, tail: float, borders: float, block: int, tile_bytes: int, keep: bool
) -> None:
    generator = torch.Generator().manual_seed(seed)
    q, k, v = tensors(batch, seq, 4, 2, 4, generator)
    first = int(tail * (seq - 1))
    ids = random_documents(batch, seq, borders, generator)
    whole, layout = BlockLayout(ids), BlockLayout(ids, first)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocked_attention, "QUERY_BLOCK", block)
        patch.setattr(blocked_attention, "TILE_BYTES", tile_bytes)
        patch.setattr(blocked_attention, "KEEP_UP_TO", 1000 if keep else 0)
        ours = layout.attend(q[:, first:], k, v)
        gradient = torch.randn(ours.shape, generator=generator, dtype=torch.float64)
        ours_gradients = torch.autograd.grad(ours, (q, k, v), gradient)
    plain = reference(q, k, v, whole.mask)[:, first:]
    assert torch.equal(layout.mask, whole.mask[:, :, first:])
    assert torch.equal(layout.positions(), whole.positions()[:, first:])
    assert torch.allclose(ours, plain)
    for mine, theirs in zip(ours_gradients, torch.autograd.grad(plain, (q, k, v), gradient), strict=True):
        assert torch.allclose(mine, theirs)
    by_segment = varlen_reference(q[:, first:], k, v, layout.cumulative_lengths, layout.cumulative_keys)
    assert torch.allclose(by_segment, plain)


def varlen_reference(q: Tensor, k: Tensor, v: Tensor, queries: Tensor, keys: Tensor) -> Tensor:
    """What varlen flash attention computes from cumulative lengths: causal, the last query at the last key."""
    assert len(queries) == len(keys)
    flat_q, flat_k, flat_v = q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1)
    parts = []
    for q0, q1, k0, k1 in zip(queries, queries[1:], keys, keys[1:], strict=False):
        n, m = int(q1 - q0), int(k1 - k0)
        if n:
            mask = torch.ones(n, m, dtype=torch.bool).tril_(m - n)
            parts.append(reference(flat_q[None, q0:q1], flat_k[None, k0:k1], flat_v[None, k0:k1], mask)[0])
    return torch.cat(parts).view(q.shape)


def test_queries_must_stand_at_keys() -> None:
    q, k, v = tensors(1, 4, 1, 1, 2, torch.Generator())
    with pytest.raises(ValueError, match="must stand at a key"):
        blocked(q, k[:, :3], v[:, :3])
    with pytest.raises(ValueError, match="not one of 4 positions"):
        BlockLayout(torch.zeros(1, 4, dtype=torch.int32), 4)


@pytest.mark.parametrize("documents", [False, True])
def test_long_windows_are_cut_by_heads_and_queries(documents: bool) -> None:
    """Over KEEP_UP_TO, over QUERY_BLOCK, and one row's scores over TILE_BYTES, at the real sizes."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (x.float().detach().requires_grad_() for x in tensors(2, 1100, 16, 8, 8, generator))
    layout = BlockLayout(random_documents(2, 1100, 0.005 if documents else 0.0, generator))
    ours, plain = blocked(q, k, v, layout.starts), reference(q, k, v, layout.mask)
    assert torch.allclose(ours, plain, atol=1e-5)
    gradient = torch.randn(ours.shape, generator=generator)
    for mine, theirs in zip(
        torch.autograd.grad(ours, (q, k, v), gradient), torch.autograd.grad(plain, (q, k, v), gradient), strict=True
    ):
        assert torch.allclose(mine, theirs, atol=1e-4)


def test_bfloat16_attention_is_as_near_to_float32_as_pytorchs() -> None:
    generator = torch.Generator().manual_seed(0)
    exact = [x.float().detach() for x in tensors(4, 200, 4, 2, 32, generator)]
    exact[0] *= 32**-0.5
    rounded = [x.bfloat16().requires_grad_() for x in exact]
    exact = [x.detach().float().requires_grad_() for x in rounded]
    gradient = torch.randn(4, 200, 4, 32, generator=generator)

    def error(of: list[Tensor]) -> list[float]:
        return [float((a.float() - b).detach().norm() / b.detach().norm()) for a, b in zip(of, truth, strict=True)]

    out = scaled_dot_product(*exact, None)
    truth = [out, *torch.autograd.grad(out, exact, gradient)]
    results = []
    for attention in (lambda q, k, v: blocked(q, k, v), lambda q, k, v: scaled_dot_product(q, k, v, None)):
        out = attention(*rounded)
        results.append(error([out, *torch.autograd.grad(out, rounded, gradient.bfloat16())]))
    for ours, theirs in zip(*results, strict=True):
        assert ours < max(1.5 * theirs, 0.005)


def test_every_back_end_here_agrees_on_documents() -> None:
    generator = torch.Generator().manual_seed(3)
    q, k, v = (x.float().detach() for x in tensors(3, 50, 4, 2, 8, generator))
    layout = BlockLayout(random_documents(3, 50, 0.1, generator))
    assert torch.allclose(attend(q, k, v, layout), scaled_dot_product(q, k, v, layout.mask), atol=1e-5)
    whole = BlockLayout(torch.zeros(3, 50, dtype=torch.int32))
    assert whole.starts is None
    assert torch.allclose(attend(q, k, v, whole), attend(q, k, v, None))
    assert torch.allclose(attend(q, k, v, None), scaled_dot_product(q, k, v, None), atol=1e-5)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_cuda_back_ends_agree_on_documents(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(3)
    q, k, v = (x.float().detach() for x in tensors(3, 256, 4, 2, 64, generator))
    ids = random_documents(3, 256, 0.02, generator)
    expected = attend(q, k, v, BlockLayout(ids))
    ours = attend(q.to("cuda", dtype), k.to("cuda", dtype), v.to("cuda", dtype), BlockLayout(ids.cuda()))
    assert torch.allclose(ours.float().cpu(), expected, atol=1e-4 if dtype == torch.float32 else 5e-2)
    q, k, v = (x.to("cuda", dtype).requires_grad_() for x in (q, k, v))
    tail = BlockLayout(ids.cuda(), 100).attend(q[:, 100:], k, v)
    assert torch.allclose(tail.float().cpu(), expected[:, 100:], atol=1e-4 if dtype == torch.float32 else 5e-2)
    tail.float().square().sum().backward()
    whole = [x.detach().float().cpu().requires_grad_() for x in (q, k, v)]
    attend(*whole, BlockLayout(ids))[:, 100:].square().sum().backward()
    for mine, theirs in zip((q, k, v), whole, strict=True):
        assert mine.grad is not None
        assert theirs.grad is not None
        assert torch.allclose(mine.grad.float().cpu(), theirs.grad, atol=1e-3 if dtype == torch.float32 else 0.1)


def test_varlen_attention_takes_our_arguments() -> None:
    """Shapes only, on tensors that claim to be on a GPU: the kernel itself needs one (see the test above)."""
    layout = BlockLayout(torch.zeros(2, 64, dtype=torch.int32))
    with FakeTensorMode(), torch.no_grad():
        q = torch.empty(2, 64, 4, 32, device="cuda", dtype=torch.bfloat16)
        k = torch.empty(2, 64, 2, 32, device="cuda", dtype=torch.bfloat16)
        layout.starts = torch.empty(2, 64, dtype=torch.int32, device="cuda")
        layout.cumulative_lengths = layout.cumulative_keys = torch.empty(9, dtype=torch.int32, device="cuda")
        out = attend(q, k, k, layout)
    assert (out.shape, out.dtype, out.device.type) == (q.shape, q.dtype, "cuda")


def test_positions_and_borders_of_a_layout() -> None:
    layout = BlockLayout(torch.tensor([[7, 7, 9, 9, 9], [1, 1, 1, 1, 1]]))
    assert layout.positions().tolist() == [[0, 1, 0, 1, 2], [0, 1, 2, 3, 4]]
    assert layout.starts is not None
    assert layout.starts.tolist() == [[0, 0, 2, 2, 2], [0] * 5]
    assert layout.cumulative_lengths.tolist() == [0, 2, 5, 10, 10]
    assert layout.mask[0, 0].int().tolist() == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [0, 0, 1, 0, 0],
        [0, 0, 1, 1, 0],
        [0, 0, 1, 1, 1],
    ]
    with pytest.raises(ValueError, match="integers"):
        BlockLayout(torch.zeros(2, 3))


@pytest.mark.parametrize("restart", [False, True])
def test_changing_one_document_changes_no_other(restart: bool) -> None:
    """The perturbation probe: change every token of one document, look at the hidden states and gradients of all."""
    model = small_model()
    tokens = random_tokens(2, 48)
    ids = torch.tensor([[0] * 10 + [1] * 21 + [2] * 17, [0] * 48])
    layout = BlockLayout(ids)
    positions = layout.positions() if restart else None
    before = model(tokens, positions, layout)
    changed = tokens.clone()
    changed[0, 10:31] = (changed[0, 10:31] + 1) % 301
    after = model(changed, positions, layout)
    same = (before == after).all(-1)
    assert same[0, :10].all()
    assert same[0, 31:].all()
    assert same[1].all()
    assert not same[0, 10:31].any()
    # And a document alone gives what it gives in the window, if positions restart.
    if restart:
        alone = model(tokens[:1, 31:])
        assert torch.allclose(before[:1, 31:], alone, atol=1e-5)
    embedding = model.model.embed_tokens
    assert embedding is not None
    embedding.weight.grad = None
    tokens[0, :10] = torch.arange(200, 210)  # tokens found nowhere else
    tokens[0, 10:] = tokens[0, 10:] % 200
    tokens[1] %= 200
    model(tokens, positions, layout)[0, 10:].square().sum().backward()
    assert embedding.weight.grad is not None
    assert (embedding.weight.grad[200:210] == 0).all()
