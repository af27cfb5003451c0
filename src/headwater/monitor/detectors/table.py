"""The table of detectors in the documentation, made from the detectors themselves.

In: a page with the two marks. Out: the page with the table between them.

    python -m headwater.monitor.detectors.table docs/watch.md
"""

from __future__ import annotations

import sys
from pathlib import Path

from headwater.core.errors import InputError
from headwater.core.files import atomic_write
from headwater.monitor.detectors import default_detectors

BEGIN = "<!-- detectors: made by `python -m headwater.monitor.detectors.table docs/watch.md` -->"
END = "<!-- end of detectors -->"

OF_THE_TRAINER = (
    ("overflow", "fp16 steps that overflow the loss scale, five in a row", "5 steps"),
    ("hang", "a step that does not end; stacks of all threads are written", "60 seconds, and ten usual steps"),
    ("disk_full", "a write that fails for lack of room", "at once"),
    ("out_of_memory", "a device without memory for the step", "at once"),
)
"""(name, what, how soon) of what the trainer says without a detector's history."""


def table() -> str:
    """A Markdown row a detector, in the order they are asked in."""
    own = [(detector.name, detector.finds, detector.within) for detector in default_detectors()]
    rows = [f"| `{name}` | {finds} | {within} |" for name, finds, within in (*own, *OF_THE_TRAINER)]
    return "\n".join(["| detector | finds | within |", "|---|---|---|", *rows])


def filled(page: str, where: str = "") -> str:
    """The page with the table as it is now. InputError if it does not have the marks."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise InputError(
            "no place for the table of detectors", where=where, mend=f"put {BEGIN} and {END} into the page"
        )
    return f"{before}{BEGIN}\n\n{table()}\n\n{END}{after}"


if __name__ == "__main__":
    for name in sys.argv[1:]:
        path = Path(name)
        atomic_write(path, filled(path.read_text("utf-8"), name).encode())
