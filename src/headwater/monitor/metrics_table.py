"""The table of metrics in the documentation, made from the registry.

In: a page with the two marks. Out: the page with the table between them.

    python -m headwater.monitor.metrics_table docs/watch.md
"""

from __future__ import annotations

import sys
from pathlib import Path

from headwater.core.errors import InputError
from headwater.core.files import atomic_write
from headwater.monitor.registry import METRICS, Metric

BEGIN = "<!-- metrics: made by `python -m headwater.monitor.metrics_table docs/watch.md` -->"
END = "<!-- end of metrics -->"


def table() -> str:
    """A Markdown row a metric, in the registry's order."""
    head = ["| key | by | unit | what | Prometheus |", "|---|---|---|---|---|"]
    return "\n".join([*head, *map(_row, METRICS.values())])


def _row(metric: Metric) -> str:
    what = metric.help.replace("|", "\\|")
    name = f"`{metric.prometheus}`" if metric.prometheus else ""
    return f"| `{metric.key}` | {', '.join(metric.labels)} | {metric.unit} | {what} | {name} |"


def filled(page: str, where: str = "") -> str:
    """The page with the table as it is now. InputError if it does not have the marks."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise InputError("no place for the table of metrics", where=where, mend=f"put {BEGIN} and {END} into the page")
    return f"{before}{BEGIN}\n\n{table()}\n\n{END}{after}"


if __name__ == "__main__":
    for name in sys.argv[1:]:
        path = Path(name)
        atomic_write(path, filled(path.read_text("utf-8"), name).encode())
