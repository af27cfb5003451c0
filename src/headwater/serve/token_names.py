"""How tokens and their log-probabilities are written, in both APIs' schemas.

names = TokenNames(tokenizer)
completion_logprobs(scores, names, TextOffsets(names))  # {"tokens", "token_logprobs", "top_logprobs", "text_offset"}
chat_logprobs(scores, names)                            # {"content": [{"token", "logprob", "bytes", "top_logprobs"}]}
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Any

from headwater.serve.prompt_scores import Scored
from headwater.tokenizer import Tokenizer

LOWEST_LOGPROB = -9999.0
"""Stands for minus infinity, which JSON cannot hold, as in OpenAI's and vLLM's answers."""


class TokenNames:
    """How tokens are written. One that is no whole text is `bytes:` and its bytes, as OpenAI writes it."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def name(self, token: int) -> str:
        data = self._tokenizer.token_bytes(token)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)

    def bytes(self, token: int) -> bytes:
        return self._tokenizer.token_bytes(token)

    def is_text(self, token: int) -> bool:
        return token not in self._tokenizer.special_ids


class TextOffsets:
    """Where each token's text begins, in characters, along one choice."""

    def __init__(self, names: TokenNames, start: int = 0) -> None:
        self._names, self._at = names, start
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def next(self, token: int) -> int:
        at = self._at
        if self._names.is_text(token):
            self._at += len(self._decoder.decode(self._names.bytes(token)))
        return at


def _finite(logprob: float) -> float:
    return max(logprob, LOWEST_LOGPROB)


def completion_logprobs(scores: Sequence[Scored], names: TokenNames, offsets: TextOffsets) -> dict[str, Any]:
    """The completions API's schema. A prompt's first token has null for both numbers."""
    tops: list[dict[str, float] | None] = []
    for score in scores:
        if score.logprob is None:
            tops.append(None)
            continue
        top: dict[str, float] = {}
        for token, value in (*score.top, (score.token, score.logprob)):
            name = names.name(token)  # a byte and a piece may have the same text: the likelier stays
            top[name] = max(_finite(value), top.get(name, LOWEST_LOGPROB))
        tops.append(top)
    return {
        "tokens": [names.name(score.token) for score in scores],
        "token_logprobs": [None if score.logprob is None else _finite(score.logprob) for score in scores],
        "top_logprobs": tops,
        "text_offset": [offsets.next(score.token) for score in scores],
    }


def chat_logprobs(scores: Sequence[Scored], names: TokenNames) -> dict[str, Any]:
    """The chat API's schema."""

    def entry(token: int, logprob: float) -> dict[str, Any]:
        return {"token": names.name(token), "logprob": _finite(logprob), "bytes": list(names.bytes(token))}

    content = [
        {
            **entry(score.token, score.logprob if score.logprob is not None else 0.0),
            "top_logprobs": [entry(token, value) for token, value in score.top],
        }
        for score in scores
    ]
    return {"content": content, "refusal": None}
