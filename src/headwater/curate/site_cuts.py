"""Which of a page's frequent lines go, and where to cut.

A frequent line goes if it is long enough to be no accident, or if nothing but frequent lines lie between it and the
beginning or end of the page, where menus and footers are. A short frequent line in the middle ("Example", "注意") may
be part of the text, and stays; so do headings, and all of a page that would lose nearly everything.

    chosen = chosen_lines(lines, often, 8); cuts_of(text, row, position, total, lines, chosen, rows)
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from headwater.core.units import count_units
from headwater.curate.site_kernels import BLANK

LEAST_LEFT = 20
"""Characters; a page of which fewer would be left loses nothing."""

SITE_CUT = np.dtype(
    [
        ("row", "<u4"),  # in the document shard
        ("start", "<i8"),  # bytes of the cleaned text that go
        ("end", "<i8"),
        ("units", "<u4"),  # in them
        ("from", "<u4"),  # the line, in characters
        ("to", "<u4"),
        ("kept", "<u4"),  # position of another document with the line
        ("kept_from", "<u4"),
        ("pages", "<u4"),  # of the site that have it
        ("total", "<u4"),  # pages of the site
    ]
)


def chosen_lines(lines: NDArray[Any], often: NDArray[np.bool_], min_words: float) -> NDArray[np.bool_]:
    """The lines that go, of LINES of several texts; `often` [lines] are those on enough pages of their site."""
    solid = (lines["kind"] != BLANK) & ~often  # what ends a run from the edge
    first = np.searchsorted(lines["text"], lines["text"], side="left")  # of each line's text
    last = np.searchsorted(lines["text"], lines["text"], side="right")
    before = np.concatenate([[0], np.cumsum(solid)])
    above = before[:-1] - before[first]
    below = before[last] - before[1:]
    chosen = often & ((lines["words"] >= min_words) | (above == 0) | (below == 0))
    size = lines["length"].astype(np.int64)
    kept = np.bincount(lines["text"], np.where(chosen, 0, size))
    return chosen & (kept[lines["text"]] >= LEAST_LEFT)


def cuts_of(
    text: bytes,
    row: int,
    position: int,
    total: int,
    lines: NDArray[Any],
    chosen: NDArray[np.bool_],
    rows: NDArray[Any],
) -> NDArray[Any]:
    """SITE_CUT rows of one text. Blank lines go with the line before them, if what is above is blank too or nothing."""
    cuts = np.zeros(int(chosen.sum()), SITE_CUT)
    tail = len(lines)  # from here on nothing stays
    while tail and (chosen[tail - 1] or lines["kind"][tail - 1] == BLANK):
        tail -= 1
    number = 0
    blank_above = True
    index = 0
    while index < len(lines):
        if not chosen[index]:
            blank_above = bool(lines["kind"][index] == BLANK)
            index += 1
            continue
        line, found, cut = lines[index], rows[index], cuts[number]
        begin = int(lines["next"][index - 1]) if index else 0
        if index >= tail and tail:  # the line end before goes too, with blank lines between
            begin = int(lines["end"][tail - 1]) if not number or cuts["end"][number - 1] < begin else begin
        index += 1
        while index < len(lines) and lines["kind"][index] == BLANK and (blank_above or index >= tail):
            index += 1
        end = int(lines["next"][index - 1])
        other = "last" if int(found["first"]) == position else "first"
        cut["row"], cut["start"], cut["end"] = row, begin, end
        cut["units"] = count_units(text[begin:end])
        cut["from"], cut["to"] = line["characters"], int(line["characters"]) + int(line["length"])
        cut["kept"], cut["kept_from"] = found[other], found[f"{other}_at"]
        cut["pages"], cut["total"] = found["pages"], total
        number += 1
    return cuts
