"""Likelihoods of continuations: of each pair what a plain pass over it alone gives, whatever is scored beside it."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.evaluate.backends import LocalBackend
from headwater.evaluate.likelihood import TOKENS_AT_ONCE, ContinuationScorer, _buckets, _Group

from .models import tiny_folder

WORDS = ("The river", " runs to", " the sea", "水从高处", "往低处流", ", and", " 1742", "。", " stones", "两岸的人")


@pytest.fixture(scope="module")
def backend(tmp_path_factory: pytest.TempPathFactory) -> LocalBackend:
    return LocalBackend.open(tiny_folder(tmp_path_factory.mktemp("tiny"), context=1024), device="cpu")


def text(seed: int, words: int) -> str:
    return "".join(random.Random(seed).choices(WORDS, k=words))


def plain(scorer: ContinuationScorer, context: str, continuation: str) -> tuple[float, bool]:
    before, after = scorer.encode_pair(context, continuation)
    ids = torch.tensor([(*before, *after)])
    with torch.inference_mode():
        hidden = scorer.model(ids[:, :-1], torch.arange(ids.shape[1] - 1)[None])
        logits = scorer.model.logits(hidden)[0, len(before) - 1 :]
    target = torch.tensor(after)
    nats = torch.log_softmax(logits, -1).gather(1, target[:, None]).double().sum()
    return float(nats), bool((logits.argmax(-1) == target).all())


def assert_as_plain(scorer: ContinuationScorer, pairs: list[tuple[str, str]]) -> None:
    for found, pair in zip(scorer.score(pairs), pairs, strict=True):
        nats, greedy = plain(scorer, *pair)
        assert found.nats == pytest.approx(nats, abs=1e-4, rel=1e-6), pair
        assert found.greedy == greedy


@pytest.mark.parametrize("tokens_at_once", [1, 40, 512])
def test_each_pair_is_scored_as_if_it_were_alone(backend: LocalBackend, tokens_at_once: int) -> None:
    scorer = ContinuationScorer(backend.engine.model, backend.engine.tokenizer, tokens_at_once=tokens_at_once)
    examples = text(0, 24)  # longer than SHARED_TOKENS: runs through the model once
    pairs = [(examples + text(seed, 2), " " + text(seed + 50, 1 + seed % 4)) for seed in range(1, 5) for _ in range(2)]
    pairs += [(text(9, 3), text(seed, 1 + seed)) for seed in range(10, 13)]  # one context, three continuations
    pairs += [("", "水"), ("The river ", "runs"), (text(30, 1), " 1742")]  # none, a trailing space, one token
    assert_as_plain(scorer, pairs)


@settings(max_examples=25)
@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(0, 9), st.integers(1, 5)), min_size=1, max_size=9
    ),
    st.sampled_from([1, 64, 512]),
)
def test_any_mixture_of_shared_and_own_beginnings(
    backend: LocalBackend, shapes: list[tuple[int, int, int, int]], tokens_at_once: int
) -> None:
    scorer = ContinuationScorer(backend.engine.model, backend.engine.tokenizer, tokens_at_once=tokens_at_once)
    assert_as_plain(
        scorer, [(text(kind, 18 if kind else 0) + text(q, q), text(c, length)) for kind, q, c, length in shapes]
    )


def test_batch_tokens_bound_a_pass(backend: LocalBackend) -> None:
    small = LocalBackend("small", backend.engine, batch_tokens=40)
    assert small.scorer.tokens_at_once == 40
    assert backend.batch_tokens > backend.scorer.tokens_at_once == TOKENS_AT_ONCE, "more than is of use is not taken"


def test_a_shared_beginning_and_a_context_go_through_the_model_once(backend: LocalBackend) -> None:
    scorer = ContinuationScorer(backend.engine.model, backend.engine.tokenizer)
    examples = text(0, 24)
    pairs = [(examples + text(seed, 2), text(c, 2)) for seed in range(6) for c in range(40, 44)]
    cut = [scorer.encode_pair(*pair) for pair in pairs]
    contexts = {before for before, _ in cut}
    shared = len(scorer.encode_pair(examples, "水")[0]) - 2  # its last tokens may join with what follows
    seen: list[int] = []
    hook = scorer.model.register_forward_pre_hook(lambda _, args: seen.append(args[0].numel()))
    try:
        scorer.score(pairs)
    finally:
        hook.remove()
    once = shared + sum(len(context) - shared for context in contexts) + sum(len(after) - 1 for _, after in cut)
    assert sum(seen) <= once < sum(len(before) + len(after) for before, after in cut) / 3


def test_subjects_with_examples_of_their_own_are_run_apart() -> None:
    subjects = [tuple(range(start, start + 300)) for start in (1000, 2000)]
    description = tuple(range(40))  # all share this much; each subject far more
    groups = [
        _Group((*description, *subject, question), 0, []) for question in range(5000, 5004) for subject in subjects
    ]
    groups.append(_Group((1, 2, 3), 0, []))
    buckets = _buckets(groups)
    assert sorted((shared, len(bucket)) for shared, bucket in buckets) == [(0, 1), (340, 4), (340, 4)]


def test_a_first_context_of_another_kind_does_not_cut_short_what_the_others_share() -> None:
    description, examples = tuple(range(40)), tuple(range(1000, 1500))
    groups = [_Group((*description, 500, 7), 0, [])]
    groups += [_Group((*description, *examples, question), 0, []) for question in range(5000, 5020)]
    buckets = _buckets(groups)
    assert sorted((shared, len(bucket)) for shared, bucket in buckets) == [(0, 1), (540, 20)]


def test_contexts_that_go_on_alike_for_a_while_share_the_most() -> None:
    beginning = tuple(range(500))
    alike = [_Group((*beginning, 900, 901, passage, passage + 1, 7), 0, []) for passage in range(2000, 2040, 2)]
    assert [(shared, len(bucket)) for shared, bucket in _buckets(alike)] == [(502, 20)]
    passages = [
        _Group((*beginning, *range(start, start + 300), question), 0, [])
        for start in (2000, 3000) for question in range(5)
    ]  # fmt: skip
    assert [(shared, len(bucket)) for shared, bucket in _buckets(passages)] == [(800, 5), (800, 5)]
