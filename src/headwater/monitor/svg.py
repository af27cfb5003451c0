"""Line charts as inline SVG, for pages that must make no request. Pure text in, text out.

In: named series of (x, y). Out: one `<figure>` with axes, legend and, by a few lines of script on the page, a readout
under the pointer. Colours are CSS variables (`--s0` ...), so one chart serves light and dark.

    line_chart("Loss", "nats/token", [Series("train", xs, ys)], x_unit="step")
"""

from __future__ import annotations

import html
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 420, 240
LEFT, RIGHT, TOP, BOTTOM = 50, 10, 10, 30
MAX_POINTS = 400
COLOURS = 8
LARGEST = 1e300
"""No figure of a run is larger; near the end of a float's range an axis cannot be drawn."""


@dataclass(frozen=True)
class Series:
    """One line. `faint` draws it thin and pale (raw values behind their average); `marks` adds a dot a point."""

    name: str
    xs: Sequence[float]
    ys: Sequence[float]
    faint: bool = False
    marks: bool = False


def thin(xs: Sequence[float], ys: Sequence[float], limit: int = MAX_POINTS) -> tuple[list[float], list[float]]:
    """At most about `limit` points that keep each bucket's least and greatest value, so that no spike is lost."""
    if len(xs) <= limit:
        return list(xs), list(ys)
    buckets = limit // 2
    kept: list[int] = []
    for bucket in range(buckets):
        start, end = bucket * len(xs) // buckets, (bucket + 1) * len(xs) // buckets
        span = range(start, end)
        kept += sorted({min(span, key=lambda i: ys[i]), max(span, key=lambda i: ys[i])})
    return [xs[i] for i in kept], [ys[i] for i in kept]


def ticks(low: float, high: float, count: int = 4) -> list[float]:
    """Round values that cover low..high; a single one if both are equal."""
    if not high > low:
        return [low]
    step = 10 ** math.floor(math.log10((high - low) / count))
    for multiple in (1, 2, 2.5, 5, 10):
        if (high - low) / (step * multiple) <= count:
            step *= multiple
            break
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(i * step, 12) for i in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Round values between 10**low and 10**high: powers of ten over wide ranges, 1-2-5 steps over narrow ones."""
    powers = range(max(-300, math.floor(low)), min(300, math.ceil(high)) + 1)
    for digits in ((1,), (1, 2, 5), (1, 1.5, 2, 3, 4, 5, 6, 8)):
        found = [digit * 10.0**power for power in powers for digit in digits]
        found = [value for value in found if low <= math.log10(value) <= high]
        if len(found) >= 3:
            return found[:: -(-len(found) // 6)]
    return found or [10 ** ((low + high) / 2)]


def short(value: float) -> str:
    """A number for an axis: `12k`, `3.5M`, `0.02`, `3e-04`."""
    size = abs(value)
    for limit, divisor, suffix in ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k")):
        if size >= limit:
            return f"{value / divisor:.3g}{suffix}"
    if size and size < 1e-3:
        return f"{value:.0e}"
    return f"{value:.4g}"


def line_chart(
    title: str, unit: str, series: Sequence[Series], *, x_unit: str = "step", note: str = "", log_y: bool = False
) -> str:
    """One chart. Values that are not finite or beyond `LARGEST` (or not positive, with `log_y`) are left out."""
    cleaned: list[Series] = []
    for one in series:
        pairs = [(x, y) for x, y in zip(one.xs, one.ys, strict=True) if abs(y) < LARGEST and (y > 0 or not log_y)]
        if pairs:
            xs, ys = thin([p[0] for p in pairs], [p[1] for p in pairs])
            cleaned.append(Series(one.name, xs, ys, one.faint, one.marks))
    heading = f"<figcaption><b>{html.escape(title)}</b> <span>{html.escape(unit)}</span></figcaption>"
    if not cleaned:
        return f'<figure class="chart">{heading}<p class="note">nothing recorded</p></figure>'
    x_low, x_high = min(s.xs[0] for s in cleaned), max(s.xs[-1] for s in cleaned)
    y_low, y_high = min(min(s.ys) for s in cleaned), max(max(s.ys) for s in cleaned)
    if log_y:
        y_low, y_high = math.log10(y_low), math.log10(y_high)
    margin = (y_high - y_low) * 0.05 or (0.1 if log_y else abs(y_high) * 0.1) or 1.0
    y_low, y_high = y_low - margin, y_high + margin
    if not log_y and y_low < 0 <= min(min(s.ys) for s in cleaned):
        y_low = 0.0

    def px(x: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * ((x - x_low) / (x_high - x_low) if x_high > x_low else 0.5)

    def py(y: float) -> float:
        level = math.log10(y) if log_y else y
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (level - y_low) / (y_high - y_low)

    y_ticks = log_ticks(y_low, y_high) if log_y else ticks(y_low, y_high)
    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{html.escape(title)}">']
    for y in y_ticks:
        at = py(y)
        parts.append(f'<path class="grid" d="M{LEFT} {at:.1f}H{WIDTH - RIGHT}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{short(y)}</text>')
    parts += [
        f'<text x="{px(x):.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{short(x)}</text>'
        for x in ticks(x_low, x_high, 5)
    ]
    parts.append(
        f'<text class="unit" x="{WIDTH - RIGHT}" y="{HEIGHT - 1}" text-anchor="end">{html.escape(x_unit)}</text>'
    )
    readout = []
    for index, one in enumerate(cleaned):
        points = [(px(x), py(y)) for x, y in zip(one.xs, one.ys, strict=True)]
        path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
        kind = "line faint" if one.faint else "line"
        parts.append(f'<path class="{kind}" style="stroke:var(--s{index % COLOURS})" d="{path}"/>')
        if one.marks or len(points) == 1:
            parts += [
                f'<circle style="fill:var(--s{index % COLOURS})" cx="{x:.1f}" cy="{y:.1f}" r="2.5"/>' for x, y in points
            ]
        readout.append(
            {
                "n": one.name,
                "x": [round(x, 1) for x, _ in points],
                "v": [f"{x_unit} {short(x)}: {y:.5g}" for x, y in zip(one.xs, one.ys, strict=True)],
            }
        )
    parts.append('<path class="cursor" d=""/></svg>')
    legend = "".join(
        f'<li><i style="background:var(--s{index % COLOURS})"></i>{html.escape(one.name)}'
        f" <b>{short(one.ys[-1])}</b></li>"
        for index, one in enumerate(cleaned)
    )
    data = html.escape(json.dumps(readout, ensure_ascii=False), quote=True)
    small = f'<p class="note">{html.escape(note)}</p>' if note else ""
    return (
        f'<figure class="chart" data-series="{data}">{heading}{"".join(parts)}'
        f'<ul class="legend">{legend}</ul><p class="readout" aria-hidden="true"></p>{small}</figure>'
    )
