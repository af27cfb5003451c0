"""The new lines of a JSON Lines file that another process writes, each time it is asked.

In: a path that may be missing, grow, be cut back (a run that went on from an earlier checkpoint) or replaced. Out:
batches of parsed objects, and whether all given before is void. What cannot be read is counted, never raised.

    tail = JsonlTail(path); tail.read() -> (restarted, iterator of lists of objects)
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

ANCHOR_BYTES = 256
CHUNK_BYTES = 1 << 17
"""Few objects live at a time, which caches and the garbage collector like: blocks of 4 MB take 1.6 times as long."""


class JsonlTail:
    """Reads on from where it was; from near the end at first, if only the `last_bytes` are asked for.

    `broken`: lines that are not JSON; `odd`: JSON that is no object; `torn`: bytes of an unfinished last line;
    `problem`: why the file cannot be read at all, or "".
    """

    def __init__(self, path: Path, last_bytes: int | None = None) -> None:
        self.path = path
        self._last_bytes = last_bytes
        self._forget()

    def _forget(self) -> None:
        self._offset = 0
        self._anchor = b""
        self._file: tuple[int, int] | None = None
        self.broken = self.odd = self.torn = 0
        self.problem = ""

    def read(self) -> tuple[bool, Iterator[list[dict[str, Any]]]]:
        """(True if the file is another than before and everything given so far is void, batches of new objects).

        The batches must be drained before the next call.
        """
        restarted = self._replaced()
        if restarted:
            self._forget()
        return restarted, self._batches()

    def _replaced(self) -> bool:
        """Cut back or replaced: the bytes before the place reached are no longer those that were read there."""
        if not self._offset:
            return False
        try:
            with open(self.path, "rb") as file:
                file.seek(self._offset - len(self._anchor))
                return file.read(len(self._anchor)) != self._anchor
        except OSError:
            return True

    def _batches(self) -> Iterator[list[dict[str, Any]]]:
        try:
            file = open(self.path, "rb")  # noqa: SIM115 - closed below
        except FileNotFoundError:
            return
        except OSError as error:
            self.problem = f"{self.path.name} cannot be read: {error.strerror}"
            return
        with file:
            if self._last_bytes is not None and not self._offset:
                self._offset = max(0, os.fstat(file.fileno()).st_size - self._last_bytes)
            file.seek(self._offset)
            if self._offset and not self._anchor:  # in the middle of a line
                self._offset += len(file.readline())
            rest = b""
            while chunk := file.read(CHUNK_BYTES):
                whole, newline, rest = (rest + chunk).rpartition(b"\n")
                if not newline:
                    continue
                self._offset += len(whole) + 1
                self._anchor = (self._anchor + whole + b"\n")[-ANCHOR_BYTES:]
                if rows := self._parse(whole):
                    yield rows
            self.torn = len(rest)

    def _parse(self, block: bytes) -> list[dict[str, Any]]:
        lines = block.split(b"\n")
        try:  # one call for the whole block is twice as fast as one a line
            values = orjson.loads(b"[" + b",".join(line for line in lines if line.strip()) + b"]")
        except (ValueError, RecursionError):
            values = [value for line in lines if line.strip() and (value := self._parse_line(line)) is not None]
        rows = [value for value in values if isinstance(value, dict)]
        self.odd += len(values) - len(rows)
        return rows

    def _parse_line(self, line: bytes) -> Any:
        """Not strict JSON only: other writers leave bare NaN and Infinity."""
        try:
            return json.loads(line)
        except (ValueError, RecursionError):
            self.broken += 1
            return None
