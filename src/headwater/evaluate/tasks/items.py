"""From rows to items: questions as the model sees them.

    items = make_items(spec, rows, examples)
    items[0].context, items[0].choices, items[0].gold

A row that cannot become a question is set aside with the reason, never scored and never dropped in silence.
"""

from __future__ import annotations

import ast
import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import jinja2
from jinja2.sandbox import SandboxedEnvironment

from headwater.core.errors import InputError
from headwater.evaluate.tasks.asking import ASKERS
from headwater.evaluate.tasks.data import Malformed
from headwater.evaluate.tasks.readers import read_row
from headwater.evaluate.tasks.spec import TaskSpec

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Item:
    """One question. `choices` are continuations, delimiter included; `gold` the place of the right one, or the text a
    scorer compares with; `options` the choices as people read them, whose lengths `acc_norm` divides by."""

    id: str
    context: str
    choices: tuple[str, ...]
    gold: Any
    group: str
    row: Row
    options: tuple[str, ...] = ()


@dataclass(slots=True)
class Items:
    """Items in the order of the rows, and what was set aside: (number of the row from 1, reason)."""

    items: list[Item] = field(default_factory=list)
    set_aside: list[tuple[int, str]] = field(default_factory=list)


class _BadRow(ValueError):
    pass


def make_items(spec: TaskSpec, rows: Sequence[Any], examples: Sequence[Any] = ()) -> Items:
    """Items of `rows`; `examples` are rows for few-shot prompts."""
    made = Items()
    shots = [*spec.fewshot.rows, *(_example(spec, row, number) for number, row in enumerate(examples, 1))]
    for number, raw in enumerate(rows, 1):
        try:
            if isinstance(raw, Malformed):
                raise _BadRow(raw.reason)
            if not isinstance(raw, dict):
                raise _BadRow(f"a row is an object with fields, not a {type(raw).__name__}")
            row = read_row(spec.reader, raw)
            made.items.append(_item(spec, row, number, shots))
        except (_BadRow, KeyError, ValueError, TypeError, IndexError, jinja2.TemplateError) as error:
            reason = f"has no field {error}" if isinstance(error, KeyError) else str(error)
            made.set_aside.append((number, reason))
    return made


def _example(spec: TaskSpec, row: Any, number: int) -> Row:
    """A row for few-shot prompts, which every question depends on: a bad one is an error."""
    try:
        if isinstance(row, Malformed):
            raise _BadRow(row.reason)
        return read_row(spec.reader, row)
    except (KeyError, ValueError, TypeError, IndexError) as error:
        reason = f"has no field {error}" if isinstance(error, KeyError) else str(error)
        raise InputError(
            f"example {number} of task {spec.name} {reason}", mend="mend the file of examples, fewshot.files"
        ) from error


def _item(spec: TaskSpec, row: Row, number: int, shots: Sequence[Row]) -> Item:
    group = str(row[spec.group]) if spec.group else ""
    context = render(spec.description, row)
    for shot in _chosen(spec, shots, group, number):
        context += _question(spec, shot) + spec.delimiter + _solution(spec, shot) + spec.fewshot.separator
    context += _question(spec, row)
    identity = row.get("id", row.get("task_id"))
    options = _options(spec, row)
    if spec.kind == "multiple_choice":
        if len(options) < 2:
            raise _BadRow(f"has {len(options)} choices")
        gold: Any = _place(_value(spec.gold, row), options)
        choices = tuple(spec.delimiter + option for option in options)
    elif spec.kind == "cloze":
        gold, options = 0, (render(spec.gold, row),)
        choices = (spec.delimiter + options[0],)
    else:
        gold, choices = _value(spec.gold, row) if spec.gold else None, ()
    if not context and spec.kind in ("generate", "code", "perplexity") and spec.scorer not in ASKERS:
        raise _BadRow("has an empty text" if spec.kind == "perplexity" else "has an empty question")
    if any(not choice.strip() for choice in choices):
        raise _BadRow("has an empty choice")
    return Item(str(number if identity is None else identity), context, choices, gold, group, row, options)


def _question(spec: TaskSpec, row: Row) -> str:
    return render(spec.context, row)


def _solution(spec: TaskSpec, row: Row) -> str:
    """What a solved example shows after its question."""
    if spec.kind == "multiple_choice":
        options = _options(spec, row)
        return options[_place(_value(spec.gold, row), options)]
    return str(row["solution"]) if "solution" in row else render(spec.gold, row)


def _chosen(spec: TaskSpec, shots: Sequence[Row], group: str, number: int) -> list[Row]:
    wanted = spec.fewshot.count
    if not wanted:
        return []
    mine = [shot for shot in shots if not spec.group or str(shot.get(spec.group)) == group]
    if len(mine) < wanted:
        where = f" of group {group!r}" if spec.group else ""
        raise _BadRow(f"{wanted} examples are wanted and there are {len(mine)}{where}")
    if spec.fewshot.order == "first":
        return mine[:wanted]
    seed = hashlib.sha256(f"{spec.name}:{number}".encode()).digest()
    return random.Random(seed).sample(mine, wanted)


def _options(spec: TaskSpec, row: Row) -> tuple[str, ...]:
    if isinstance(spec.choices, tuple):
        return tuple(render(choice, row) for choice in spec.choices)
    if not spec.choices:
        return ()
    value = _value(spec.choices, row)
    if not isinstance(value, list | tuple):
        raise _BadRow("choices are not a list")
    return tuple(str(option) for option in value)


def _place(answer: Any, options: tuple[str, ...]) -> int:
    """The choice an answer names: a number is a place, a text the choice itself, its letter or its place."""
    if isinstance(answer, int) and not isinstance(answer, bool):
        place = answer
    else:
        text = str(answer).strip()
        if text in options:
            return options.index(text)
        place = int(text) if text.isdecimal() else ord(text.upper()) - ord("A") if len(text) == 1 else -1
    if not 0 <= place < len(options):
        raise _BadRow(f"the answer {answer!r} is none of the {len(options)} choices")
    return place


_environment = SandboxedEnvironment(undefined=jinja2.StrictUndefined, keep_trailing_newline=True, autoescape=False)


@cache
def _template(text: str) -> jinja2.Template:
    return _environment.from_string(text)


def render(text: str, row: Row) -> str:
    """A template with the fields of a row."""
    return _template(text).render(**row) if text else ""


def _value(text: str, row: Row) -> Any:
    """What a template that is one expression stands for, whatever its type; else the text it renders."""
    inner = text.strip()
    if inner.startswith("{{") and inner.endswith("}}") and "{{" not in inner[2:]:
        value = _environment.compile_expression(inner[2:-2], undefined_to_none=False)(**row)
        if isinstance(value, jinja2.Undefined):
            raise _BadRow(f"has nothing for {inner}")
        return value
    rendered = render(text, row)
    try:
        return ast.literal_eval(rendered)
    except (ValueError, SyntaxError):
        return rendered
