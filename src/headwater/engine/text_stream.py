"""From token bytes to text that can be shown: whole characters only, and never past a stop string.

In: the bytes of one token at a time. Out: the text that is certain. A token may hold a part of a character, and a stop
string may lie across tokens, so text is held back until nothing that follows can change it. Bytes that are not UTF-8
become U+FFFD, as `bytes.decode(errors="replace")` does.

    stream = TextStream(stops=("\\n\\n",))
    stream.push("水".encode()[:2])         # ""    two thirds of a character
    stream.push("水".encode()[2:] + b"\\n")  # "水"  the line feed may begin the stop string
    stream.push(b"\\nmore")                # ""    and stream.stopped is True
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence


class TextStream:
    """Text of one completion. `text` is all that was released; `stopped` tells whether a stop string ended it."""

    def __init__(self, stops: Sequence[str] = ()) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._stops = tuple(stops)
        self._held = ""
        self._released: list[str] = []
        self.stopped = False

    @property
    def text(self) -> str:
        return "".join(self._released)

    def push(self, token: bytes) -> str:
        """Take one token's bytes; return the text that is certain now ("" if none)."""
        if self.stopped:
            return ""
        self._held += self._decoder.decode(token)
        found = [(at + len(stop), at) for stop in self._stops if (at := self._held.find(stop)) >= 0]
        if found:
            # The one that is complete first, wherever tokens end; of those the longest.
            self.stopped = True
            ready, self._held = self._held[: min(found)[1]], ""
            return self._release(ready)
        keep = held_back(self._held, self._stops)
        ready, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return self._release(ready)

    def finish(self) -> str:
        """No more tokens: release what was held for a stop string. Part of a character at the very end is dropped."""
        ready, self._held = self._held, ""
        return "" if self.stopped else self._release(ready)

    def _release(self, text: str) -> str:
        if text:
            self._released.append(text)
        return text


def held_back(text: str, stops: Sequence[str]) -> int:
    """Length of the longest end of `text` that is the beginning, but not the whole, of a stop string."""
    longest = 0
    for stop in stops:
        for size in range(min(len(stop) - 1, len(text)), longest, -1):
            if text.endswith(stop[:size]):
                longest = size
                break
    return longest
