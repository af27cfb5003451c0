"""What a schema of `Section` classes says about itself: names, aliases, types in words, documentation.

In: a `Section` subclass. Out: for a key as someone wrote it, the field it means; for a field, its `FieldDoc`. Nothing
here knows which sections exist; `pipeline` composes them.

    for doc in field_docs(Recipe): print(doc.path, doc.type, doc.default)
"""

from __future__ import annotations

import difflib
import types
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from headwater.core.config import Section, field_aliases, field_kind, field_unit


@dataclass(frozen=True, slots=True)
class FieldDoc:
    """A field as a person asks about it. `path` uses `[]` for an item of a list and `*` for a free key."""

    path: str
    type: str
    unit: str
    default: Any
    required: bool
    kind: str
    aliases: tuple[str, ...]
    doc: str
    section: bool
    """Whether the field is itself a block of fields."""
    derived: bool = False
    """Whether the default follows from other fields; `doc` says how."""

    def default_text(self) -> str:
        """The default as YAML would write it, or `required`."""
        if self.required:
            return "required"
        if self.section:
            return "a block"
        if self.derived:
            return "derived"
        return yaml_inline(self.default)


def alternatives(annotation: Any) -> list[Any]:
    """The members of a union, flattened; `Annotated` wrappers removed."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return alternatives(get_args(annotation)[0])
    if origin in (Union, types.UnionType):
        return [member for argument in get_args(annotation) for member in alternatives(argument)]
    return [annotation]


def is_section(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, Section)


def sections_of(annotation: Any) -> list[type[Section]]:
    """The `Section` members of a type."""
    return [member for member in alternatives(annotation) if is_section(member)]


def item_type(annotation: Any) -> Any | None:
    """The item type of a list or tuple type, or None."""
    for member in alternatives(annotation):
        origin = get_origin(member) or member
        if origin in (list, tuple, set, frozenset) and get_args(member):
            return get_args(member)[0]
        if getattr(origin, "__name__", "") == "Sequence" and get_args(member):
            return get_args(member)[0]
    return None


def value_type(annotation: Any) -> Any | None:
    """The value type of a mapping type, or None."""
    for member in alternatives(annotation):
        origin = get_origin(member)
        if (origin is dict or getattr(origin, "__name__", "") == "Mapping") and len(get_args(member)) == 2:
            return get_args(member)[1]
    return None


def tags_of(section: type[Section]) -> dict[str, tuple[Any, ...]]:
    """Fields with a closed set of values, which tell the members of a union apart (`kind: files`)."""
    return {
        name: get_args(info.annotation)
        for name, info in section.model_fields.items()
        if get_origin(info.annotation) is Literal
    }


def choose_section(members: list[type[Section]], value: dict[str, Any]) -> type[Section] | None:
    """The member of a union a block means: by its tag (`kind`), else the one that knows most of its keys.

    None when a tag is given that no member has: the tag's own error is then the one to report.
    """
    if len(members) == 1:
        return members[0]

    def fits(member: type[Section]) -> bool:
        return all(value[name] in allowed for name, allowed in tags_of(member).items() if name in value)

    fitting = [member for member in members if fits(member)]
    if not fitting:
        return None
    return max(fitting, key=lambda member: sum(key in names_of(member) for key in value))


def names_of(section: type[Section]) -> dict[str, str]:
    """Every key a block accepts, mapped to the dotted path of the field it sets, relative to the block."""
    names: dict[str, str] = dict(section.PATH_ALIASES)
    names.update((alias, target) for alias, (target, _) in section.VALUE_ALIASES.items())
    for name, info in section.model_fields.items():
        for alias in field_aliases(info):
            names[alias] = name
    return {**names, **{name: name for name in section.model_fields}}


def find_field(section: type[Section], path: tuple[str | int, ...]) -> FieldInfo | None:
    """The field a canonical path leads to, or None; list positions and free keys are passed over."""
    info: FieldInfo | None = None
    members: list[type[Section]] = [section]
    annotation: Any = None
    for element in path:
        found = next((member.model_fields[element] for member in members if element in member.model_fields), None)
        if found is not None:
            info, annotation = found, found.annotation
        elif annotation is not None:
            annotation = item_type(annotation) if isinstance(element, int) else value_type(annotation)
            info = FieldInfo.from_annotation(annotation) if annotation is not None else None
        if annotation is None:
            return None
        members = sections_of(annotation)
    return info


def nearest(name: str, known: list[str]) -> str | None:
    """The known name closest to a mistyped one, or None if nothing is close."""
    folded = {candidate.lower().replace("-", "_"): candidate for candidate in known}
    found = difflib.get_close_matches(name.lower().replace("-", "_"), list(folded), n=1, cutoff=0.6)
    return folded[found[0]] if found else None


def yaml_inline(value: Any) -> str:
    """A default value on one line, as a recipe would write it."""
    if isinstance(value, Section):
        value = value.model_dump(mode="json")
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Enum):
        return yaml_inline(value.value)
    if isinstance(value, int):
        return f"{value:_}" if abs(value) >= 100_000 else str(value)
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, list | tuple | set | frozenset):
        return "[" + ", ".join(yaml_inline(item) for item in value) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{yaml_inline(str(key))}: {yaml_inline(item)}" for key, item in value.items()) + "}"
    return _text_inline(str(value))


def _text_inline(text: str) -> str:
    from headwater.core.recipe_source import scalar

    plain = text and scalar(text) == text and all(letter.isalnum() or letter in "_-./ " for letter in text)
    if plain and text == text.strip() and text[0] not in "-.":
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t")
    return f'"{escaped}"'


_WORDS = {int: "integer", float: "number", bool: "true or false", str: "text", Path: "path", type(None): "null"}


def type_text(annotation: Any, info: FieldInfo | None = None) -> str:
    """A type in words: `integer >= 1`, `one of adamw, muon`, `list of text`."""
    words: list[str] = []
    limits = _limits(info)
    for member in alternatives(annotation):
        word = _member_text(member)
        if limits and member is not type(None):
            word, limits = f"{word} {limits}", ""
        if word not in words:
            words.append(word)
    return " or ".join(sorted(words, key=lambda word: word == "null"))


def _member_text(member: Any) -> str:
    origin = get_origin(member)
    if member in _WORDS:
        return _WORDS[member]
    if origin is Literal:
        choices = [yaml_inline(choice) for choice in get_args(member)]
        return choices[0] if len(choices) == 1 else "one of " + ", ".join(choices)
    if is_section(member):
        return "block"
    inner = item_type(member)
    if inner is not None:
        return f"list of {_plural(inner)}"
    inner = value_type(member)
    if inner is not None:
        return f"mapping of names to {type_text(inner)}"
    if isinstance(member, type) and issubclass(member, Enum):
        return "one of " + ", ".join(str(item.value) for item in member)
    return getattr(member, "__name__", str(member))


def _plural(annotation: Any) -> str:
    text = type_text(annotation)
    if text == "block" or (text.startswith("block") and set(text.split(" or ")) == {"block"}):
        return "blocks"
    return {"integer": "integers", "number": "numbers", "path": "paths"}.get(text, text)


def _limits(info: FieldInfo | None) -> str:
    if info is None:
        return ""
    parts: list[str] = []
    for constraint in _constraints(info):
        for attribute, sign in (("ge", ">="), ("gt", ">"), ("le", "<="), ("lt", "<")):
            bound = getattr(constraint, attribute, None)
            if bound is not None:
                parts.append(f"{sign} {bound}")
        if getattr(constraint, "multiple_of", None) is not None:
            parts.append(f"a multiple of {constraint.multiple_of}")
        if getattr(constraint, "min_length", None):
            parts.append(f"at least {constraint.min_length} long")
    return ", ".join(parts)


def _constraints(info: FieldInfo) -> Iterator[Any]:
    yield from info.metadata
    if get_origin(info.annotation) is Annotated:
        yield from get_args(info.annotation)[1:]


def field_docs(section: type[Section], prefix: str = "") -> Iterator[FieldDoc]:
    """Every field of a schema, depth first, in the order of declaration."""
    for name, info in section.model_fields.items():
        path = f"{prefix}{name}"
        yield _doc(section, name, info, path)
        yield from _inner_docs(info.annotation, path)


def _doc(section: type[Section], name: str, info: FieldInfo, path: str) -> FieldDoc:
    members = sections_of(info.annotation)
    derived = bool(info.default_factory_takes_validated_data)
    default = None if derived else info.get_default(call_default_factory=True)
    return FieldDoc(
        path=path,
        type=type_text(info.annotation, info),
        unit=field_unit(info),
        default=None if default is PydanticUndefined else default,
        required=info.is_required(),
        kind=field_kind(info),
        aliases=(*field_aliases(info), *sorted(key for key, target in section.PATH_ALIASES.items() if target == name)),
        doc=" ".join((info.description or "").split()),
        section=bool(members) and default is not None,
        derived=derived,
    )


def _inner_docs(annotation: Any, path: str) -> Iterator[FieldDoc]:
    seen: set[str] = set()
    for inner, suffix in ((annotation, ""), (item_type(annotation), "[]"), (value_type(annotation), ".*")):
        if inner is None:
            continue
        members = sections_of(inner)
        for member in members:
            for doc in field_docs(member, f"{path}{suffix}."):
                if doc.path not in seen:
                    seen.add(doc.path)
                    yield doc


def flat_aliases(section: type[Section], prefix: str = "") -> dict[str, list[str]]:
    """Canonical path -> the flat names (`PATH_ALIASES`) that reach it, each with the block it is written in."""
    result: dict[str, list[str]] = {}
    for alias, target in section.PATH_ALIASES.items():
        result.setdefault(f"{prefix}{target}", []).append(f"{prefix}{alias}")
    for name, info in section.model_fields.items():
        for member in sections_of(info.annotation):
            for path, names in flat_aliases(member, f"{prefix}{name}.").items():
                result.setdefault(path, []).extend(names)
    return result
