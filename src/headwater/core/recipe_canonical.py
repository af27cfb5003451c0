"""A recipe's keys brought to the schema's names, every mistake noted with its place.

In: a `Node` tree as written and a `Section` schema. Out: the same tree under canonical names (aliases resolved, flat
names of other projects lifted to where they belong) and a list of `Problem`s: unknown keys with the nearest known name,
the same field set under two names, a truth value where a number belongs. Values themselves are left to pydantic.

    problems: list[Problem] = []
    tree = canonical(node, Recipe, problems)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic.fields import FieldInfo

from headwater.core.config import Section, field_unit
from headwater.core.recipe_schema import (
    alternatives,
    choose_section,
    field_docs,
    item_type,
    names_of,
    nearest,
    sections_of,
    tags_of,
    value_type,
)
from headwater.core.recipe_source import Node, Place


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake in a recipe: the place, the field's path, what is wrong with which value, and the mend."""

    place: Place
    field: str
    what: str
    mend: str = ""

    def __str__(self) -> str:
        return f"{self.place}: {self.what}" + (f"\n  mend: {self.mend}" if self.mend else "")


def dotted(path: tuple[str | int, ...]) -> str:
    """`("collect", "sources", 0, "path")` -> `collect.sources[0].path`."""
    text = ""
    for element in path:
        text += f"[{element}]" if isinstance(element, int) else f".{element}" if text else str(element)
    return text


def canonical(node: Node, schema: type[Section], problems: list[Problem], base: Node | None = None) -> Node:
    """The tree under canonical names. `base` is the tree an override will be laid on: it tells which member of a
    union a partial block belongs to."""
    return _Canonical(schema, problems).block(node, schema, (), base)


class _Canonical:
    def __init__(self, schema: type[Section], problems: list[Problem]) -> None:
        self.schema = schema
        self.problems = problems

    def complain(self, node: Node, path: tuple[str | int, ...], what: str, mend: str = "") -> None:
        self.problems.append(Problem(node.place, dotted(path), what, mend))

    def value(self, node: Node, annotation: Any, info: FieldInfo | None, path: tuple, base: Node | None) -> Node:
        if isinstance(node.value, dict):
            return self.mapping(node, annotation, path, base)
        if isinstance(node.value, list):
            inner = item_type(annotation)
            if inner is None:
                return node
            items = [self.value(child, inner, None, (*path, place), None) for place, child in enumerate(node.value)]
            return Node(node.place, items, node.merge, node.written)
        short = next((section for section in sections_of(annotation) if section.SHORT), None)
        if short is not None and node.value is not None:
            inside = Node(node.place, {short.SHORT: Node(node.place, node.value)}, True, node.written)
            return self.block(inside, short, path, base)
        return self.leaf(node, annotation, info, path)

    def mapping(self, node: Node, annotation: Any, path: tuple, base: Node | None) -> Node:
        members = sections_of(annotation)
        if members:
            known = {key: child.value for key, child in node.value.items()}
            if base is not None and isinstance(base.value, dict):
                known = {**{key: child.value for key, child in base.value.items()}, **known}
            member = choose_section(members, known)
            if member is None:
                self.unknown_tag(node, members, known, path)
                return node
            return self.block(node, member, path, base)
        inner = item_type(annotation)
        if inner is not None and node.merge:
            return self.positions(node, inner, path, base)
        inner = value_type(annotation)
        if inner is None:
            return node
        below = base.value if base is not None and isinstance(base.value, dict) else {}
        items = {key: self.value(child, inner, None, (*path, key), below.get(key)) for key, child in node.value.items()}
        return Node(node.place, items, node.merge, node.written)

    def unknown_tag(self, node: Node, members: list[type[Section]], known: dict[str, Any], path: tuple) -> None:
        for name in {name: None for member in members for name in tags_of(member) if name in known}:
            choices = [choice for member in members for choice in tags_of(member).get(name, ())]
            if known[name] not in choices:
                near = nearest(str(known[name]), [str(choice) for choice in choices])
                listed = ", ".join(str(choice) for choice in choices)
                hint = f"did you mean {near}? " if near else ""
                self.complain(
                    node, path, f"{dotted(path)}: {name} {known[name]!r} is not known", f"{hint}known: {listed}"
                )
                return

    def positions(self, node: Node, inner: Any, path: tuple, base: Node | None) -> Node:
        """`--set collect.sources.0.path=x`: the digits name an item of the list the recipe has."""
        items = base.value if base is not None and isinstance(base.value, list) else []
        result: dict[str, Node] = {}
        for key, child in node.value.items():
            if not key.isdigit() or int(key) >= len(items):
                count = f"the recipe lists {len(items)}, numbered from 0" if items else "the recipe lists none"
                self.complain(child, (*path, key), f"{dotted(path)} has no item {key}", count)
                continue
            result[key] = self.value(child, inner, None, (*path, int(key)), items[int(key)])
        return Node(node.place, result, node.merge, node.written)

    def block(self, node: Node, section: type[Section], path: tuple, base: Node | None) -> Node:
        names = names_of(section)
        gathered: dict[str, list[Node]] = {}
        for written, raw in self._pairs(node.value, names, section, ""):
            target = names.get(written)
            if target is None:
                self.unknown(raw, written, section, names, path)
                continue
            child = self.translated(raw, written, section, path)
            if child is None:
                continue
            name, _, rest = target.partition(".")
            gathered.setdefault(name, []).append(_wrap(rest, child, written))
        below = base.value if base is not None and isinstance(base.value, dict) else {}
        result: dict[str, Node] = {}
        for name, children in gathered.items():
            info = section.model_fields[name]
            here = (*path, name)
            for child in children:
                ready = self.value(child, info.annotation, info, here, below.get(name))
                result[name] = self.combine(result[name], ready, here) if name in result else ready
        return Node(node.place, result, node.merge, node.written)

    def translated(self, node: Node, written: str, section: type[Section], path: tuple) -> Node | None:
        """The value in our words, where the key is another project's and its values are too; None: it says nothing."""
        if written not in section.VALUE_ALIASES or isinstance(node.value, dict | list):
            return node
        try:
            value = section.VALUE_ALIASES[written][1](node.value)
        except ValueError as error:
            what, _, mend = str(error).partition("\n  mend: ")
            self.complain(node, (*path, written), f"{dotted((*path, written))}: {what}", mend)
            return None
        return None if value is None else Node(node.place, value, node.merge, node.written)

    def _pairs(
        self, value: dict[str, Node], names: dict[str, str], section: type[Section], prefix: str
    ) -> list[tuple[str, Node]]:
        """The keys as written; a block that only dotted aliases know (`zero_optimization.stage`) is opened."""
        pairs: list[tuple[str, Node]] = []
        for key, child in value.items():
            name = f"{prefix}{key}"
            opens = isinstance(child.value, dict) and any(known.startswith(f"{name}.") for known in names)
            if opens and (name not in names or name in section.VALUE_ALIASES):
                pairs.extend(self._pairs(child.value, names, section, f"{name}."))
            else:
                pairs.append((name, child))
        return pairs

    def combine(self, one: Node, two: Node, path: tuple) -> Node:
        """Two keys that reach the same field: fine if they fill different parts of it, refused if they collide."""
        if isinstance(one.value, dict) and isinstance(two.value, dict) and (one.merge or two.merge):
            merged = dict(one.value)
            for key, child in two.value.items():
                merged[key] = self.combine(merged[key], child, (*path, key)) if key in merged else child
            return Node(one.place, merged, one.merge and two.merge, one.written)
        first, second = one.written or str(path[-1]), two.written or str(path[-1])
        self.complain(
            two,
            path,
            f"{second!r} and {first!r} (line {one.place.line}) both set {dotted(path)}",
            "keep one of the two",
        )
        return one

    def unknown(self, node: Node, key: str, section: type[Section], names: dict[str, str], path: tuple) -> None:
        where = f"in {dotted(path)}" if path else "at the top level of a recipe"
        what = f"unknown key {key!r} {where}"
        near = nearest(key, list(names))
        elsewhere = [  # a block of another project's (`zero_optimization`) is known by what is in it
            doc.path
            for doc in field_docs(self.schema)
            if key in (doc.path.rpartition(".")[2], *doc.aliases, *(a.partition(".")[0] for a in doc.aliases))
        ]
        if elsewhere and near != key:
            mend = f"{key!r} is known as {' or '.join(elsewhere[:3])}"
        elif near:
            target = names[near]
            mend = f"did you mean {near!r}?" + (f" (it sets {dotted((*path, target))})" if target != near else "")
        else:
            known = ", ".join(list(section.model_fields)[:12])
            mend = f"known here: {known}" + (" ..." if len(section.model_fields) > 12 else "")
        self.complain(node, (*path, key), what, mend)

    def leaf(self, node: Node, annotation: Any, info: FieldInfo | None, path: tuple) -> Node:
        members = alternatives(annotation)
        number = int in members or float in members
        if node.value is None and sections_of(annotation) and type(None) not in members:
            return Node(node.place, {}, node.merge, node.written)  # a section whose every line is a comment
        if isinstance(node.value, bool) and number and bool not in members:
            self.complain(node, path, f"{dotted(path)} is a number; the value here is {str(node.value).lower()}")
            return node
        if isinstance(node.value, float) and node.value - node.value != 0:
            self.complain(node, path, f"{dotted(path)} = {node.value} is not a finite number")
            return Node(node.place, 0.0, node.merge, node.written)
        if isinstance(node.value, str) and float in members and info is not None and field_unit(info) == "ratio":
            return Node(node.place, _percent(node.value), node.merge, node.written)
        return node


def _percent(text: str) -> str | float:
    """`45%` is 0.45 where a ratio is expected."""
    number = text.strip()
    if number.endswith("%"):
        try:
            return float(number[:-1]) / 100
        except ValueError:
            return text
    return text


def _wrap(rest: str, child: Node, written: str) -> Node:
    """The block a flat name stands in: `weight_decay: 0.1` -> `{weight_decay: 0.1}` for `optimizer`."""
    node = Node(child.place, child.value, child.merge, written)
    for name in reversed(rest.split(".") if rest else []):
        node = Node(child.place, {name: node}, True, written)
    return node


def overlay(base: Node | None, top: Node) -> Node:
    """`top` laid on `base`, both canonical: implied blocks add to what is there, every other value replaces it."""
    if base is None or not top.merge or not isinstance(top.value, dict):
        return _without_merge(top)
    if isinstance(base.value, list):
        items = list(base.value)
        for key, child in top.value.items():
            items[int(key)] = overlay(items[int(key)], child)
        return Node(base.place, items, base.merge, base.written)
    if not isinstance(base.value, dict):
        return _without_merge(top)
    merged = dict(base.value)
    for key, child in top.value.items():
        merged[key] = overlay(merged.get(key), child)
    return Node(base.place, merged, base.merge, base.written)


def _without_merge(node: Node) -> Node:
    if isinstance(node.value, dict):
        value = {key: _without_merge(child) for key, child in node.value.items()}
        return Node(node.place, value, False, node.written)
    return node
