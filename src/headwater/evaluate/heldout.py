"""Held-out text, tokenized and measured: what every model and baseline is scored on.

    held_out = from_texts([Text("water", "水往低处流", lang="zh")], tokenizer)
    held_out.tokens, held_out.bytes, held_out.fingerprint

`headwater.evaluate.sources` makes one from a dataset artifact or from files.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from headwater.core.units import count_units

TokenArray = NDArray[np.int32]


class TextTokenizer(Protocol):
    """What is needed of a tokenizer; `headwater.tokenizer.Tokenizer` is one."""

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]: ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def sha256(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Text:
    """One document's text. `lang` "" means unknown."""

    id: str
    text: str
    domain: str = "text"
    lang: str = ""


@dataclass(frozen=True, slots=True)
class HeldOutDocument:
    """One document: `tokens` int32 [tokens] without special ids, its text's sizes, and where it belongs."""

    id: str
    tokens: TokenArray
    text: str
    domain: str
    lang: str
    bytes: int
    units: int
    whitespace_words: int


@dataclass(frozen=True)
class HeldOut:
    """Documents in a fixed order. `left_out`: what was not taken, by reason, for the result to state."""

    documents: tuple[HeldOutDocument, ...]
    source: str
    split: str
    tokenizer_sha256: str
    vocab_size: int
    left_out: dict[str, Any] = field(default_factory=dict)

    @property
    def tokens(self) -> int:
        return sum(len(document.tokens) for document in self.documents)

    @property
    def bytes(self) -> int:
        return sum(document.bytes for document in self.documents)

    @property
    def domains(self) -> tuple[str, ...]:
        return tuple(sorted({document.domain for document in self.documents}))

    @property
    def fingerprint(self) -> str:
        """16 hex digits over every document's domain, language and text, in order; tokenizers do not change it."""
        digest = hashlib.sha256()
        for document in self.documents:
            for part in (document.domain, document.lang, document.text):
                data = part.encode("utf-8", "surrogatepass")
                digest.update(len(data).to_bytes(8, "little"))
                digest.update(data)
        return digest.hexdigest()[:16]


def measured(text: Text, tokens: Sequence[int] | TokenArray) -> HeldOutDocument:
    """One document from its text and its tokens."""
    return HeldOutDocument(
        id=text.id,
        tokens=np.asarray(tokens, dtype=np.int32),
        text=text.text,
        domain=text.domain,
        lang=text.lang,
        bytes=len(text.text.encode("utf-8", "surrogatepass")),
        units=count_units(text.text),
        whitespace_words=len(re.split(r"\s+", text.text)),
    )


def from_texts(
    texts: Iterable[Text],
    tokenizer: TextTokenizer,
    *,
    source: str = "memory",
    split: str = "",
    left_out: dict[str, Any] | None = None,
) -> HeldOut:
    """Tokenize texts in order. Empty texts hold nothing to predict: they are counted in `left_out`."""
    kept, empty = [], 0
    for text in texts:
        if text.text:
            kept.append(text)
        else:
            empty += 1
    encoded = tokenizer.encode_batch([text.text for text in kept])
    reasons = dict(left_out or {})
    if empty:
        reasons["empty"] = empty
    return HeldOut(
        documents=tuple(measured(text, tokens) for text, tokens in zip(kept, encoded, strict=True)),
        source=source,
        split=split,
        tokenizer_sha256=tokenizer.sha256,
        vocab_size=tokenizer.vocab_size,
        left_out=reasons,
    )
