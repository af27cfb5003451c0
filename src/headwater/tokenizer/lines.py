"""Prepares documents for SentencePiece's trainer: lines of bounded length, none repeated too often.

In: texts. Out: strings the trainer accepts. A line keeps the line break before it, because indentation after a line
break is a token of its own and must not be learned twice. Long lines are cut and repeated ones capped, since the
trainer drops lines above its limit and slows to a halt on long repeats; characters it reserves are left out.

    list(training_lines(["a\\n  b"], max_repeats=8))      # ['a', '\\n  b']
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import xxhash

MAX_LINE_CHARACTERS = 2048
"""Longer lines are cut, if possible at a space; well below the trainer's `max_sentence_length`."""

RESERVED = str.maketrans({"\u2581": None, "\u2585": None, "\x00": None})
"""U+2581 stands for a space and U+2585 for an unknown character inside the trainer; it counts NUL as an error."""


def training_lines(texts: Iterable[str], max_repeats: int) -> Iterator[str]:
    """Lines of all texts in order, each distinct one at most `max_repeats` times."""
    seen: dict[int, int] = {}
    for text in texts:
        for number, line in enumerate(text.translate(RESERVED).split("\n")):
            for part in _cut("\n" + line if number else line):
                if not part.strip():
                    continue
                key = xxhash.xxh3_64_intdigest(part.encode("utf-8"))
                count = seen.get(key, 0)
                if count < max_repeats:
                    seen[key] = count + 1
                    yield part


def _cut(line: str) -> Iterator[str]:
    while len(line) > MAX_LINE_CHARACTERS:
        space = line.rfind(" ", MAX_LINE_CHARACTERS // 2, MAX_LINE_CHARACTERS)
        end = space if space > 0 else MAX_LINE_CHARACTERS
        yield line[:end]
        line = line[end:]
    yield line
