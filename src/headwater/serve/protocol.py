"""Requests of the OpenAI API as this server takes them.

A field the server does not know is refused, never ignored. Fields of the OpenAI API that cannot change this
server's answer (`user`, `metadata` ...) are accepted; those it could only get wrong (`tools`, `response_format` other
than text ...) are refused with the reason. `top_k`, `min_p`, `repetition_penalty`, `ignore_eos` and
`stop_token_ids` are vLLM's additions, sent by its clients through `extra_body`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

MOST_STOPS = 16
MOST_CHOICES = 128
MOST_LOGPROBS = 20
LONGEST_STOP_CHARACTERS = 1024

StopString = Annotated[str, Field(min_length=1, max_length=LONGEST_STOP_CHARACTERS)]


class StreamOptions(BaseModel):
    model_config = ConfigDict(extra="forbid")

    include_usage: bool = False
    include_obfuscation: bool = False  # OpenAI's padding against traffic analysis; there is none here


class SamplingFields(BaseModel):
    """What completions and chat completions share."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())

    model: str
    temperature: float = Field(1.0, ge=0.0, le=2.0)
    top_p: float = Field(1.0, gt=0.0, le=1.0)
    top_k: int = Field(0, ge=-1)
    min_p: float = Field(0.0, ge=0.0, le=1.0)
    presence_penalty: float = Field(0.0, ge=-2.0, le=2.0)
    frequency_penalty: float = Field(0.0, ge=-2.0, le=2.0)
    repetition_penalty: float = Field(1.0, gt=0.0, le=10.0)
    n: int = Field(1, ge=1, le=MOST_CHOICES)
    stream: bool = False
    stream_options: StreamOptions | None = None
    stop: list[StopString] = Field([], max_length=MOST_STOPS)
    stop_token_ids: list[int] = Field([], max_length=MOST_STOPS)
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    logit_bias: dict[int, float] = Field({}, max_length=1024)
    ignore_eos: bool = False
    user: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _null_means_default(cls, data: Any) -> Any:
        return {key: value for key, value in data.items() if value is not None} if isinstance(data, dict) else data

    @field_validator("stop", mode="before")
    @classmethod
    def _one_stop(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) else value

    @field_validator("logit_bias")
    @classmethod
    def _bias_in_range(cls, value: dict[int, float]) -> dict[int, float]:
        for token, bias in value.items():
            if not -100 <= bias <= 100:
                raise ValueError(f"the bias of token {token} must lie between -100 and 100")
        return value

    @model_validator(mode="after")
    def _stream_options_need_a_stream(self) -> SamplingFields:
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options is only allowed when stream is true")
        return self


class CompletionRequest(SamplingFields):
    """POST /v1/completions. `prompt` is a text, token ids, or a list of either."""

    prompt: str | list[int] | list[str] | list[list[int]] = ""
    max_tokens: int = Field(16, ge=0)
    echo: bool = False
    logprobs: int | None = Field(None, ge=0, le=MOST_LOGPROBS)
    best_of: int | None = Field(None, ge=1)
    suffix: Literal[""] | None = None

    @model_validator(mode="after")
    def _combinations(self) -> CompletionRequest:
        if self.best_of is not None and self.best_of != self.n:
            raise ValueError("best_of other than n is not supported; ask for n choices and pick one")
        if self.prompt == []:
            raise ValueError("prompt is an empty list")
        if self.max_tokens == 0 and not self.echo:
            raise ValueError("max_tokens 0 makes sense only with echo")
        return self


class TextPart(BaseModel):
    model_config = ConfigDict(extra="forbid")

    type: Literal["text"]
    text: str


class ChatMessage(BaseModel):
    """One turn. Content in parts is joined; only text parts exist here."""

    model_config = ConfigDict(extra="forbid")

    role: str
    content: str | list[TextPart]
    name: str | None = None
    refusal: None = None

    def plain(self) -> dict[str, str]:
        content = self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)
        return {"role": self.role, "content": content} | ({"name": self.name} if self.name else {})


class ResponseFormat(BaseModel):
    model_config = ConfigDict(extra="forbid")

    type: Literal["text"]


class ChatRequest(SamplingFields):
    """POST /v1/chat/completions."""

    messages: list[ChatMessage] = Field(..., min_length=1)
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool = False
    top_logprobs: int | None = Field(None, ge=0, le=MOST_LOGPROBS)
    response_format: ResponseFormat | None = None
    tools: list[Any] = Field([], max_length=0)
    tool_choice: Literal["none"] | None = None
    metadata: dict[str, str] | None = None
    store: Literal[False] | None = None
    service_tier: Literal["auto", "default"] | None = None

    @model_validator(mode="after")
    def _combinations(self) -> ChatRequest:
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs needs logprobs to be true")
        both = self.max_tokens, self.max_completion_tokens
        if None not in both and both[0] != both[1]:
            raise ValueError("max_tokens and max_completion_tokens differ; give one")
        return self

    @property
    def longest(self) -> int | None:
        """Tokens to generate at most, or None for as many as fit."""
        return self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens
