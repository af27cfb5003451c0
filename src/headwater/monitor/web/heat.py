"""Layer x step heat maps: what was sampled of every tensor and attention head.

In: a run's `tensors/` folder. Out: rows of at most `MOST_ROWS` names x `MOST_STEPS` steps for the page. A row's name is
split into its layer and its kind, so that a page can show one kind, layer by layer.

    heat_map(TensorSeries(Path("run")), Columns(), "grad_norm")["rows"][0]["kind"]         # "self_attn.q_proj"
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from headwater.monitor.tensor_series import TensorSeries
    from headwater.monitor.web.columns import Columns
    from headwater.monitor.web.thin import Floats

MOST_STEPS = 240
MOST_ROWS = 1200

TITLES = {
    "grad_norm": ("Gradient norms", "norm, before clipping"),
    "update_ratio": ("Update ratios", "norm of the update over that of the weights"),
    "weight_norm": ("Weight norms", "norm"),
    "head_entropy": ("Attention entropy", "share of the largest possible"),
    "head_sink": ("Attention sink", "share of attention on the first token"),
    "head_max_logit": ("Largest attention logits", "logit"),
    "head_activity": ("Head activity", "relative to the layer's mean"),
    "grad_histogram": ("Gradient norms by size", "tensors"),
}
HISTOGRAM = "grad_histogram"
LOGARITHMIC = frozenset({"grad_norm", "update_ratio", "weight_norm"})
LEAST_MATTERS = frozenset({"head_entropy", "head_activity"})
"""Where low values are the bad ones, the least of several steps is shown, else the greatest."""

_LAYER = re.compile(r"(?:^|\.)(?:layers|blocks|h)\.(\d+)(?:\.|$)")


def heat_map(
    series: TensorSeries, columns: Columns, metric: str | None, most_steps: int = MOST_STEPS
) -> dict[str, Any]:
    """{metrics: [{key, title}], metric, unit, log, s, rows: [{name, layer, kind, v}], note}; the first metric for None.

    Without anything sampled `metrics` is empty. A metric that is not there gives empty rows. The histogram of gradient
    norms comes from the record's lines (`columns`), with a row a power of ten.
    """
    there = [*series.metrics(), *([HISTOGRAM] if columns.labels(HISTOGRAM) else [])]
    listed = [{"key": key, "title": TITLES.get(key, (key.replace("_", " "), ""))[0]} for key in there]
    found: dict[str, Any] = {"metrics": listed, "metric": metric, "s": [], "rows": [], "note": ""}
    if not there:
        return found
    metric = metric or there[0]
    notes = []
    if metric == HISTOGRAM:
        steps, rows = _histogram(columns, most_steps)
    else:
        keep: Literal["min", "max"] = "min" if metric in LEAST_MATTERS else "max"
        sampled, names, values = series.matrix(metric, most_steps=most_steps, keep=keep)
        steps = [int(step) for step in sampled]
        rows = [_row(name, *split_name(name), values[:, place]) for place, name in enumerate(names[:MOST_ROWS])]
        notes = [f"{name} cannot be read and is left out" for name in series.broken]
        if len(names) > MOST_ROWS:
            notes.append(f"the first {MOST_ROWS:,} of {len(names):,} rows")
    unit, log = TITLES.get(metric, ("", ""))[1], metric in LOGARITHMIC
    return {**found, "metric": metric, "unit": unit, "log": log, "s": steps, "rows": rows, "note": "; ".join(notes)}


def _histogram(columns: Columns, most_steps: int) -> tuple[list[int], list[dict[str, Any]]]:
    """Tensors by the power of ten of their gradient's norm, the largest on top."""
    import numpy

    decades = sorted(columns.labels(HISTOGRAM), key=_decade, reverse=True)
    table = numpy.stack([columns.dense((HISTOGRAM, decade)) for decade in decades])
    sampled = numpy.flatnonzero(~numpy.isnan(table).all(axis=0))
    kept = numpy.unique(numpy.linspace(0, len(sampled) - 1, min(most_steps, len(sampled))).astype(int))
    places = sampled[kept]
    rows = [_row(decade, None, decade, table[place, places]) for place, decade in enumerate(decades)]
    return [int(step) for step in columns.steps[places]], rows


def _decade(label: str) -> float:
    try:
        return float(label)
    except ValueError:
        return -math.inf


def _row(name: str, layer: int | None, kind: str, values: Floats) -> dict[str, Any]:
    shown = [None if not abs(value) < 1e300 else float(f"{value:.3g}") for value in values.tolist()]
    return {"name": name, "layer": layer, "kind": kind, "v": shown}


def split_name(name: str) -> tuple[int | None, str]:
    """`(12, "self_attn.q_proj")` of a parameter's name, `(3, "head 5")` of a head; no layer for the rest."""
    plain = name.removesuffix(".weight")
    if layer := _LAYER.search(plain):
        return int(layer[1]), plain[layer.end() :].replace("head.", "head ") or plain
    return None, plain.removeprefix("model.")
