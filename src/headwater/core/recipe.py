"""Loading a recipe: one file and some overrides into one frozen, typed schema, or every mistake in it at once.

In: a path (YAML or JSON), a `Section` schema, `--set key=value` texts. Out: `Loaded`, whose `config` is an instance of
the schema. A recipe with mistakes raises one `RecipeError` that lists them all with file, line, field, value and mend.

    loaded = load_recipe(Path("recipes/quickstart.yaml"), Recipe, ["train.optimizer.lr=3e-4"])
    loaded.config.train.optimizer.lr
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar, get_args, get_origin

from pydantic import ValidationError

from headwater.core.config import Section
from headwater.core.errors import HeadwaterError, RecipeError
from headwater.core.recipe_canonical import Problem, canonical, dotted, overlay
from headwater.core.recipe_schema import (
    alternatives,
    choose_section,
    find_field,
    nearest,
    sections_of,
    type_text,
    yaml_inline,
)
from headwater.core.recipe_source import Node, Place, describe_kind, parse_file, parse_text, parse_value

S = TypeVar("S", bound=Section)


class RecipeProblems(RecipeError):
    """All mistakes of one recipe; `problems` has them one by one."""

    def __init__(self, problems: Sequence[Problem], source: str) -> None:
        self.problems = list(problems)
        first = self.problems[0]
        if len(self.problems) == 1:
            super().__init__(first.what, where=str(first.place), mend=first.mend)
            return
        lines = [
            f"  {problem.place}: {problem.what}" + (f"\n      mend: {problem.mend}" if problem.mend else "")
            for problem in self.problems
        ]
        super().__init__("\n".join([f"{len(lines)} mistakes:", *lines]), where=source)


@dataclass(frozen=True)
class Loaded(Generic[S]):
    """A recipe as loaded. `tree` holds the values the file and overrides set, under canonical names, with places."""

    config: S
    tree: Node
    source: str

    def place(self, field: str) -> Place:
        """Where a field (dotted canonical path) was set; where the nearest enclosing block is, if it was not."""
        node = self.tree
        for element in re.findall(r"[^.\[\]]+", field):
            if isinstance(node.value, dict) and element in node.value:
                node = node.value[element]
            elif isinstance(node.value, list) and element.isdigit() and int(element) < len(node.value):
                node = node.value[int(element)]
            else:
                break
        return node.place

    def is_set(self, field: str) -> bool:
        """Whether the recipe or an override gives a value for a field (dotted canonical path)."""
        node = self.tree
        for element in field.split("."):
            if not isinstance(node.value, dict) or element not in node.value:
                return False
            node = node.value[element]
        return True


def load_recipe(path: Path, schema: type[S], overrides: Sequence[str] = ()) -> Loaded[S]:
    """Load a recipe file. Raises `RecipeError` (see `RecipeProblems`) for everything that is wrong with it."""
    return _load(parse_file(path), str(path), schema, overrides)


def loads_recipe(text: str, schema: type[S], overrides: Sequence[str] = (), name: str = "recipe") -> Loaded[S]:
    """Load a recipe from text; `name` stands for the file in messages."""
    return _load(parse_text(text, name), name, schema, overrides)


def _load(node: Node, source: str, schema: type[S], overrides: Sequence[str]) -> Loaded[S]:
    problems: list[Problem] = []
    tree = canonical(node, schema, problems)
    for override in overrides:
        top = canonical(parse_override(override), schema, problems, base=tree)
        if not problems:
            tree = overlay(tree, top)
    config = None
    try:
        config = schema.model_validate(tree.plain())
    except ValidationError as error:
        noted = {problem.field for problem in problems}
        found = _problems(error, tree, schema)
        problems.extend(problem for problem in found if not _covered(problem.field, noted))
    except HeadwaterError as error:
        problems.append(Problem(tree.place, error.where, error.what, error.mend))
    if problems or config is None:
        raise RecipeProblems(sorted(problems, key=lambda problem: (problem.place.line, problem.place.column)), source)
    return Loaded(config, tree, source)


def _covered(name: str, noted: set[str]) -> bool:
    """Whether a field or a block around it has been complained about already."""
    return any(name == other or (other and name.startswith((f"{other}.", f"{other}["))) for other in noted)


def parse_override(text: str) -> Node:
    """`train.optimizer.lr=3e-4` as a tree of implied blocks around a value.

    A path may go through lists by position: `collect.sources.0.path=x` or `collect.sources[0].path=x`.
    """
    place = Place(f"--set {text}")
    path, equals, value = text.partition("=")
    elements = re.findall(r"[^.\[\]]+", path)
    if not equals or not elements or re.fullmatch(r"[^.\[\]]+(?:\.[^.\[\]]+|\[\d+\])*", path.strip()) is None:
        raise RecipeError(
            f"cannot read the override {text!r}", where="--set", mend="write FIELD=VALUE, for example train.steps=100"
        )
    node = parse_value(value, place.file)
    for element in reversed(elements):
        node = Node(place, {element.strip(): node}, True)
    return node


def _problems(error: ValidationError, tree: Node, schema: type[Section]) -> list[Problem]:
    """pydantic's complaints, one for each field, in words that name the place, the value and the mend."""
    grouped: dict[tuple[str | int, ...], list[dict[str, Any]]] = {}
    places: dict[tuple[str | int, ...], Node] = {}
    for detail in error.errors(include_url=False):
        if detail["type"] == "default_factory_not_called":
            continue  # its default follows from a field that is itself wrong, and reported
        located = _locate(tuple(detail["loc"]), tree, schema, detail["type"])
        if located is None:
            continue
        path, node = located
        grouped.setdefault(path, []).append(dict(detail))
        places[path] = node
    return [_problem(path, details, places[path], schema) for path, details in grouped.items()]


def _locate(
    loc: tuple[str | int, ...], tree: Node, schema: type[Section], kind: str
) -> tuple[tuple[str | int, ...], Node] | None:
    """pydantic's location as a path of ours and the node there; None if it is about a union member not meant."""
    path: list[str | int] = []
    node = tree
    members: list[type[Section]] = [schema]
    for position, element in enumerate(loc):
        value = node.value
        if isinstance(value, dict) and element in value:
            node = value[str(element)]
            path.append(element)
        elif isinstance(value, list) and isinstance(element, int) and element < len(value):
            node = value[element]
            path.append(element)
        else:
            named = next((member for member in members if member.__name__ == element), None)
            if named is not None and isinstance(value, dict):
                meant = choose_section(members, {key: child.plain() for key, child in value.items()})
                if meant is not None and meant is not named:
                    return None
                members = [named]
                continue
            if any(element in member.model_fields for member in members):
                path.append(element)  # a missing field, or a default that does not fit
            elif position == len(loc) - 1 and kind == "missing":
                path.append(element)
            continue
        info = find_field(schema, tuple(path))
        if info is not None:
            members = sections_of(info.annotation)
    return tuple(path), node


def _problem(path: tuple[str | int, ...], details: list[dict[str, Any]], node: Node, schema: type[Section]) -> Problem:
    name = dotted(path) or "the recipe"
    info = find_field(schema, path)
    detail = details[0]
    kind, context = detail["type"], detail.get("ctx", {})
    shown = describe_kind(node.value) if isinstance(node.value, dict | list) else _shown(node.value)
    if kind == "missing":
        example = f" ({type_text(info.annotation, info)})" if info is not None else ""
        return Problem(node.place, name, f"{name} is required and not given", f"add `{path[-1]}:`{example}")
    if kind in ("value_error", "assertion_error"):
        message = str(context.get("error", detail["msg"])).strip() or detail["msg"]
        prefix = "" if message.startswith(name) or not path else f"{name}: "
        what, _, mend = message.partition("\n  mend: ")
        return Problem(node.place, name, f"{prefix}{what}", mend)
    if kind == "string_pattern_mismatch":
        return Problem(node.place, name, f"{name} is {shown}; it must match {context.get('pattern')}")
    limit = _limit_text(kind, context)
    if limit and len(details) == 1:
        return Problem(node.place, name, f"{name} = {shown} must be {limit}")
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        tag = str(context.get("discriminator", "kind")).strip("'")
        given = context.get("tag")
        known = str(context.get("expected_tags", "")).replace("'", "")
        what = f"{name}: {tag} {given!r} is not known" if given else f"{name} does not say its {tag!r}"
        return Problem(node.place, name, what, f"known: {known}" if known else f"add `{tag}:`")
    if info is None:
        return Problem(node.place, name, f"{name} = {shown}: {detail['msg']}")
    return Problem(
        node.place,
        name,
        f"{name} is {shown}; expected {type_text(info.annotation, info).replace('block', 'a block of keys')}",
        _value_mend(node, info.annotation),
    )


def _shown(value: Any) -> str:
    """A value as the recipe has it, text always in quotes and cut short."""
    if isinstance(value, str):
        return repr(value if len(value) <= 80 else value[:77] + "...")
    return yaml_inline(value)


def _limit_text(kind: str, context: dict[str, Any]) -> str:
    words = {
        "greater_than": ("more than", "gt"),
        "greater_than_equal": ("at least", "ge"),
        "less_than": ("less than", "lt"),
        "less_than_equal": ("at most", "le"),
        "multiple_of": ("a multiple of", "multiple_of"),
    }
    if kind in words:
        text, key = words[kind]
        return f"{text} {context.get(key)}"
    if kind in ("too_short", "string_too_short"):
        return f"at least {context.get('min_length')} long"
    if kind in ("too_long", "string_too_long"):
        return f"at most {context.get('max_length')} long"
    return ""


def _value_mend(node: Node, annotation: Any) -> str:
    """Help for a value of the wrong type: the nearest choice, or how to write it."""
    members = alternatives(annotation)
    choices = [choice for member in members if get_origin(member) is not None for choice in _literals(member)]
    value = node.value
    if choices and isinstance(value, str):
        near = nearest(value, [choice for choice in choices if isinstance(choice, str)])
        return f"did you mean {near}?" if near else ""
    if str in members and isinstance(value, bool | int | float):
        return "put text that looks like a number or a truth value in quotes"
    if isinstance(value, str) and (int in members or float in members):
        if re.fullmatch(r"[0-9][0-9,]*(\.[0-9]+)?", value):
            return f"write {value.replace(',', '_')}"
        if re.fullmatch(r"[0-9.]+ ?[kKmMgGbBtT]", value):
            power = {"k": 3, "m": 6, "g": 9, "b": 9, "t": 12}[value[-1].lower()]
            return f"write {value[:-1].strip()}e{power}"
    if isinstance(value, dict) and not sections_of(annotation):
        return "write one value, not a block"
    return ""


def _literals(member: Any) -> tuple[Any, ...]:
    from typing import Literal

    return get_args(member) if get_origin(member) is Literal else ()
