"""Context parallelism: ranks that share windows compute what one process computes, and documents do not leak."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from headwater.model import BlockLayout, Decoder, ModelConfig, cross_entropy, init_weights
from headwater.parallel.config import ParallelConfig
from headwater.parallel.context import ContextParallel, take_columns
from headwater.parallel.context_method import Method, choose_method, length_problem, method_of
from tests.parallel.ranks import run_ranks

SEQ = 64


def _model(**fields: object) -> Decoder:
    config = ModelConfig.model_validate(
        {
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "intermediate_size": 48,
            "vocab_size": 96,
            "max_position_embeddings": 48,
            **fields,
        }
    )
    model = Decoder(config)
    init_weights(model, 3)
    return model


def _rows(documents: bool) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """Tokens, targets, positions and document ids of three windows: borders anywhere, one on a piece's edge."""
    generator = torch.Generator().manual_seed(5)
    tokens = torch.randint(96, (3, SEQ + 1), generator=generator)
    targets = tokens[:, 1:].clone()
    targets[0, 5:9] = -100
    if not documents:
        return tokens[:, :-1], targets, None, None
    ids = (torch.rand(3, SEQ, generator=generator) < 0.07).cumsum(-1)
    ids[1] = torch.arange(SEQ) // 16
    ids[2] = 0
    return tokens[:, :-1], targets, BlockLayout(ids).positions(), ids


def _loss_and_gradients(
    model: Decoder, tokens: Tensor, positions: Tensor | None, layout: BlockLayout | None, targets: Tensor
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    hidden = model(tokens, positions, layout)
    loss = cross_entropy(hidden, model.lm_head_weight, targets, vocab_size=96).total
    loss.backward()
    return hidden.detach(), loss.detach(), {n: p.grad for n, p in model.named_parameters() if p.grad is not None}


def _on_a_rank(
    method: Method, size: int, documents: bool, fields: dict[str, object]
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    import torch.distributed as dist

    context = ContextParallel(method, dist.group.WORLD, dist.get_rank(), size)
    tokens, targets, positions, ids = _rows(documents)
    columns = take_columns(context, tokens, targets, positions, ids)
    hidden, loss, gradients = _loss_and_gradients(
        _model(**fields), columns.tokens, columns.positions, columns.layout, columns.targets
    )
    for tensor in (loss, *gradients.values()):
        dist.all_reduce(tensor)
    return hidden, loss, gradients


@pytest.mark.parametrize("documents", [True, False])
@pytest.mark.parametrize(("method", "size"), [("ulysses", 2), ("ulysses", 4), ("all_gather", 2), ("all_gather", 4)])
def test_ranks_that_share_windows_compute_what_one_process_computes(method: Method, size: int, documents: bool) -> None:
    fields: dict[str, object] = {"qk_norm": True, "rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}
    tokens, targets, positions, ids = _rows(documents)
    layout = None if ids is None else BlockLayout(ids)
    hidden, loss, gradients = _loss_and_gradients(_model(**fields), tokens, positions, layout, targets)
    results = run_ranks(size, _on_a_rank, method, size, documents, fields)
    whole = torch.empty_like(hidden)
    for rank, (part, rank_loss, rank_gradients) in enumerate(results):
        context = ContextParallel(method, None, rank, size)
        at = 0
        for first, end in context.pieces(SEQ):
            whole[:, first:end] = part[:, at : at + end - first]
            at += end - first
        assert torch.allclose(rank_loss, loss, rtol=1e-6)
        for name, gradient in gradients.items():
            assert (rank_gradients[name] - gradient).abs().max() <= 1e-5 * gradient.abs().max(), name
    assert torch.allclose(whole, hidden, atol=1e-5)


def _hidden_of_both(method: Method, size: int, changed_column: int) -> tuple[Tensor, Tensor]:
    """This rank's hidden states before and after one token of window 1 changes."""
    import torch.distributed as dist

    context = ContextParallel(method, dist.group.WORLD, dist.get_rank(), size)
    model = _model()
    tokens, targets, positions, ids = _rows(True)
    changed = tokens.clone()
    changed[1, changed_column] = (changed[1, changed_column] + 1) % 96
    both = []
    with torch.no_grad():
        for rows in (tokens, changed):
            columns = take_columns(context, rows, targets, positions, ids)
            both.append(model(columns.tokens, columns.positions, columns.layout))
    return both[0], both[1]


@pytest.mark.parametrize("method", ["ulysses", "all_gather"])
def test_a_changed_token_moves_only_what_follows_it_in_its_document(method: Method) -> None:
    """Window 1 has documents of 16 tokens; its second one, changed at its third token, spans two ranks' pieces."""
    changed = 18
    results = run_ranks(4, _hidden_of_both, method, 4, changed)
    moved = torch.zeros(3, SEQ, dtype=torch.bool)
    for rank, (before, after) in enumerate(results):
        context = ContextParallel(method, None, rank, 4)
        at = 0
        for first, end in context.pieces(SEQ):
            moved[:, first:end] = (before != after).any(-1)[:, at : at + end - first]
            at += end - first
    expected = torch.zeros_like(moved)
    expected[1, changed:32] = True
    assert torch.equal(moved, expected)


@given(st.sampled_from(["ulysses", "all_gather"]), st.integers(1, 8), st.integers(1, 8))
@settings(max_examples=40)
def test_pieces_are_a_partition_and_zigzag_pieces_are_the_same_work(method: Method, size: int, scale: int) -> None:
    seq = 2 * size * scale
    ranks = [ContextParallel(method, None, rank, size).pieces(seq) for rank in range(size)]
    columns = [column for pieces in ranks for first, end in pieces for column in range(first, end)]
    assert sorted(columns) == list(range(seq))
    if method == "all_gather":
        work = {sum(column + 1 for first, end in pieces for column in range(first, end)) for pieces in ranks}
        assert len(work) == 1


def test_ulysses_is_chosen_where_heads_divide_and_says_so() -> None:
    method, why = choose_method(ParallelConfig(cp=4), heads=32, kv_heads=8)
    assert method == "ulysses"
    assert why.startswith("32 query and 8 key-value heads divide over cp 4")
    method, why = choose_method(ParallelConfig(cp=4, tp=4), heads=32, kv_heads=8)
    assert method == "all_gather"
    assert why == (
        "8 query and 2 key-value heads on each of 4 tensor-parallel ranks do not divide over cp 4: "
        "keys and values are gathered"
    )
    assert choose_method(ParallelConfig(cp=2, cp_method="all_gather"), heads=4, kv_heads=4)[0] == "all_gather"
    with pytest.raises(ValueError, match=r"6 query and 3 key-value heads do not divide over cp 2\n  mend: use cp_meth"):
        choose_method(ParallelConfig(cp=2, cp_method="ulysses"), heads=6, kv_heads=3)


@pytest.mark.parametrize(
    ("parallel", "seq_len", "method", "reason"),
    [
        (ParallelConfig(cp=4), 64, "ulysses", None),
        (ParallelConfig(cp=4), 66, "ulysses", "66 tokens do not divide into 4 pieces for cp 4"),
        (
            ParallelConfig(cp=4),
            1028,
            "all_gather",
            "1,028 tokens do not divide into 8 pieces for cp 4 (each rank takes",
        ),
        (ParallelConfig(cp=2, tp=4), 64, "ulysses", None),
        (ParallelConfig(cp=2, tp=4), 68, "ulysses", "68 tokens leave 34 on each of 2 cp ranks, which do not divide"),
    ],
)
def test_lengths_that_cannot_be_cut_are_told_why(
    parallel: ParallelConfig, seq_len: int, method: Method, reason: str | None
) -> None:
    found = length_problem(parallel, seq_len, method)
    assert found == reason if reason is None else str(found).startswith(reason)


def test_an_encoder_is_not_shared_and_the_reason_is_told() -> None:
    encoder = ModelConfig.model_validate({"architecture": "encoder", "hidden_size": 64, "num_attention_heads": 4})
    with pytest.raises(ValueError, match="an encoder looks both ways\n  mend: use cp: 1"):
        method_of(ParallelConfig(cp=2), encoder)
