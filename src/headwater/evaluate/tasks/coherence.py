"""How generated text holds together, as a vector: no one of these figures means quality, together they show failure.

- `distinct_1`, `distinct_2`: different units, and pairs of them, over all (Li et al. 2016); low in loops
- `repetition_4`: share of four-unit sequences that came before in the same text; high in loops
- `sentence_coherence`: mean cosine of the content units of neighbouring sentences; near 1 is repetition, near 0 jumps
- `entity_coherence`: share of sentences after the first that name an entity named before
- `self_bleu`: mean BLEU-4 of each text against the others (Zhu et al. 2018); high where all texts are the same
- `judge_bits_per_byte`, with a judge: how likely another model finds the texts after their prompts

A unit is one CJK character or one word or number. Texts under four units have no figures but `length`.

    measure("水往低处流。水不回头。")["distinct_1"]
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Sequence

from headwater.evaluate.tasks.figures import Figure, Records, aggregate, mean
from headwater.evaluate.tasks.items import Item
from headwater.evaluate.tasks.scorers import Metrics, scorer

_CJK = "\u3005\u3007\u3041-\u30ff\u3400-\u9fff\uac00-\ud7a3\uf900-\ufaff"
_UNIT = re.compile(rf"[{_CJK}]|[^\W_{_CJK}]+(?:['’][^\W_{_CJK}]+)*")
_SENTENCE = re.compile(r"(?<=[.!?])\s+|(?<=[。！？])|\n+")
_NAME = re.compile(r"\b[A-Z][\w’'-]+(?:\s+[A-Z][\w’'-]+)*")
MOST_REFERENCES = 50
"""Texts each text is compared with for self-BLEU; the ones after it, around the end."""


def units(text: str) -> list[str]:
    """The units of a text in order, in lower case."""
    return [unit.lower() for unit in _UNIT.findall(text)]


def sentences(text: str) -> list[str]:
    return [part for part in _SENTENCE.split(text) if units(part)]


def ngrams(sequence: Sequence[str], n: int) -> list[tuple[str, ...]]:
    return [tuple(sequence[place : place + n]) for place in range(len(sequence) - n + 1)]


def measure(text: str) -> Metrics:
    """The figures of one text, but self-BLEU, which needs others."""
    words = units(text)
    found: Metrics = {"length": float(len(words))}
    if len(words) < 4:
        return found
    for n in (1, 2):
        grams = ngrams(words, n)
        found[f"distinct_{n}"] = len(set(grams)) / len(grams)
    fours = ngrams(words, 4)
    found["repetition_4"] = 1 - len(set(fours)) / len(fours)
    parts = sentences(text)
    if len(parts) > 1:
        bags = [Counter(_content(part)) for part in parts]
        found["sentence_coherence"] = _mean([_cosine(one, other) for one, other in itertools.pairwise(bags)])
        seen: set[str] = set()
        linked = []
        for names in _entities(parts):
            linked.append(float(bool(names & seen)))
            seen |= names
        found["entity_coherence"] = _mean(linked[1:])
    return found


def _content(sentence: str) -> list[str]:
    """Words of four letters or more and numbers; of Chinese, pairs of characters: single ones say little."""
    found = [word for word in units(sentence) if len(word) > 3 or word.isdigit()]
    return found + _pairs(sentence)


def _pairs(sentence: str) -> list[str]:
    return [run[place : place + 2] for run in re.findall(rf"[{_CJK}]{{2,}}", sentence) for place in range(len(run) - 1)]


def _entities(parts: Sequence[str]) -> list[set[str]]:
    """Of each sentence its names: capitalised words (a sentence's first only where it is a name elsewhere in the text),
    and pairs of CJK characters."""
    found = [[(match.start() == 0, match[0].split()) for match in _NAME.finditer(part.strip())] for part in parts]
    inside = {word for names in found for first, words in names for word in words[first:]}
    return [
        {word for _, words in names for word in words if word in inside} | set(_pairs(part))
        for part, names in zip(parts, found, strict=True)
    ]


def _cosine(one: Counter[str], other: Counter[str]) -> float:
    lengths = math.sqrt(sum(count**2 for count in one.values()) * sum(count**2 for count in other.values()))
    return sum(count * other[word] for word, count in one.items()) / lengths if lengths else 0.0


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def bleu(text: Sequence[str], references: Sequence[Sequence[str]], most: int = 4) -> float:
    """BLEU of one sequence of units, each order's precision smoothed by adding 1 above the first (Lin and Och 2004)."""
    if not text or not references:
        return 0.0
    logs = 0.0
    for n in range(1, most + 1):
        own = Counter(ngrams(text, n))
        best: Counter[tuple[str, ...]] = Counter()
        for reference in references:
            best |= Counter(ngrams(reference, n))
        hits, total, extra = sum((own & best).values()), sum(own.values()), int(n > 1)
        if hits + extra == 0:
            return 0.0
        logs += math.log((hits + extra) / (total + extra))
    closest = min((abs(len(reference) - len(text)), len(reference)) for reference in references)[1]
    return math.exp(logs / most) * math.exp(min(0.0, 1 - closest / len(text)))


@scorer("coherence")
def _coherence(item: Item, texts: Sequence[str]) -> Metrics:
    each = [measure(text) for text in texts]
    names = dict.fromkeys(name for found in each for name in found)
    return {name: _mean([found[name] for found in each if name in found]) for name in names}


@aggregate("coherence")
def _self_bleu(records: Records) -> dict[str, Figure]:
    """Each text against the next `MOST_REFERENCES` others."""
    texts = [units(text) for record in records for text in record["texts"]]
    texts = [text for text in texts if text]
    if len(texts) < 2:
        return {}
    most = min(MOST_REFERENCES, len(texts) - 1)
    scores = [
        bleu(text, [texts[(place + step) % len(texts)] for step in range(1, most + 1)])
        for place, text in enumerate(texts)
    ]
    return {"self_bleu": mean(scores)}
