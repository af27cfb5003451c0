"""How an answer becomes figures. A scorer is one small function from an item and what the model did to metrics.

    score_likelihood(item, likelihoods)        # {"acc": 1.0, "acc_norm": 0.0, ...}
    SCORERS["exact_match"](item, ["Paris"])    # {"exact_match": 1.0}

Definitions of likelihood metrics follow lm-evaluation-harness: acc takes the likeliest continuation; acc_norm divides
ln p by the characters of the choice, acc_bytes by its UTF-8 bytes. A generation scorer is given all samples of an item.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from headwater.evaluate.likelihood import Likelihood
from headwater.evaluate.tasks.items import Item

Metrics = dict[str, float]


@dataclass(frozen=True, slots=True)
class Scored:
    """Metrics of an item, and what its record keeps besides."""

    metrics: Metrics
    kept: dict[str, Any]


GenerationScorer = Callable[[Item, Sequence[str]], Metrics | Scored]
SCORERS: dict[str, GenerationScorer] = {}


def scorer(name: str) -> Callable[[GenerationScorer], GenerationScorer]:
    """Register a scorer under the name a task's `scorer` field has."""

    def register(function: GenerationScorer) -> GenerationScorer:
        SCORERS[name] = function
        return function

    return register


def score_likelihood(item: Item, found: Sequence[Likelihood]) -> tuple[Metrics, dict[str, Any]]:
    """(metrics, what is kept of the item) of a multiple choice or cloze item."""
    nats = [likelihood.nats for likelihood in found]
    record: dict[str, Any] = {"nats": nats, "tokens": [f.tokens for f in found], "greedy": [f.greedy for f in found]}
    if any(f.dropped for f in found):
        record["context_tokens_dropped"] = max(f.dropped for f in found)
    if len(found) == 1:
        return {"acc": float(found[0].greedy), "nats": -nats[0]}, record
    by_chars = [value / max(1, len(option)) for value, option in zip(nats, item.options, strict=True)]
    by_bytes = [value / max(1, len(option.encode())) for value, option in zip(nats, item.options, strict=True)]
    picks = {"acc": _best(nats), "acc_norm": _best(by_chars), "acc_bytes": _best(by_bytes)}
    record["picks"] = picks
    return {name: float(pick == item.gold) for name, pick in picks.items()}, record


def _best(values: Sequence[float]) -> int:
    return max(range(len(values)), key=lambda place: values[place])  # the first of equals, as numpy's argmax


_ARTICLES = re.compile(r"\b(?:a|an|the)\b", re.IGNORECASE)
_PUNCTUATION = str.maketrans("", "", string.punctuation + "，。！？、；：（）《》“”‘’·…—")


def normalise(text: str) -> str:
    """Lower case, without punctuation, articles and extra space: SQuAD's comparison, with Chinese punctuation too."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


@scorer("exact_match")
def _exact_match(item: Item, texts: Sequence[str]) -> Metrics:
    """The answer is one of the gold aliases, after `normalise`; of several samples, the mean."""
    gold = {normalise(str(alias)) for alias in (item.gold if isinstance(item.gold, list) else [item.gold])}
    return {"exact_match": sum(normalise(text) in gold for text in texts) / len(texts)}
