"""Which figures stand in which chart, and their points. A figure nobody foresaw gets a chart of its own.

In: the columns of a run. Out: a list of panels, each with lines of points, as the page draws them. Pure.

    panels(columns, 800)[0]["title"]        # "Loss"
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headwater.monitor.registry import METRICS
from headwater.monitor.web.columns import Columns, Key
from headwater.monitor.web.thin import extremes, means

if TYPE_CHECKING:
    from headwater.monitor.web.thin import Floats

MARKED_UP_TO = 60
"""A line of at most so many points shows each as a dot."""


@dataclass(frozen=True, slots=True)
class Line:
    """A metric in a panel. `label`: one label of a labelled metric; "*" all of them; `faint`: behind the others."""

    key: str
    name: str
    label: str = ""
    faint: bool = False


@dataclass(frozen=True, slots=True)
class Panel:
    """A chart. `group` is the heading it stands under; `log`: drawn on a logarithmic axis at first."""

    id: str
    group: str
    title: str
    unit: str
    lines: tuple[Line, ...]
    log: bool = False


def _panel(id: str, group: str, title: str, unit: str, *lines: Line, log: bool = False) -> Panel:
    return Panel(id, group, title, unit, lines, log)


LEARNING, MODEL, MACHINE = "Learning", "Stability", "Speed and memory"

PANELS: tuple[Panel, ...] = (
    _panel("loss", LEARNING, "Loss", "nats/token",
           Line("loss", "training", faint=True), Line("loss_sma", "training, moving average"),
           Line("val_loss", "validation", "all"), Line("val_loss_averaged", "validation, averaged weights", "all")),
    _panel("domain_loss", LEARNING, "Training loss by domain", "nats/token", Line("domain_loss", "", "*")),
    _panel("val_loss", LEARNING, "Validation loss by domain", "nats/token", Line("val_loss", "", "*")),
    _panel("bits", LEARNING, "Validation bits per byte", "bits/byte",
           Line("val_bits_per_byte", "", "*"), Line("val_bits_per_byte_averaged", "all, averaged weights", "all")),
    _panel("eval", LEARNING, "Benchmarks during training", "figure of each task", Line("eval", "", "*")),
    _panel("lr", LEARNING, "Learning rate", "main group", Line("lr", "learning rate")),
    _panel("grad_norm", MODEL, "Gradient norm", "before clipping", Line("grad_norm", "gradient norm"), log=True),
    _panel("clip", MODEL, "Clipping", "ratio", Line("clip_factor", "factor on the gradient", faint=True),
           Line("clip_rate", "share of steps clipped")),
    _panel("flags", MODEL, "Tensors and heads flagged", "number", Line("grad_flags", "", "*"),
           Line("dead_heads", "dead heads"), Line("dead_heads", "", "*")),
    _panel("skipped", MODEL, "Skipped steps", "since the start", Line("skipped_steps", "skipped steps")),
    _panel("scale", MODEL, "Loss scale", "fp16", Line("loss_scale", "loss scale"), log=True),
    _panel("throughput", MACHINE, "Throughput", "tokens/second", Line("throughput", "tokens/s")),
    _panel("step_seconds", MACHINE, "Step time", "seconds", Line("step_seconds", "whole step"),
           Line("data_wait_seconds", "waiting for data")),
    _panel("mfu", MACHINE, "Utilisation", "ratio", Line("mfu", "model FLOPs"), Line("gpu_util", "GPU busy"),
           Line("cpu_util", "CPU busy")),
    _panel("goodput", MACHINE, "Goodput", "ratio", Line("goodput", "goodput")),
    _panel("ranks", MACHINE, "Slowest ranks", "median rank's time over theirs", Line("straggler_score", "", "*")),
    _panel("memory", MACHINE, "Memory", "bytes", Line("mem_allocated", "allocated"), Line("mem_reserved", "reserved")),
    _panel("ram", MACHINE, "RAM of the machine", "bytes", Line("ram_used", "in use")),
)  # fmt: skip

ELSEWHERE = frozenset(
    {
        *("step", "tokens", "time", "perplexity", "bits_per_byte", "val_perplexity", "val_accuracy"),
        *("domain_tokens", "forward_backward_seconds", "optimizer_seconds", "communication_seconds"),
        *("checkpoint_seconds", "validation_seconds", "monitor_seconds", "productive_seconds", "grad_histogram"),
    }
)
"""Shown in another form (axes, time, mixture, heat maps), or the same curve in another unit."""

OTHERS = "More figures"

QUIET_AT_ZERO = frozenset({"flags", "skipped"})
"""Not worth a chart as long as there is none."""


def panels(columns: Columns, limit: int, span: tuple[float, float] | None = None) -> list[dict[str, Any]]:
    """Every panel with something to show: {id, group, title, unit, log, lines: [{name, faint, s, y, ms?, my?}]}.

    `s`, `y`: steps and values of at most `limit` points with all extremes; `ms`, `my`: bucket means where points were
    left out. `span`: only steps from..to.
    """
    known = {line.key for panel in PANELS for line in panel.lines} | ELSEWHERE
    unknown = dict.fromkeys(key for key, _ in columns.names() if key not in known)
    found = [_fill(panel, columns, limit, span) for panel in (*PANELS, *map(_own, unknown))]
    return [panel for panel in found if panel["lines"] and not (panel["id"] in QUIET_AT_ZERO and _all_zero(panel))]


def _all_zero(panel: dict[str, Any]) -> bool:
    return not any(any(line["y"]) for line in panel["lines"])


def _own(key: str) -> Panel:
    metric = METRICS.get(key)
    title, unit = (metric.title, metric.unit) if metric else (key, "")
    return _panel(f"own-{key}", OTHERS, title, unit, Line(key, title), Line(key, "", "*"))


def _fill(panel: Panel, columns: Columns, limit: int, span: tuple[float, float] | None) -> dict[str, Any]:
    lines: list[dict[str, Any]] = []
    for line in panel.lines:
        for name, key in _keys(line, columns):
            steps, values = columns.series(key)
            if span is not None:
                inside = (steps >= span[0]) & (steps <= span[1])
                steps, values = steps[inside], values[inside]
            if len(steps):
                lines.append({"name": name, "faint": line.faint, **points(steps, values, limit)})
    if len(lines) == 1:
        lines[0]["faint"] = False  # there is nothing in front of it
    # The domain "all" alone says nothing that the curve of the whole does not.
    if panel.id == "val_loss" and len(lines) < 2:
        lines = []
    return {"id": panel.id, "group": panel.group, "title": panel.title, "unit": panel.unit, "log": panel.log,
            "lines": lines}  # fmt: skip


def _keys(line: Line, columns: Columns) -> Sequence[tuple[str, Key]]:
    if line.label == "*":
        return [(label, (line.key, label)) for label in columns.labels(line.key)]
    return [(line.name, (line.key, line.label))]


def points(steps: Floats, values: Floats, limit: int) -> dict[str, Any]:
    """A series as the page reads it."""
    kept = extremes(values, limit)
    found: dict[str, Any] = {"s": whole(steps[kept]), "y": rounded(values[kept])}
    if len(kept) < len(values):
        middle, mean = means(values, limit // 2)
        found |= {"ms": whole(steps[middle]), "my": rounded(mean)}
    elif len(values) <= MARKED_UP_TO:
        found["marks"] = True
    return found


def rounded(values: Floats) -> list[float]:
    """Six significant digits: more than a pixel can show, in half the bytes."""
    return [float(f"{value:.6g}") for value in values.tolist()]


def whole(values: Floats) -> list[float]:
    return [int(value) if value == int(value) else value for value in values.tolist()]
