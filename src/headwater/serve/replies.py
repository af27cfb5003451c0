"""Answers as JSON: whole, or chunk by chunk as the worker's events come.

reply = CompletionReply(names, "tiny", request, prompts)
for event in events: reply.take(event)
reply.whole()
"""

from __future__ import annotations

import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from headwater.engine import Piece
from headwater.serve.jobs import Event, PromptScores
from headwater.serve.prompt_scores import Scored
from headwater.serve.prompts import EncodedPrompt
from headwater.serve.protocol import ChatRequest, CompletionRequest, SamplingFields
from headwater.serve.token_names import TextOffsets, TokenNames, chat_logprobs, completion_logprobs


@dataclass
class Usage:
    """Tokens of one request. A prompt counts once, however many samples it has."""

    prompt_tokens: int = 0
    completion_tokens: int = 0

    def as_json(self) -> dict[str, int]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
        }


@dataclass(frozen=True)
class Envelope:
    """What every object of one answer has in common."""

    model: str
    chat: bool
    include_usage: bool = False
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    created: int = field(default_factory=lambda: int(time.time()))

    def whole(self, choices: list[dict[str, Any]], usage: Usage) -> dict[str, Any]:
        """The answer to a request without `stream`."""
        return self._object("chat.completion" if self.chat else "text_completion", choices, usage.as_json())

    def chunk(self, choices: list[dict[str, Any]], usage: Usage | None = None) -> dict[str, Any]:
        """One event of a stream; the last one, with usage, has no choices."""
        kind = "chat.completion.chunk" if self.chat else "text_completion"
        body = self._object(kind, choices, usage.as_json() if usage is not None else None)
        if not self.include_usage:
            del body["usage"]
        return body

    def _object(self, kind: str, choices: list[dict[str, Any]], usage: dict[str, int] | None) -> dict[str, Any]:
        return {
            "id": ("chatcmpl-" if self.chat else "cmpl-") + self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "choices": choices,
            "usage": usage,
        }


@dataclass
class Choice:
    """One completion as it grows. `offsets` says where its next token's text begins; `opened` whether its stream has
    had a chunk."""

    offsets: TextOffsets
    text: list[str] = field(default_factory=list)
    scores: list[Scored] = field(default_factory=list)
    finish: str | None = None
    opened: bool = False


class Reply(ABC):
    """An answer as it grows. Use `take` and `whole`, or `opening`, `chunks` and `closing`, not both."""

    def __init__(
        self, names: TokenNames, model_name: str, body: SamplingFields, prompts: int, prompt_tokens: int, *, chat: bool
    ) -> None:
        self.names = names
        self.n = body.n
        self.choices = [Choice(TextOffsets(names)) for _ in range(prompts * body.n)]
        self.usage = Usage(prompt_tokens)
        include_usage = body.stream_options is not None and body.stream_options.include_usage
        self.envelope = Envelope(model_name, chat, include_usage)

    @property
    def finish_reason(self) -> str:
        """Why the first choice ended."""
        return self.choices[0].finish or "length"

    def take(self, event: Event) -> None:
        """Add an event to the whole answer."""
        if isinstance(event, Piece):
            choice = self.choices[self._count(event)]
            choice.text.append(event.text)
            choice.scores += map(Scored.of, event.logprobs)

    def opening(self) -> list[dict[str, Any]]:
        """Chunks before the first event."""
        return []

    @abstractmethod
    def chunks(self, event: Event) -> list[dict[str, Any]]:
        """Chunks for one event."""

    def closing(self) -> list[dict[str, Any]]:
        """Chunks after the last event: usage, if asked for."""
        return [self.envelope.chunk([], self.usage)] if self.envelope.include_usage else []

    @abstractmethod
    def whole(self) -> dict[str, Any]:
        """The answer to a request without `stream`."""

    def _count(self, piece: Piece) -> int:
        """Number of the piece's choice; its tokens are added to usage."""
        index = piece.prompt * self.n + piece.sample
        self.choices[index].finish = piece.finish
        self.usage.completion_tokens += len(piece.token_ids)
        return index


class CompletionReply(Reply):
    """Of /v1/completions. With `echo` a choice's text begins with its prompt."""

    def __init__(
        self, names: TokenNames, model_name: str, body: CompletionRequest, prompts: Sequence[EncodedPrompt]
    ) -> None:
        tokens = sum(len(prompt.ids) for prompt in prompts)
        super().__init__(names, model_name, body, len(prompts), tokens, chat=False)
        self._prompts, self._echo, self._logprobs = prompts, body.echo, body.logprobs is not None
        self._generates = body.max_tokens > 0

    def take(self, event: Event) -> None:
        if isinstance(event, PromptScores):
            for index, choice in enumerate(self.choices):
                choice.scores += self._prompt_scores(event, index)
        super().take(event)

    def _prompt_scores(self, event: PromptScores, index: int) -> list[Scored]:
        number = index // self.n
        return event.prompts[number][self._prompts[number].prefix :]

    def opening(self) -> list[dict[str, Any]]:
        if not self._echo or self._logprobs:
            return []
        return [self._chunk(index, self._prompts[index // self.n].text, []) for index in range(len(self.choices))]

    def chunks(self, event: Event) -> list[dict[str, Any]]:
        if isinstance(event, PromptScores):
            return [
                self._chunk(index, self._prompts[index // self.n].text, self._prompt_scores(event, index))
                for index in range(len(self.choices))
            ]
        if isinstance(event, Piece):
            index = self._count(event)
            return [self._chunk(index, event.text, list(map(Scored.of, event.logprobs)), event.finish)]
        return []

    def closing(self) -> list[dict[str, Any]]:
        ended = [] if self._generates else [self._chunk(i, "", [], "length") for i in range(len(self.choices))]
        return [*ended, *super().closing()]

    def whole(self) -> dict[str, Any]:
        choices = []
        for index, choice in enumerate(self.choices):
            echoed = self._prompts[index // self.n].text if self._echo else ""
            text = echoed + "".join(choice.text)
            choices.append(self._choice(index, text, choice.scores, choice.finish or "length"))
        return self.envelope.whole(choices, self.usage)

    def _chunk(self, index: int, text: str, scores: list[Scored], finish: str | None = None) -> dict[str, Any]:
        return self.envelope.chunk([self._choice(index, text, scores, finish)])

    def _choice(self, index: int, text: str, scores: list[Scored], finish: str | None) -> dict[str, Any]:
        logprobs = completion_logprobs(scores, self.names, self.choices[index].offsets) if self._logprobs else None
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish}


class ChatReply(Reply):
    """Of /v1/chat/completions. A choice's stream begins with its role, together with its first token."""

    def __init__(self, names: TokenNames, model_name: str, body: ChatRequest, prompt_tokens: int) -> None:
        super().__init__(names, model_name, body, 1, prompt_tokens, chat=True)
        self._logprobs = body.logprobs

    def chunks(self, event: Event) -> list[dict[str, Any]]:
        if not isinstance(event, Piece):
            return []
        index = self._count(event)
        scores = list(map(Scored.of, event.logprobs))
        chunks = []
        if not self.choices[index].opened:
            self.choices[index].opened = True
            chunks.append(self._chunk(index, {"role": "assistant", "content": ""}, []))
        if event.text or scores:
            chunks.append(self._chunk(index, {"content": event.text}, scores))
        if event.finish is not None:
            chunks.append(self._chunk(index, {}, [], event.finish))
        return chunks

    def whole(self) -> dict[str, Any]:
        choices = [
            {
                "index": index,
                "message": {"role": "assistant", "content": "".join(choice.text), "refusal": None},
                "logprobs": chat_logprobs(choice.scores, self.names) if self._logprobs else None,
                "finish_reason": choice.finish,
            }
            for index, choice in enumerate(self.choices)
        ]
        return self.envelope.whole(choices, self.usage)

    def _chunk(
        self, index: int, delta: dict[str, Any], scores: list[Scored], finish: str | None = None
    ) -> dict[str, Any]:
        logprobs = chat_logprobs(scores, self.names) if self._logprobs and scores else None
        return self.envelope.chunk([{"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}])
