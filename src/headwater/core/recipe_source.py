"""The text of a recipe as a tree of values that know their place.

In: YAML (or JSON, which is read as the YAML it nearly is). Out: a `Node` tree; each mapping value carries the
file, line and column of its key, so a later complaint can point at it. Scalars follow YAML 1.2's core schema, not
1.1's surprises: `no` and `on` are text, `12:30` is text, `2e12` and `1_000_000` are numbers. A duplicate
key is refused.

    node = parse_file(Path("recipes/quickstart.yaml"))
    node.value["train"].place        # recipes/quickstart.yaml:12:1
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from headwater.core.errors import RecipeError

MAX_BYTES = 4 << 20
"""A recipe is written by hand; a file larger than this is something else."""

MAX_NODES = 200_000
"""Stops anchors that expand exponentially."""

Scalar = None | bool | int | float | str


@dataclass(frozen=True, slots=True)
class Place:
    """Where a key or value stands: `file:line:column`, or only `file` (for example `--set train.steps=1`)."""

    file: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}" if self.line else self.file


@dataclass(slots=True)
class Node:
    """A value of a recipe. `place` is the place of its key in a mapping, or of the value itself in a list.

    `value` is a scalar, a list of nodes or a dict of nodes. `merge` is set on the mappings a dotted path implies
    (`--set train.steps=1` implies `train`), which add to what is there instead of replacing it. `written` is the
    key as the recipe spells it, where that differs from the schema's name.
    """

    place: Place
    value: Any
    merge: bool = False
    written: str = ""

    def plain(self) -> Any:
        """The value without places."""
        if isinstance(self.value, dict):
            return {key: node.plain() for key, node in self.value.items()}
        if isinstance(self.value, list):
            return [node.plain() for node in self.value]
        return self.value

    def kind(self) -> str:
        """What the value is, for messages."""
        return describe_kind(self.value)


def describe_kind(value: Any) -> str:
    """The kind of a plain value in words a recipe's writer uses."""
    if isinstance(value, dict):
        return "a block of keys"
    if isinstance(value, list | tuple):
        return "a list"
    if value is None:
        return "empty"
    if isinstance(value, bool):
        return "true/false"
    if isinstance(value, int | float):
        return "a number"
    return "text"


_INTEGER = re.compile(r"[-+]?[0-9]+(?:_[0-9]+)*")
_HEX = re.compile(r"0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(?:[0-9]+(?:_[0-9]+)*\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")
_SPECIAL = {".inf": float("inf"), "+.inf": float("inf"), "-.inf": float("-inf"), ".nan": float("nan")}


def scalar(text: str) -> Scalar:
    """The value of an unquoted scalar.

    >>> scalar("2e12"), scalar("16_777_216"), scalar("no"), scalar("true"), scalar("~")
    (2000000000000, 16777216, 'no', True, None)

    A number in exponent form that is whole becomes an integer, exactly (`6e23` has no rounding error).
    """
    if text in ("", "~", "null", "Null", "NULL"):
        return None
    if text in ("true", "True", "TRUE"):
        return True
    if text in ("false", "False", "FALSE"):
        return False
    if _INTEGER.fullmatch(text) and len(text) < 400:
        return int(text.replace("_", ""))
    if _HEX.fullmatch(text) and len(text) < 400:
        return int(text, 16)
    if _FLOAT.fullmatch(text):
        return _whole(text.replace("_", ""))
    return _SPECIAL.get(text.lower(), text)


def _whole(text: str) -> int | float:
    """An exact integer for `2e12` or `1.5e3`; a float for everything with a fraction or a plain decimal point."""
    mantissa, _, exponent = text.lower().partition("e")
    if not exponent:
        return float(text)
    digits, _, fraction = mantissa.partition(".")
    fraction = fraction.rstrip("0")
    power = int(exponent) if len(exponent) < 6 else 10**6
    if 0 <= power - len(fraction) <= 300:
        return int(digits + fraction or "0") * 10 ** (power - len(fraction))
    return float(text)


def parse_file(path: Path) -> Node:
    """Read and parse a recipe file. Raises `RecipeError` with the place for anything unreadable or malformed."""
    shown = str(path)
    try:
        if path.is_dir():
            raise RecipeError("this is a folder, not a recipe file", where=shown, mend="name the .yaml file in it")
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise RecipeError(
                f"the file has {size:,} bytes; a recipe is at most {MAX_BYTES:,}",
                where=shown,
                mend="check the path: this looks like data, not a recipe",
            )
        raw = path.read_bytes()
    except FileNotFoundError:
        raise RecipeError("no such recipe file", where=shown, mend=_suggest_file(path)) from None
    except OSError as error:
        raise RecipeError(f"cannot read the recipe: {error.strerror}", where=shown) from None
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise RecipeError(
            f"byte {raw[error.start]:#04x} is not UTF-8", where=f"{shown}:{line}", mend="save the file as UTF-8"
        ) from None
    if path.suffix == ".json":
        # YAML refuses tabs between tokens, which JSON allows (no JSON string holds a raw tab), and the pairs of
        # escapes JSON writes for characters beyond U+FFFF.
        text = _PAIR.sub(lambda pair: pair[1] + _character(pair[2], pair[3]), text.replace("\t", " "))
    return parse_text(text, shown)


_PAIR = re.compile(r"(?<!\\)((?:\\\\)*)\\u([dD][89abAB][0-9a-fA-F]{2})\\u([dD][c-fC-F][0-9a-fA-F]{2})")


def _character(high: str, low: str) -> str:
    return chr(0x10000 + (int(high, 16) - 0xD800) * 0x400 + int(low, 16) - 0xDC00)


def _suggest_file(path: Path) -> str:
    import difflib

    folder = path.parent if path.parent.is_dir() else Path()
    names = [entry.name for entry in folder.iterdir() if entry.suffix in (".yaml", ".yml", ".json")]
    near = difflib.get_close_matches(path.name, names, n=1, cutoff=0.5)
    if near:
        return f"did you mean {folder / near[0]}?"
    here = Path("recipes") / path.name
    if path.parent != Path("recipes") and here.exists():
        return f"did you mean {here}?"
    return "check the path; `headwater init PATH` writes a new recipe"


def parse_text(text: str, name: str) -> Node:
    """Parse YAML or JSON text; `name` stands for the file in places. The top level must be a mapping."""
    node = _compose(text, name)
    place = Place(name, 1, 1)
    if node is None:
        raise RecipeError("the recipe is empty", where=name, mend="`headwater init PATH` writes one to start from")
    tree = _Builder(name).build(node, place)
    if not isinstance(tree.value, dict):
        raise RecipeError(
            f"a recipe is a block of `section:` keys; this is {tree.kind()}",
            where=str(tree.place),
            mend="see `headwater init`",
        )
    return tree


def parse_value(text: str, name: str) -> Node:
    """Parse what stands right of `=` in `--set key=value`: a scalar, `[a, list]` or `{a: block}`."""
    node = _compose(text, name)
    place = Place(name)
    if node is None:
        return Node(place, None)
    tree = _Builder(name).build(node, place)
    return _at(tree, place)


def _at(node: Node, place: Place) -> Node:
    """The same tree with one place everywhere: a line and column inside an argument would mislead."""
    if isinstance(node.value, dict):
        return Node(place, {key: _at(child, place) for key, child in node.value.items()})
    if isinstance(node.value, list):
        return Node(place, [_at(child, place) for child in node.value])
    return Node(place, node.value)


def _compose(text: str, name: str) -> yaml.Node | None:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        node: yaml.Node | None = yaml.compose(text, Loader=loader)
        return node
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{name}:{mark.line + 1}:{mark.column + 1}" if mark else name
        raise RecipeError(
            f"not valid YAML: {error.problem or error.context}", where=where, mend=_yaml_mend(error, text)
        ) from None
    except yaml.reader.ReaderError as error:
        raise RecipeError(
            f"not valid YAML: {error.reason}", where=name, mend="remove control characters from the file"
        ) from None
    except RecursionError:
        raise RecipeError("blocks are nested too deeply to read", where=name) from None


def _yaml_mend(error: yaml.MarkedYAMLError, text: str) -> str:
    problem = f"{error.problem} {error.context}"
    if "cannot start any token" in problem and "\t" in text:
        return "indent with spaces, not tabs"
    if "single document" in problem:
        return "keep one document in a file: remove the `---` line"
    if "mapping values are not allowed" in problem:
        return "put the value on a line of its own, indented, or quote a text that contains ': '"
    return "check indentation, brackets and quotes at this place"


class _Builder:
    """Turns PyYAML's nodes into ours. Guards against recursive and exponentially expanding anchors."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._open: set[int] = set()
        self._count = 0

    def place(self, node: yaml.Node) -> Place:
        return Place(self.name, node.start_mark.line + 1, node.start_mark.column + 1)

    def build(self, node: yaml.Node, place: Place | None = None) -> Node:
        place = place or self.place(node)
        self._count += 1
        if self._count > MAX_NODES:
            raise RecipeError(f"anchors expand to more than {MAX_NODES:,} values", where=str(place))
        if isinstance(node, yaml.ScalarNode):
            return Node(place, self._scalar(node, place))
        if id(node) in self._open:
            raise RecipeError("an anchor contains itself", where=str(place), mend="break the cycle")
        self._open.add(id(node))
        try:
            if isinstance(node, yaml.SequenceNode):
                return Node(place, [self.build(child) for child in node.value])
            if isinstance(node, yaml.MappingNode):
                return Node(place, self._mapping(node))
        except RecursionError:
            raise RecipeError("blocks are nested too deeply to read", where=str(place)) from None
        finally:
            self._open.discard(id(node))
        raise RecipeError(f"cannot read a {node.tag} value", where=str(place))

    def _scalar(self, node: yaml.ScalarNode, place: Place) -> Scalar:
        standard = {"str", "int", "float", "bool", "null", "timestamp", "value"}
        kind = node.tag.removeprefix("tag:yaml.org,2002:")
        if kind not in standard:
            raise RecipeError(f"the YAML tag {node.tag} is not allowed", where=str(place), mend="write a plain value")
        text = str(node.value)
        if node.style in ("'", '"', "|", ">"):
            return text
        return scalar(text)

    def _mapping(self, node: yaml.MappingNode) -> dict[str, Node]:
        result: dict[str, Node] = {}
        merged: dict[str, Node] = {}
        for key_node, value_node in node.value:
            place = self.place(key_node)
            if not isinstance(key_node, yaml.ScalarNode):
                raise RecipeError("a key must be text", where=str(place), mend="quote the key, or indent it as a block")
            if key_node.tag == "tag:yaml.org,2002:merge":
                for key, child in self._merge_sources(value_node, place):
                    merged.setdefault(key, child)
                continue
            key = str(key_node.value)
            if key in result:
                raise RecipeError(
                    f"the key {key!r} is given twice (first at line {result[key].place.line})",
                    where=str(place),
                    mend="keep one of the two",
                )
            result[key] = self.build(value_node, place)
        return {**merged, **result}

    def _merge_sources(self, node: yaml.Node, place: Place) -> Iterator[tuple[str, Node]]:
        for source in node.value if isinstance(node, yaml.SequenceNode) else [node]:
            if not isinstance(source, yaml.MappingNode):
                raise RecipeError("`<<` merges blocks only", where=str(place), mend="point it at an anchor of a block")
            yield from self.build(source).value.items()
