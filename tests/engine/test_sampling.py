"""Sampling: parameters that make no sense are refused, and each rule does what transformers' does."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from headwater.core.errors import UserError
from headwater.engine import SamplingParams
from headwater.engine.sampling import adjusted, candidates, choose, draw, logprobs_of, uniform


def random_logits(rows: int, vocab: int, seed: int) -> torch.Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * 3


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_tokens", 0),
        ("max_tokens", 1.5),
        ("temperature", -0.1),
        ("temperature", 1e-6),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("top_k", -1),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("min_p", 1.5),
        ("repetition_penalty", 0.0),
        ("presence_penalty", 3),
        ("frequency_penalty", -3),
        ("n", 0),
        ("n", True),
        ("seed", "x"),
        ("stop", ("",)),
        ("stop_token_ids", (-1,)),
        ("logprobs", 101),
        ("logit_bias", {-1: 1.0}),
        ("logit_bias", {1: 101.0}),
    ],
)
def test_values_that_make_no_sense_are_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(UserError, match=f"^{name}: {name} is .* must be"):
        SamplingParams(**{name: value})


def test_one_stop_string_stands_for_itself() -> None:
    assert SamplingParams(stop="ab").stop == ("ab",)  # type: ignore[arg-type]
    assert SamplingParams(stop=["a", "b"]).stop == ("a", "b")  # type: ignore[arg-type]


def kept_logits(logits: torch.Tensor, *rules: torch.Tensor, count: int = 256) -> torch.Tensor:
    """The rows as `candidates` leaves them, in the order of the vocabulary."""
    kept, ids = candidates(logits, *rules, count=count)
    return torch.full_like(logits, -math.inf).scatter(-1, ids, kept)


@settings(max_examples=80)
@given(
    seed=st.integers(0, 1 << 30),
    top_k=st.sampled_from([0, 1, 3, 50]),
    top_p=st.sampled_from([1.0, 0.9, 0.5, 0.01]),
    min_p=st.sampled_from([0.0, 0.1, 0.7, 1.0]),
    count=st.sampled_from([1, 4, 256]),
)
def test_truncation_keeps_what_transformers_keeps(
    seed: int, top_k: int, top_p: float, min_p: float, count: int
) -> None:
    logits = random_logits(3, 20, seed)
    expected = logits
    ids = torch.zeros(3, 1, dtype=torch.int64)
    if top_k:
        expected = TopKLogitsWarper(min(top_k, 20))(ids, expected)
    if top_p < 1:
        expected = TopPLogitsWarper(top_p)(ids, expected)
    if min_p:
        expected = MinPLogitsWarper(min_p)(ids, expected)
    rules = [torch.full((3,), value) for value in (top_k, top_p if top_p < 1 else 2.0, min_p)]
    assert torch.equal(kept_logits(logits, *rules, count=count), expected)


def test_rows_are_truncated_by_their_own_rules() -> None:
    logits = random_logits(3, 20, 0)
    rules = [(2, 2.0, 0.0), (0, 0.5, 0.0), (0, 2.0, 0.4)]
    together = kept_logits(logits, *(torch.tensor(values) for values in zip(*rules, strict=True)))
    assert (together[0] > -math.inf).sum() == 2
    for row, rule in enumerate(rules):
        alone = kept_logits(logits[row : row + 1], *(torch.tensor([value]) for value in rule))
        assert torch.equal(alone[0], together[row])


def test_penalties_and_biases() -> None:
    logits = random_logits(1, 20, 1)
    prompt, generated = [3, 4], [5, 5, 6]
    expected = RepetitionPenaltyLogitsProcessor(1.7)(torch.tensor([prompt + generated]), logits.clone())[0]
    assert torch.allclose(adjusted(logits[0], SamplingParams(repetition_penalty=1.7), prompt, generated), expected)
    params = SamplingParams(presence_penalty=0.5, frequency_penalty=0.25, logit_bias={7: -100, 5: 2.0})
    change = adjusted(logits[0], params, prompt, generated) - logits[0]
    assert {i: round(v, 4) for i, v in enumerate(change.tolist()) if abs(v) > 1e-6} == {5: 1.0, 6: -0.75, 7: -100.0}


def test_draws_follow_the_distribution() -> None:
    logits = torch.tensor([[1.0, -math.inf, 2.0, 0.0]])
    drawn = draw(logits.expand(20000, -1), torch.tensor([uniform(9, 0, step) for step in range(20000)]))
    shares = torch.bincount(drawn, minlength=4) / 20000
    assert shares[1] == 0
    assert torch.allclose(shares, logits[0].softmax(-1), atol=0.012)


@given(u=st.floats(0, 1, exclude_max=True), seed=st.integers(0, 1000))
def test_no_draw_ever_takes_a_token_of_no_probability(u: float, seed: int) -> None:
    logits = random_logits(1, 8, seed)
    logits[0, [0, 3, 7]] = -math.inf
    for value in (u, 0.0, 1 - 2**-53):
        assert int(draw(logits, torch.tensor([value], dtype=torch.float64))) not in (0, 3, 7)


def test_random_numbers_are_even_and_depend_on_each_part_of_the_key() -> None:
    numbers = [uniform(1, sample, step) for sample in range(20) for step in range(500)]
    assert all(0 <= number < 1 for number in numbers)
    assert abs(sum(numbers) / len(numbers) - 0.5) < 0.01
    assert len(set(numbers)) == len(numbers)
    assert uniform(1, 2, 3) == uniform(1, 2, 3)
    assert len({uniform(1, 2, 3), uniform(3, 2, 1), uniform(2, 1, 3), uniform(1, 2, 4), uniform(-1, 2, 3)}) == 5


def test_greedy_and_drawn_rows_share_a_batch() -> None:
    logits = random_logits(3, 50, 2)
    params = [SamplingParams(temperature=0), SamplingParams(temperature=5.0), SamplingParams(temperature=1e-5)]
    tokens = choose(logits, params, [[1]] * 3, [[]] * 3, [(0, 0), (4, 0), (0, 0)])
    assert [tokens[0], tokens[2]] == logits[[0, 2]].argmax(-1).tolist()
    assert tokens[1] == choose(logits[1:2], params[1:2], [[1]], [[]], [(4, 0)])[0]
    assert len({choose(logits[1:2], params[1:2], [[1]], [[]], [(seed, 0)])[0] for seed in range(30)}) > 5


def test_logprobs_are_those_of_the_model() -> None:
    logits = random_logits(2, 10, 3)
    first, second = logprobs_of(logits, [4, 5], [3, None])
    assert second is None
    assert first is not None
    expected = logits[0].log_softmax(-1)
    assert math.isclose(first.logprob, float(expected[4]), rel_tol=1e-6)
    assert [token for token, _ in first.top] == expected.topk(3).indices.tolist()
    only = logprobs_of(logits, [4, 5], [0, None])[0]
    assert only is not None
    assert only.top == ()
