"""The pages of the documentation, taken apart: fenced blocks, and the commands in them.

In: a Markdown file. Out: `Block`s with language and line, `Command`s with what the page says they print.

    [command.text for block in blocks(README) for command in commands(block)]
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent.parent
README, README_ZH = REPOSITORY / "README.md", REPOSITORY / "README.zh.md"
SHELL = ("sh", "console")

_FENCE = re.compile(r"^(`{3,})([a-z]*)[ \t]*$")
_EXIT_CODE = re.compile(r"[ \t]#[ \t]*exits with (\d+)$")


def documentation() -> list[Path]:
    """Every page a reader may open: the READMEs and what is under docs/."""
    return [README, README_ZH, *sorted((REPOSITORY / "docs").rglob("*.md"))]


def name_of(page: Path) -> str:
    return page.relative_to(REPOSITORY).as_posix()


@dataclass(frozen=True)
class Block:
    """One fenced block. `line` is that of its first line of text."""

    page: Path
    line: int
    language: str
    text: str

    @property
    def place(self) -> str:
        return f"{name_of(self.page)}:{self.line}"


@dataclass(frozen=True)
class Command:
    """One command line. `code` is the exit code the page promises, `output` what it shows of the output."""

    place: str
    text: str
    code: int = 0
    output: tuple[str, ...] = ()


def blocks(page: Path) -> Iterator[Block]:
    """Fenced blocks in order. AssertionError for one that is not closed."""
    fence, language, start, held = "", "", 0, []
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), start=1):
        if fence and line == fence:
            yield Block(page, start, language, "\n".join(held) + "\n")
            fence = ""
        elif fence:
            held.append(line)
        elif match := _FENCE.match(line):
            fence, language, start, held = match[1], match[2], number + 1, []
    assert not fence, f"{name_of(page)}:{start - 1}: the block is not closed"


def commands(block: Block) -> Iterator[Command]:
    """The commands of a shell block. In `sh` every line is one; in `console` those after `$ `, the rest is output."""
    if block.language not in SHELL:
        return
    console = block.language == "console"
    found: list[tuple[int, str, list[str]]] = []
    going_on = False
    for number, line in enumerate(block.text.splitlines(), start=block.line):
        if going_on:
            found[-1] = (found[-1][0], f"{found[-1][1]} {line.strip()}", [])
        elif console and not line.startswith("$ "):
            found[-1][2].append(line)
            continue
        elif not line.strip() or line.lstrip().startswith("#"):
            continue
        else:
            found.append((number, line.removeprefix("$ ").strip(), []))
        going_on = found[-1][1].endswith("\\")
        if going_on:
            found[-1] = (found[-1][0], found[-1][1].removesuffix("\\").strip(), [])
    for number, text, output in found:
        match = _EXIT_CODE.search(text)
        place = f"{name_of(block.page)}:{number}"
        yield Command(place, without_comment(text), int(match[1]) if match else 0, tuple(output))


def without_comment(text: str) -> str:
    """A command line without the comment at its end; a `#` in quotes or inside a word is none."""
    quote = ""
    for at, letter in enumerate(text):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        elif letter == "#" and (at == 0 or text[at - 1] in " \t"):
            return text[:at].rstrip()
    return text
