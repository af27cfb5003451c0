"""What a run has read of each domain, beside what its plan says.

In: `domain_tokens` of the record and the `order` entries of the ledger. Out: tokens and shares by domain, for the
whole and over the run. Pure.

    mixture(columns, ledger)["domains"][0]        # {"name": "web", "tokens": 8192, "share": 0.7, "plan": 0.7}
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headwater.monitor.web.columns import Columns
from headwater.monitor.web.events import number
from headwater.monitor.web.panels import rounded, whole

if TYPE_CHECKING:
    from headwater.monitor.web.thin import Floats

STRETCHES = 60


def mixture(columns: Columns, ledger: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """{domains: [{name, tokens, share, plan}], over: {s, lines: [{name, y, plan}]}, planned}; None without domains.

    Shares of tokens. `plan` is that of the whole read so far, weighted by tokens where it changed on the way; `y` and
    its `plan` are of each stretch of the run. Without weights in the ledger `planned` is false: domains come as large
    as they are.
    """
    import numpy

    names = columns.labels("domain_tokens")
    if not names:
        return None
    steps = columns.steps
    read = numpy.stack([_filled(columns.dense(("domain_tokens", name))) for name in names])
    edges = numpy.unique(numpy.linspace(0, len(steps) - 1, min(STRETCHES, len(steps)) + 1).astype(int))
    ends = edges[1:] if len(edges) > 1 else edges
    at_ends = read[:, ends]
    gained = numpy.maximum(0.0, numpy.diff(at_ends, axis=1, prepend=0.0))
    all_gained = gained.sum(axis=0)
    keep = all_gained > 0
    ends, gained, all_gained = ends[keep], gained[:, keep], all_gained[keep]
    if not len(ends):
        return None
    weights = _weights(ledger, names, steps[ends])
    planned = weights is not None
    total = float(gained.sum())
    domains, lines = [], []
    for row, name in enumerate(names):
        plan = float((weights[row] * all_gained).sum() / total) if weights is not None else None
        tokens = float(gained[row].sum())
        domains.append({"name": name, "tokens": tokens, "share": tokens / total, "plan": plan})
        line: dict[str, Any] = {"name": name, "y": rounded(gained[row] / all_gained)}
        if weights is not None:
            line["plan"] = rounded(weights[row])
        lines.append(line)
    return {"domains": domains, "over": {"s": whole(steps[ends]), "lines": lines}, "planned": planned}


def _filled(values: Floats) -> Floats:
    """A count that is missing on a line is that of the line before."""
    import numpy

    return numpy.maximum.accumulate(numpy.nan_to_num(values)) if len(values) else values


def _weights(ledger: Sequence[Mapping[str, Any]], names: Sequence[str], steps: Floats) -> Floats | None:
    """Planned share [domain, stretch]; None if the ledger sets none for every stretch."""
    import numpy

    settings: list[tuple[float, Mapping[str, Any]]] = []
    for entry in ledger:
        data = entry.get("data")
        given = data.get("mixture") if isinstance(data, Mapping) else None
        if entry.get("kind") == "order" and isinstance(given, Mapping) and number(entry.get("step")) is not None:
            settings.append((float(entry["step"]), given))
    settings.sort(key=lambda item: item[0])
    found = numpy.zeros((len(names), len(steps)))
    for column, step in enumerate(steps):
        now = [given for begins, given in settings if begins <= step]
        if not now:
            return None
        amounts = [max(0.0, number(now[-1].get(name)) or 0.0) for name in names]
        found[:, column] = numpy.array(amounts) / (sum(amounts) or 1.0)
    return found
