"""Where prose ends and code begins in Markdown: fenced blocks, inline code, addresses."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

_FENCE = re.compile(r"[ \t]*+(`{3,}+|~{3,}+)([^\n]*+)")
_FENCE_LINE = re.compile(r"\n" + _FENCE.pattern)  # begins with a character: that is found fast
_INLINE_CODE = re.compile(r"(`[^`\n]++`)")
_REST = r"://[^\s<>\"'`)\u3000-\u9fff\uff00-\uffef]+"
_CODE_OR_ADDRESS = re.compile(rf"(`[^`\n]++`|https?{_REST}|ftp{_REST})")  # each begins with a character: twice as fast


def split_fences(text: str) -> list[str]:
    """Prose and fenced code in turn, beginning and ending with prose, which may be empty; joined they are `text`.

    Fences are three or more ` or ~ at the start of a line; one that is not closed reaches to the end of the text.
    """
    if "```" not in text and "~~~" not in text:
        return [text]
    pieces: list[str] = []
    position, fence = 0, ""
    for start, match in _fence_lines(text):
        mark, rest = match[1], match[2]
        if not fence:
            if mark[0] == "`" and "`" in rest:
                continue  # ```code``` on one line is inline code
            pieces.append(text[position:start])
            position, fence = start, mark
        elif mark.startswith(fence) and not rest.strip():
            pieces.append(text[position : match.end()])
            position, fence = match.end(), ""
    pieces.append(text[position:])
    return [*pieces, ""] if fence else pieces


def _fence_lines(text: str) -> Iterator[tuple[int, re.Match[str]]]:
    """Lines that could open or close a block: where they start, and their mark and what follows it."""
    if (first := _FENCE.match(text)) is not None:
        yield 0, first
    for match in _FENCE_LINE.finditer(text):
        yield match.start() + 1, match


def outside_code(text: str, change: Callable[[str], str]) -> str:
    """Apply `change` to each part of `text` that is not `inline code`."""
    if "`" not in text:
        return change(text)
    parts = _INLINE_CODE.split(text)
    parts[::2] = [change(part) for part in parts[::2]]
    return "".join(parts)


def prose(pieces: list[str]) -> str:
    """The words a person would read in what `split_fences` gave: no code blocks, inline code or addresses."""
    return prose_and_rest(pieces)[0]


def prose_and_rest(pieces: list[str]) -> tuple[str, list[str]]:
    """What `prose` gives, and each part that it leaves out, in whose place there is a space or a line end."""
    text = "\n".join(pieces[::2])
    left_out = pieces[1::2]
    if "`" not in text and "://" not in text:
        return text, left_out
    parts = _CODE_OR_ADDRESS.split(text)
    return " ".join(parts[::2]), left_out + parts[1::2]
