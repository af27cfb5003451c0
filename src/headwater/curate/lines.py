"""Lines of a byte stream, with offset and number; a line over the cap is counted, never held.

for line in split_lines(stream.chunks(), cap=1 << 20): line.offset, line.number, line.data
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass


@dataclass(slots=True)
class Line:
    """One line without its newline. `data` is None if it was longer than the cap; `size` counts its bytes, newline
    included; `whole` says whether a newline ended it; `number` counts from 1."""

    offset: int
    number: int
    data: bytes | None
    size: int
    whole: bool


def split_lines(chunks: Iterable[bytes], cap: int, offset: int = 0) -> Iterator[Line]:
    """Split on \\n alone. Memory is bounded by `cap` and one chunk; `offset` is that of the first byte."""
    number = 0
    parts: list[bytes] = []  # of the line that is still open; none once it exceeds the cap
    size = 0  # bytes of the open line
    for chunk in chunks:
        pieces = chunk.split(b"\n")
        last = pieces.pop()
        for piece in pieces:
            number += 1
            if size:
                size += len(piece)
                data = b"".join([*parts, piece]) if size <= cap else None
                parts.clear()
            else:
                size = len(piece)
                data = piece if size <= cap else None
            yield Line(offset, number, data, size + 1, True)
            offset += size + 1
            size = 0
        if last:
            size += len(last)
            if size <= cap:
                parts.append(last)
            else:
                parts.clear()
    if size:
        yield Line(offset, number + 1, b"".join(parts) if size <= cap else None, size, False)
