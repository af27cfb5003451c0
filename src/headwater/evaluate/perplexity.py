"""Perplexity of held-out text per token, word and byte, and bits per byte, by domain and language.

Every number is a ratio of sums over the whole slice, never a mean over documents:

- `token_perplexity` = exp(nats / tokens); comparable only between models with the same tokenizer.
- `word_perplexity` = exp(nats / units), a unit being one CJK character or one word or number.
- `whitespace_word_perplexity` = exp(nats / words), words as lm-evaluation-harness counts them
  (`len(re.split(r"\\s+", text))`); meaningless for Chinese, where it is often too large for a float (None).
- `byte_perplexity` = exp(nats / bytes), `bits_per_byte` = nats / (bytes ln 2); bytes of the UTF-8 text.

nats is minus the sum of ln p over a document's tokens; its closing end-of-document token is not scored.

    report = measure(scorer, held_out)
    report.overall.bits_per_byte; report.slices
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from headwater.core.errors import InputError
from headwater.evaluate.heldout import HeldOut, HeldOutDocument

SliceKind = Literal["overall", "domain", "language"]
LARGEST_EXPONENT = 700.0  # exp of more does not fit a double


class TokenScorer(Protocol):
    """Anything that gives each token of a document a probability: a network, an n-gram model."""

    vocab_size: int

    def score(self, documents: list[NDArray[np.integer]]) -> list[NDArray[np.float64]]:
        """ln p of every token of every document given the tokens before it; arrays as long as the documents."""
        ...


@dataclass(frozen=True, slots=True)
class Slice:
    """Sums over some of the documents, and the ratios made from them (None where they have no value)."""

    kind: SliceKind
    name: str
    documents: int
    tokens: int
    units: int
    whitespace_words: int
    bytes: int
    nats: float

    @property
    def token_perplexity(self) -> float | None:
        return _exp_ratio(self.nats, self.tokens)

    @property
    def word_perplexity(self) -> float | None:
        return _exp_ratio(self.nats, self.units)

    @property
    def whitespace_word_perplexity(self) -> float | None:
        return _exp_ratio(self.nats, self.whitespace_words)

    @property
    def byte_perplexity(self) -> float | None:
        return _exp_ratio(self.nats, self.bytes)

    @property
    def bits_per_byte(self) -> float | None:
        return self.nats / (self.bytes * math.log(2)) if self.bytes else None

    def values(self) -> dict[str, float | None]:
        """The ratios by name."""
        return {name: getattr(self, name) for name in VALUES}

    def as_json(self) -> dict[str, Any]:
        """Sums and ratios, the latter to six decimals."""
        sums = ("kind", "name", "documents", "tokens", "units", "whitespace_words", "bytes")
        numbers = {"nats": self.nats, **self.values()}
        rounded = {name: None if value is None else round(value, 6) for name, value in numbers.items()}
        return {**{name: getattr(self, name) for name in sums}, **rounded}


VALUES = ("bits_per_byte", "token_perplexity", "word_perplexity", "whitespace_word_perplexity", "byte_perplexity")


def _exp_ratio(nats: float, count: int) -> float | None:
    if not count or nats / count > LARGEST_EXPONENT:
        return None
    return math.exp(nats / count)


@dataclass(frozen=True, slots=True)
class PerplexityReport:
    """`slices`: overall first, then domains, then languages, each by name. `document_nats`: in the documents' order."""

    slices: tuple[Slice, ...]
    document_nats: tuple[float, ...]

    @property
    def overall(self) -> Slice:
        return self.slices[0]

    def flat(self) -> dict[str, float]:
        """`bits_per_byte`, `domain/web/bits_per_byte`, `language/zh/word_perplexity` ...; values that do not exist
        are left out."""
        named: dict[str, float] = {}
        for piece in self.slices:
            prefix = "" if piece.kind == "overall" else f"{piece.kind}/{piece.name}/"
            named |= {prefix + name: value for name, value in piece.values().items() if value is not None}
        return named


def measure(scorer: TokenScorer, held_out: HeldOut) -> PerplexityReport:
    """Score every document once and add up. Raises InputError when a token gets no finite probability."""
    logs = scorer.score([document.tokens for document in held_out.documents])
    nats: list[float] = []
    for document, log in zip(held_out.documents, logs, strict=True):
        total = -float(np.sum(log, dtype=np.float64))
        if len(log) != len(document.tokens) or not math.isfinite(total):
            raise InputError(
                f"the model gives a token of document {document.id} no finite probability",
                where=f"{held_out.source}:{document.id}",
                mend="check the weights for NaN or infinity",
            )
        nats.append(total)
    return PerplexityReport(tuple(_slices(held_out.documents, nats)), tuple(nats))


def _slices(documents: Sequence[HeldOutDocument], nats: Sequence[float]) -> list[Slice]:
    everything = list(zip(documents, nats, strict=True))
    domains = sorted({document.domain for document in documents})
    languages = sorted({document.lang for document in documents})
    return [
        _sum("overall", "all", everything),
        *(_sum("domain", name, [p for p in everything if p[0].domain == name]) for name in domains),
        *(
            _sum("language", name or "unknown", [pair for pair in everything if pair[0].lang == name])
            for name in languages
        ),
    ]


def _sum(kind: SliceKind, name: str, pairs: list[tuple[HeldOutDocument, float]]) -> Slice:
    return Slice(
        kind,
        name,
        documents=len(pairs),
        tokens=sum(len(document.tokens) for document, _ in pairs),
        units=sum(document.units for document, _ in pairs),
        whitespace_words=sum(document.whitespace_words for document, _ in pairs),
        bytes=sum(document.bytes for document, _ in pairs),
        nats=math.fsum(value for _, value in pairs),
    )


class Perplexity:
    """The language-modelling metric: all of `VALUES`, overall and by domain and language."""

    name = "perplexity"

    def evaluate(self, model: TokenScorer, test_data: HeldOut) -> dict[str, float]:
        """Flat names to values, see `PerplexityReport.flat`."""
        return measure(model, test_data).flat()
