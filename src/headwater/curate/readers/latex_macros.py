r"""A paper's own macros put in place: \newcommand, \def, \DeclareMathOperator. Bounded, whatever they are.

expand_macros(r"\newcommand{\R}{\mathbb{R}} in $\R^n$")       # " in $\mathbb{R}^n$"
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_DEFINED = re.compile(
    r"\\(?:(newcommand|renewcommand|providecommand|DeclareMathOperator|DeclareRobustCommand)\*?\s*"
    r"(?:\{\s*\\([A-Za-z@]+)\s*\}|\\([A-Za-z@]+))|(def|gdef|edef)\s*\\([A-Za-z@]+)((?:#[1-9])*))"
)
_ENVIRONMENTS = re.compile(r"\\(?:re)?newenvironment\*?\s*")
_PASSES = 6
_GROWTH = 3
_LONGEST = 4000
_LONGEST_ARGUMENT = 8000
_BRACES = re.compile(r"\\.|[{}]", re.DOTALL)
_SPACE = " \t\n"


@dataclass(frozen=True, slots=True)
class _Macro:
    arguments: int
    default: str | None
    body: str


def argument(text: str, position: int) -> tuple[str, int] | None:
    """The {argument} at `position`, white space before it aside, and where it ends; None if there is none."""
    while position < len(text) and text[position] in _SPACE:
        position += 1
    if position >= len(text) or text[position] != "{":
        return None
    depth = 0
    for found in _BRACES.finditer(text, position, position + _LONGEST_ARGUMENT):
        if found[0] == "{":
            depth += 1
        elif found[0] == "}":
            depth -= 1
            if not depth:
                return text[position + 1 : found.start()], found.end()
    return None


def option(text: str, position: int) -> int:
    """After an [option] at `position`; `position` itself if there is none."""
    start = position
    while start < len(text) and text[start] in " \t":
        start += 1
    if text[start : start + 1] != "[":
        return position
    end = text.find("]", start, start + _LONGEST)
    return end + 1 if end >= 0 else position


def expand_macros(text: str) -> str:
    """The text with its macros in place and their definitions gone. A macro that calls itself stops after a few
    rounds, and expansion as a whole when the text would be more than three times as long."""
    macros, text = _definitions(text)
    if not macros:
        return text
    names = "|".join(sorted(map(re.escape, macros), key=len, reverse=True))
    call = re.compile(rf"\\({names})(?![A-Za-z@])")
    limit = _GROWTH * len(text) + _LONGEST
    for _ in range(_PASSES):
        expanded = _expand(text, call, macros, limit)
        if expanded is None or expanded == text:
            break
        text = expanded
    return call.sub("", text)


def _definitions(text: str) -> tuple[dict[str, _Macro], str]:
    macros: dict[str, _Macro] = {}
    kept: list[str] = []
    position = 0
    for found in _DEFINED.finditer(text):
        if found.start() < position:
            continue
        kept.append(text[position : found.start()])
        position = found.end()
        name = found[2] or found[3] or found[5]
        count, default = 0, None
        if found[4]:
            count = len(found[6]) // 2
        else:
            after = option(text, position)
            if after != position:
                digits = text[position:after].strip().strip("[]").strip()
                count = int(digits) if digits.isdigit() and len(digits) == 1 else 0
                position, again = after, option(text, after)
                if again != position:
                    default = text[position:again].strip()[1:-1]
                    position = again
        body = argument(text, position)
        if body is None:
            continue
        position = body[1]
        if len(body[0]) <= _LONGEST:
            value = f"\\operatorname{{{body[0]}}}" if found[1] == "DeclareMathOperator" else body[0]
            macros.setdefault(name, _Macro(count, default, value))
    kept.append(text[position:])
    rest = "".join(kept)
    kept, position = [], 0
    for found in _ENVIRONMENTS.finditer(rest):
        if found.start() < position:
            continue
        kept.append(rest[position : found.start()])
        position = found.end()
        for _ in range(3):
            while (after := option(rest, position)) != position:
                position = after
            block = argument(rest, position)
            position = block[1] if block else position
    return macros, "".join([*kept, rest[position:]])


def _filled(body: str, values: list[str]) -> str:
    return re.sub(r"#([1-9])", lambda part: values[int(part[1]) - 1] if int(part[1]) <= len(values) else "", body)


def _expand(text: str, call: re.Pattern[str], macros: dict[str, _Macro], limit: int) -> str | None:
    kept: list[str] = []
    position = size = 0
    for found in call.finditer(text):
        if found.start() < position:
            continue
        kept.append(text[position : found.start()])
        position = found.end()
        macro = macros[found[1]]
        values: list[str] = []
        if macro.default is not None:
            after = option(text, position)
            values.append(text[position:after].strip()[1:-1] if after != position else macro.default)
            position = after
        while len(values) < macro.arguments:
            value = argument(text, position)
            if value is None:
                values.append("")
            else:
                values.append(value[0])
                position = value[1]
        if not macro.arguments and text[position : position + 2] == "{}":
            position += 2
        body = _filled(macro.body, values)
        if body[-1:].isalpha() and re.search(r"\\[A-Za-z]+\Z", body) and text[position : position + 1].isalpha():
            body += " "
        kept.append(body)
        size += len(body)
        if size > limit:
            return None
    kept.append(text[position:])
    expanded = "".join(kept)
    return None if len(expanded) > limit else expanded
