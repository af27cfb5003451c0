"""From chat messages to one prompt.

A model folder with its own chat template (`chat_template.jinja`, or `chat_template` in `tokenizer_config.json`) is
given exactly what that template renders. The template is text from outside, so it runs in Jinja's immutable sandbox:
no attribute that starts with an underscore, no change to what it is handed, no file or module.

A base model has seen neither turns nor special chat tokens, so it gets plain text, the **neutral template**: each
message as its role, a colon, its text and a blank line; then the role the model should speak as:

    System: Answer briefly.

    User: What is a watershed?

    Assistant:

Replies under it end where the model would begin the next turn, so `NEUTRAL_STOPS` are added to the request's stop
strings.

    render_neutral([{"role": "user", "content": "水往哪里流？"}])   # "User: 水往哪里流？\\n\\nAssistant:"
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from headwater.core.errors import InputError
from headwater.serve.errors import bad_request

NEUTRAL_ROLES = {"system": "System", "developer": "System", "user": "User", "assistant": "Assistant"}
NEUTRAL_STOPS = ("\n\nUser:", "\n\nSystem:", "\n\nAssistant:")
LARGEST_TEMPLATE_BYTES = 1 << 20

Message = dict[str, str]


@dataclass(frozen=True)
class Rendered:
    """A prompt. `special` tells that the text holds special tokens by name, which are to be encoded as such."""

    text: str
    stops: tuple[str, ...]
    special: bool


class ChatTemplate:
    """Renders messages. `source` None means the neutral template."""

    def __init__(self, source: str | None = None, variables: dict[str, Any] | None = None) -> None:
        self.source = source
        self._variables = variables or {}
        self._template = _compile(source) if source is not None else None

    @classmethod
    def of_folder(cls, folder: Path) -> ChatTemplate:
        """The template of a Hugging Face folder, or the neutral one. Raises InputError if it cannot be compiled."""
        settings = _read_json(folder / "tokenizer_config.json")
        source: Any = None
        file = folder / "chat_template.jinja"
        if file.is_file():
            if file.stat().st_size > LARGEST_TEMPLATE_BYTES:
                raise InputError("the chat template is larger than 1 MiB", where=str(file), mend="remove it")
            source = file.read_text(encoding="utf-8")
        elif settings.get("chat_template"):
            source = settings["chat_template"]
            if isinstance(source, list):  # several, by name
                named = {item.get("name"): item.get("template") for item in source if isinstance(item, dict)}
                source = named.get("default")
        if source is None:
            return cls()
        if not isinstance(source, str):
            raise InputError("the chat template is not text", where=str(folder), mend="remove or mend it")
        return cls(source, {name: _token_text(settings.get(name)) for name in ("bos_token", "eos_token", "unk_token")})

    def render(self, messages: Sequence[Message]) -> Rendered:
        """The prompt for an answer to `messages` ({"role", "content"}). Raises ApiError 400 if it cannot be made."""
        if self._template is None:
            return Rendered(render_neutral(messages), NEUTRAL_STOPS, special=False)
        from jinja2 import TemplateError

        try:
            text = self._template.render(
                messages=[dict(message) for message in messages], add_generation_prompt=True, **self._variables
            )
        except (TemplateError, TypeError, ValueError, KeyError, IndexError, OverflowError) as error:
            raise bad_request(f"The model's chat template refused the messages: {error}", param="messages") from error
        return Rendered(text, (), special=True)


def render_neutral(messages: Sequence[Message]) -> str:
    """Plain text for base models, see the module's docstring. Raises ApiError 400 for a role it does not know.

    A last message of the assistant is continued instead of answered.
    """
    turns = []
    for index, message in enumerate(messages):
        role = NEUTRAL_ROLES.get(message["role"])
        if role is None:
            known = ", ".join(NEUTRAL_ROLES)
            raise bad_request(f"Unknown role '{message['role']}'; known are {known}.", param=f"messages[{index}].role")
        turns.append(f"{role}: {message['content']}")
    if messages and messages[-1]["role"] == "assistant":
        return "\n\n".join(turns)
    return "\n\n".join([*turns, "Assistant:"])


def _compile(source: str) -> Any:
    from jinja2 import TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = lambda pattern: datetime.now().strftime(pattern)
    try:
        return environment.from_string(source)
    except TemplateError as error:
        raise InputError(f"the model's chat template does not compile: {error}", mend="mend or remove it") from error


def _raise(message: str) -> NoReturn:
    from jinja2 import TemplateError

    raise TemplateError(message)


def _to_json(value: Any, indent: int | None = None) -> str:
    """Without Jinja's HTML escapes, as Hugging Face templates expect."""
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read the tokenizer's settings: {error}", where=str(path)) from error
    return value if isinstance(value, dict) else {}


def _token_text(token: Any) -> str:
    return str(token.get("content", "")) if isinstance(token, dict) else str(token or "")
