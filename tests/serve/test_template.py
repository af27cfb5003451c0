"""Chat templates: plain text for base models, a sandbox for templates from outside."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headwater.core.errors import InputError
from headwater.serve.errors import ApiError, bad_request
from headwater.serve.template import NEUTRAL_STOPS, ChatTemplate, render_neutral

TURNS = [
    {"role": "system", "content": "Answer briefly."},
    {"role": "user", "content": "水往哪里流？"},
]


def test_the_neutral_template_is_plain_text() -> None:
    assert render_neutral(TURNS) == "System: Answer briefly.\n\nUser: 水往哪里流？\n\nAssistant:"


def test_a_last_turn_of_the_assistant_is_continued() -> None:
    turns = [*TURNS, {"role": "assistant", "content": "往低处"}]
    assert render_neutral(turns).endswith("\n\nAssistant: 往低处")


def test_an_unknown_role_is_refused_by_name() -> None:
    with pytest.raises(ApiError, match="Unknown role 'tool'") as caught:
        render_neutral([{"role": "tool", "content": "x"}])
    assert (caught.value.status, caught.value.param) == (400, "messages[0].role")


def test_a_folder_without_a_template_gets_the_neutral_one_and_its_stops(tmp_path: Path) -> None:
    rendered = ChatTemplate.of_folder(tmp_path).render(TURNS)
    assert rendered.text == render_neutral(TURNS)
    assert rendered.stops == NEUTRAL_STOPS
    assert not rendered.special


CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.mark.parametrize("place", ["jinja", "string", "named"])
def test_a_models_own_template_is_used(place: str, tmp_path: Path) -> None:
    settings: dict[str, object] = {"bos_token": {"content": "<s>"}}
    if place == "jinja":
        (tmp_path / "chat_template.jinja").write_text(CHATML)
    elif place == "string":
        settings["chat_template"] = CHATML
    else:
        settings["chat_template"] = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": CHATML}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    rendered = ChatTemplate.of_folder(tmp_path).render(TURNS)
    assert rendered.text == (
        "<|im_start|>system\nAnswer briefly.<|im_end|>\n"
        "<|im_start|>user\n水往哪里流？<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert rendered.special


@pytest.mark.parametrize(
    "attack",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.__class__ }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update({'role': 'x'}) }}",
        "{% for i in range(10000000) %}x{% endfor %}",
        "{% include '/etc/passwd' %}",
        "{{ raise_exception('no system role') }}",
    ],
)
def test_a_template_cannot_leave_its_sandbox(attack: str) -> None:
    with pytest.raises(ApiError) as caught:
        raise bad_request(f"rendered {ChatTemplate(attack).render(TURNS).text!r}")
    assert caught.value.status == 400
    assert caught.value.message in ("rendered ''", "rendered 'None'") or "template refused" in caught.value.message


def test_a_template_that_does_not_compile_is_refused_at_once() -> None:
    with pytest.raises(InputError, match="does not compile"):
        ChatTemplate("{% for %}")
