"""Log-probabilities of a prompt's own tokens, which clients ask for with `echo` and `logprobs`.

    prompt_scores(model, [[5, 9, 12]], top=1)[0]     # [Scored(5, None, ()), Scored(9, -3.1, ((7, -0.4),)), ...]

A pass of its own, without a cache: generation then reads the prompt again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from headwater.engine import TokenLogprob
from headwater.model import Decoder

BATCH_TOKENS = 8192
"""Prompt tokens in one forward pass, padding included."""
LOGIT_ELEMENTS = 1 << 23
"""Logits that exist at the same time: 32 MiB of float32."""


@dataclass(frozen=True, slots=True)
class Scored:
    """A token, its natural log-probability (None where nothing came before), the likeliest at its place."""

    token: int
    logprob: float | None
    top: tuple[tuple[int, float], ...]

    @classmethod
    def of(cls, generated: TokenLogprob) -> Scored:
        return cls(generated.token, generated.logprob, generated.top)


def prompt_scores(model: Decoder, prompts: Sequence[Sequence[int]], top: int) -> list[list[Scored]]:
    """One entry for each token of each prompt; a prompt's first token has no log-probability."""
    results: list[list[Scored]] = [[] for _ in prompts]
    order = sorted(range(len(prompts)), key=lambda number: -len(prompts[number]))
    with torch.inference_mode():
        while order:
            rows = max(1, BATCH_TOKENS // len(prompts[order[0]]))
            batch, order = order[:rows], order[rows:]
            for number, scores in zip(batch, _batch(model, [prompts[number] for number in batch], top), strict=True):
                results[number] = scores
    return results


def _batch(model: Decoder, prompts: list[Sequence[int]], top: int) -> list[list[Scored]]:
    device = next(model.parameters()).device
    longest = max(map(len, prompts))
    # Padding on the right changes nothing before it: attention is causal.
    tokens = torch.tensor([[*prompt, *([0] * (longest - len(prompt)))] for prompt in prompts], device=device)
    hidden = model(tokens)
    return [_one(model, hidden[row, : len(prompt) - 1], prompt, top) for row, prompt in enumerate(prompts)]


def _one(model: Decoder, hidden: torch.Tensor, prompt: Sequence[int], top: int) -> list[Scored]:
    vocab = model.config.true_vocab_size
    chunk = max(1, LOGIT_ELEMENTS // vocab)
    scores = [Scored(prompt[0], None, ())]
    targets = torch.tensor(list(prompt[1:]), dtype=torch.long, device=hidden.device)
    for start in range(0, len(hidden), chunk):
        logs = model.logits(hidden[start : start + chunk]).float().log_softmax(-1)
        wanted = targets[start : start + chunk]
        chosen = logs.gather(1, wanted[:, None])[:, 0].tolist()
        values, ids = logs.topk(min(top, vocab), dim=-1)
        for token, value, top_ids, top_values in zip(
            wanted.tolist(), chosen, ids.tolist(), values.tolist(), strict=True
        ):
            scores.append(Scored(token, value, tuple(zip(top_ids, top_values, strict=True))))
    return scores
