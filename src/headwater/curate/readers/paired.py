"""Replaces what stands between two marks, in linear time: an end that is not there is looked for once.

replace_paired("a<x>b</x>c", re.compile("<x>"), lambda found: "</x>", lambda found, inside: "")     # "ac"
"""

from __future__ import annotations

import re
from collections.abc import Callable


def replace_paired(
    text: str,
    opener: re.Pattern[str],
    end_of: Callable[[re.Match[str]], str],
    replace: Callable[[re.Match[str], str], str],
) -> str:
    """`end_of` gives the regular expression of an opener's end, "" for one that stands alone; `replace` what goes in
    the place of opener, inside and end. An opener without its end stays."""
    kept: list[str] = []
    position = 0
    endless: set[str] = set()
    for found in opener.finditer(text):
        if found.start() < position:
            continue
        end = end_of(found)
        if end in endless:
            continue
        stop, inside = found.end(), ""
        if end:
            closed = re.compile(end, re.IGNORECASE).search(text, found.end())
            if closed is None:
                endless.add(end)
                continue
            stop, inside = closed.end(), text[found.end() : closed.start()]
        kept += [text[position : found.start()], replace(found, inside)]
        position = stop
    return "".join([*kept, text[position:]])
