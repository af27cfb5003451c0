"""From a request to token ids, within the limits.

In: the request's prompt or messages. Out: token ids a prompt, and the text to echo. Text never becomes reserved
tokens: only a model's own chat template writes those, and what a user's message holds of their names stays text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from headwater.core.errors import InputError
from headwater.engine import Engine
from headwater.serve.errors import bad_request
from headwater.serve.protocol import ChatRequest, CompletionRequest
from headwater.serve.template import ChatTemplate
from headwater.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class EncodedPrompt:
    """Token ids, and the text they stand for."""

    ids: list[int]
    text: str
    prefix: int = 0
    """Leading ids that no text stands for: where the model's documents begin with one."""


def encode_completion(request: CompletionRequest, engine: Engine) -> list[EncodedPrompt]:
    """The prompts of a completion request, in order. Raises ApiError 400 for what cannot be encoded."""
    prompt = request.prompt
    if isinstance(prompt, str):
        return [_text(prompt, engine)]
    if isinstance(prompt[0], int):
        return [_ids(prompt, engine)]
    return [_text(one, engine) if isinstance(one, str) else _ids(one, engine) for one in prompt]


def encode_chat(request: ChatRequest, engine: Engine, template: ChatTemplate) -> tuple[EncodedPrompt, tuple[str, ...]]:
    """The prompt of a chat request, and stop strings its template asks for."""
    messages = [message.plain() for message in request.messages]
    if template.source is None:
        rendered = template.render(messages)
        return _text(rendered.text, engine), rendered.stops
    names = engine.tokenizer.special_names
    marks = _Marks(names, [text for message in messages for text in message.values()])
    rendered = template.render([{key: marks.hide(text) for key, text in message.items()} for message in messages])
    try:
        ids = _with_specials(rendered.text, engine.tokenizer, marks)
    except InputError as error:
        raise bad_request(error.what, param="messages") from error
    return EncodedPrompt(ids or engine.encode(""), marks.show(rendered.text)), rendered.stops


class _Marks:
    """Hides the names of reserved tokens in users' texts behind two private characters and a number."""

    def __init__(self, names: Sequence[str], texts: list[str]) -> None:
        self._names = tuple(name for name in names if name)
        used = set("".join(texts))
        private = (chr(code) for code in range(0xE000, 0xF8FF))
        self._left, self._right = (char for char, _ in zip((c for c in private if c not in used), "12", strict=False))
        self._pattern = re.compile("|".join(map(re.escape, sorted(self._names, key=len, reverse=True))) or "(?!)")
        self._mark = re.compile(f"{self._left}([0-9]+){self._right}")

    def hide(self, text: str) -> str:
        return self._pattern.sub(lambda found: f"{self._left}{self._names.index(found[0])}{self._right}", text)

    def show(self, text: str) -> str:
        return self._mark.sub(lambda found: self._names[int(found[1])], text)

    def split(self, text: str) -> list[tuple[str, bool]]:
        """Parts of a rendered prompt, and whether each is a reserved token."""
        parts, at = [], 0
        for found in self._pattern.finditer(text):
            parts += [(self.show(text[at : found.start()]), False), (found[0], True)]
            at = found.end()
        return [(part, special) for part, special in [*parts, (self.show(text[at:]), False)] if part]


def _with_specials(text: str, tokenizer: Tokenizer, marks: _Marks) -> list[int]:
    ids: list[int] = []
    for part, special in marks.split(text):
        ids += [tokenizer.id_of(part)] if special else tokenizer.encode(part)
    return ids


def _text(prompt: str, engine: Engine) -> EncodedPrompt:
    try:
        return EncodedPrompt(engine.encode(prompt), prompt, len(engine.tokenizer.document_prefix))
    except InputError as error:
        raise bad_request(error.what, param="prompt") from error


def _ids(prompt: Sequence[int], engine: Engine) -> EncodedPrompt:
    if not prompt:
        raise bad_request("A prompt of token ids is empty.", param="prompt")
    check_ids(prompt, engine, "prompt")
    return EncodedPrompt(list(prompt), engine.tokenizer.decode(prompt))


def check_ids(ids: Sequence[int], engine: Engine, param: str) -> None:
    """Raise ApiError 400 for an id the tokenizer does not have."""
    vocabulary = engine.tokenizer.vocab_size
    for token in ids:
        if not 0 <= token < vocabulary:
            raise bad_request(f"{param} has token id {token}; ids go from 0 to {vocabulary - 1:,}.", param=param)


def check_length(
    prompts: Sequence[EncodedPrompt], asked: int | None, context: int, most: int | None, param: str
) -> None:
    """Raise ApiError 400 unless every prompt, and `asked` tokens after it (None: at least one), fit."""
    for prompt in prompts:
        size = len(prompt.ids)
        if most is not None and size > most:
            raise bad_request(
                f"The prompt has {size:,} tokens; this server takes at most {most:,}.",
                param=param,
                code="prompt_too_long",
            )
        if size + (1 if asked is None else asked) > context:
            wanted = "" if asked is None else f" and max_tokens {asked:,}"
            raise bad_request(
                f"The prompt's {size:,} tokens{wanted} do not fit the model's context of {context:,} tokens.",
                param=param,
                code="context_length_exceeded",
            )
