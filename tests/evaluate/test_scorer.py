"""A decoder's scores: each token once, equal whatever the batch, equal to one plain forward pass."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from headwater.core.errors import InputError
from headwater.evaluate.scorer import NeuralScorer
from headwater.model import Decoder, ModelConfig, init_weights


@pytest.fixture(scope="module")
def model() -> Decoder:
    config = ModelConfig(
        vocab_size=300, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=64
    )
    decoder = Decoder(config)
    init_weights(decoder, seed=3)
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.mul_(3.0)  # far from uniform
    return decoder.eval()


@pytest.fixture(scope="module")
def documents() -> list[np.ndarray]:
    rng = np.random.default_rng(5)
    return [rng.integers(0, 300, size) for size in (1, 2, 17, 33, 90, 5, 64, 150)]


def plain(model: Decoder, tokens: list[int]) -> np.ndarray:
    """ln p of tokens 1.. given all before them, in one pass."""
    with torch.no_grad():
        logits = model.logits(model(torch.tensor([tokens])))[0, :-1].double()
    logs = logits.log_softmax(-1)
    return logs[torch.arange(len(tokens) - 1), torch.tensor(tokens[1:], dtype=torch.long)].numpy()


def test_short_documents_get_the_probabilities_of_one_forward_pass(model: Decoder, documents: list[np.ndarray]) -> None:
    scores = NeuralScorer(model, vocab_size=300, window=200, prefix_id=7).score(documents)
    for document, score in zip(documents, scores, strict=True):
        assert score == pytest.approx(plain(model, [7, *document.tolist()]), abs=1e-5)


def test_without_a_prefix_the_first_token_costs_the_whole_vocabulary(
    model: Decoder, documents: list[np.ndarray]
) -> None:
    scores = NeuralScorer(model, vocab_size=300, window=200).score(documents)
    for document, score in zip(documents, scores, strict=True):
        assert len(score) == len(document)
        assert score[0] == pytest.approx(-math.log(300))
        assert score[1:] == pytest.approx(plain(model, document.tolist()), abs=1e-5)


@pytest.mark.parametrize(("window", "stride"), [(16, 16), (16, 8), (16, 1), (64, 48)])
def test_long_documents_are_scored_window_by_window(
    model: Decoder, documents: list[np.ndarray], window: int, stride: int
) -> None:
    scores = NeuralScorer(model, vocab_size=300, window=window, stride=stride, prefix_id=7).score(documents)
    for document, score in zip(documents, scores, strict=True):
        sequence = [7, *document.tolist()]
        done = 0
        while done < len(document):
            count = min(stride if done else window, len(document) - done)
            end = done + count
            context = sequence[max(0, end - window) : end + 1]
            assert score[done:end] == pytest.approx(plain(model, context)[-count:], abs=1e-5)
            done = end


@pytest.mark.parametrize("batch_tokens", [1, 64, 200, 100_000])
def test_the_batch_size_does_not_change_the_result(
    model: Decoder, documents: list[np.ndarray], batch_tokens: int
) -> None:
    one = NeuralScorer(model, vocab_size=300, window=32, stride=16, batch_tokens=512).score(documents)
    other = NeuralScorer(model, vocab_size=300, window=32, stride=16, batch_tokens=batch_tokens).score(documents)
    for left, right in zip(one, other, strict=True):
        assert left == pytest.approx(right, abs=1e-5)


def test_progress_counts_each_scored_token_once(model: Decoder, documents: list[np.ndarray]) -> None:
    seen: list[int] = []
    NeuralScorer(model, vocab_size=300, window=16, stride=4, prefix_id=7, on_progress=seen.append).score(documents)
    assert sum(seen) == sum(map(len, documents))


def test_a_token_of_another_vocabulary_is_refused(model: Decoder) -> None:
    with pytest.raises(InputError, match="outside the model's vocabulary"):
        NeuralScorer(model, vocab_size=300, window=16).score([np.array([300])])
