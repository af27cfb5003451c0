"""Small charts as inline SVG: stacked bars, a scatter with a line, a pipeline timeline. No dependencies.

Colours carry no meaning alone: every piece has a title that browsers show on hover, and a legend names it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

from .pipeline_events import Timeline
from .quantities import four_digits

PALETTE = (
    "#3b6ea5", "#e08a3c", "#5a9e6f", "#c44e52", "#8172b3", "#937860", "#da8bc3", "#8c8c8c", "#ccb974", "#64b5cd",
    "#2f4b7c", "#a05195", "#f95d6a", "#ffa600", "#003f5c",
)  # fmt: skip
WORK_COLOURS = {"F": "#3b6ea5", "B": "#e08a3c", "W": "#5a9e6f"}


def _svg(width: float, height: float, body: Sequence[str]) -> str:
    return (
        f'<div class="wide"><svg viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}" role="img" '
        f'font-family="system-ui, sans-serif" font-size="12">{"".join(body)}</svg></div>'
    )


def _text(x: float, y: float, value: str, anchor: str = "start", fill: str = "currentColor") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{fill}">{escape(value)}</text>'


def _box(x: float, y: float, w: float, h: float, fill: str, title: str) -> str:
    return (
        f'<rect x="{x:.2f}" y="{y:.2f}" width="{max(w, 0.3):.2f}" height="{h:.2f}" fill="{fill}">'
        f"<title>{escape(title)}</title></rect>"
    )


def stacked_bars(
    bars: Mapping[str, Mapping[str, float]], unit: str, *, limit: float | None = None, limit_label: str = ""
) -> str:
    """Horizontal bars of named pieces; `limit` draws a line (the memory of a GPU)."""
    left, width, height, gap = 90.0, 620.0, 26.0, 12.0
    totals = [sum(pieces.values()) for pieces in bars.values()]
    top = max([*totals, limit or 0.0]) or 1.0
    names = list(dict.fromkeys(name for pieces in bars.values() for name, value in pieces.items() if value > 0))
    body: list[str] = []
    for row, (label, pieces) in enumerate(bars.items()):
        y = 8 + row * (height + gap)
        body.append(_text(left - 8, y + height / 2 + 4, label, "end"))
        x = left
        for name, value in pieces.items():
            if value <= 0:
                continue
            w = value / top * width
            body.append(
                _box(x, y, w, height, PALETTE[names.index(name) % len(PALETTE)], f"{name}: {four_digits(value)} {unit}")
            )
            x += w
        body.append(_text(x + 6, y + height / 2 + 4, f"{four_digits(sum(pieces.values()))} {unit}"))
    bottom = 8 + len(bars) * (height + gap)
    if limit:
        x = left + limit / top * width
        body.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="2" y2="{bottom:.1f}" stroke="#d9534f" stroke-dasharray="4 3"/>'
        )
        body.append(_text(x, bottom + 10, limit_label, "middle", "#d9534f"))
    legend, end = _legend(names, left, bottom + 26, width)
    return _svg(left + width + 110, end, [*body, *legend])


def _legend(names: Sequence[str], left: float, y: float, width: float) -> tuple[list[str], float]:
    out, x = [], left
    for i, name in enumerate(names):
        step = 26 + 7.0 * len(name)
        if x + step > left + width + 90:
            x, y = left, y + 18
        out.append(_box(x, y - 9, 10, 10, PALETTE[i % len(PALETTE)], name))
        out.append(_text(x + 14, y, name))
        x += step
    return out, y + 12


def scatter(points: Sequence[tuple[float, float, str, str]], x_label: str, y_label: str, chosen: int = -1) -> str:
    """Points (x, y, name beside it, words on hover) joined in order; x in logarithms, y from zero; one is ringed."""
    left, top, width, height = 70.0, 12.0, 560.0, 260.0
    low, high = min(p[0] for p in points) * 0.85, max(p[0] for p in points) * 1.15
    y_step = _tick(max(p[1] for p in points))
    most_y = y_step * 5.5

    def across(x: float) -> float:
        return left + math.log(x / low) / math.log(high / low) * width

    at = [(across(x), top + height - y / most_y * height, name, words) for x, y, name, words in points]
    body = [
        f'<path d="M{left} {top}V{top + height}H{left + width}" fill="none" stroke="currentColor" '
        'stroke-opacity="0.6"/>',
        _text(left + width / 2, top + height + 36, x_label, "middle"),
        f'<text transform="translate(14 {top + height / 2}) rotate(-90)" text-anchor="middle" fill="currentColor">'
        f"{escape(y_label)}</text>",
    ]
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [first * 10.0**power for power in powers for first in (1, 2, 5)]
    body += [_text(across(x), top + height + 16, f"{x:g}", "middle") for x in ticks if low <= x <= high]
    for tick in range(6):
        body.append(_text(left - 6, top + height - tick * y_step / most_y * height + 4, f"{y_step * tick:g}", "end"))
    if len(at) > 1:
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y, *_ in at)
        body.append(f'<polyline points="{line}" fill="none" stroke="#3b6ea5" stroke-opacity="0.5"/>')
    for i, (x, y, name, words) in enumerate(at):
        ring = ' stroke="#c44e52" stroke-width="2"' if i == chosen else ""
        body.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="#3b6ea5"{ring}><title>{escape(words)}</title></circle>'
        )
        body.append(_text(x + 7, y - 7, name))
    return _svg(left + width + 30, top + height + 48, body)


def _tick(most: float) -> float:
    """A round step of which five reach `most`."""
    power = 10.0 ** math.floor(math.log10(most / 5.0)) if most > 0 else 1.0
    return next(step for step in (power, 2 * power, 2.5 * power, 5 * power, 10 * power) if 5 * step >= most * 0.9999)


def timeline(events: Timeline, *, width: float = 1000.0) -> str:
    """One line a rank: forward, backward and weight-gradient work; white is idle."""
    ranks = len(events.peak_in_flight)
    row, left = max(6.0, min(22.0, 320.0 / ranks)), 60.0
    scale = (width - left) / events.makespan
    body = []
    for rank in range(ranks):
        body.append(
            f'<rect x="{left}" y="{rank * row:.1f}" width="{width - left}" height="{row - 1:.1f}" '
            'fill="currentColor" fill-opacity="0.07"/>'
        )
        if row >= 12 or rank % 4 == 0:
            body.append(_text(left - 6, rank * row + row / 2 + 4, f"stage {rank}", "end"))
    names = {"F": "forward", "B": "backward", "W": "weight gradient"}
    for w in events.work:
        shade = 1.0 - 0.12 * (w.chunk % 5)
        title = f"{names[w.kind]} of micro-batch {w.micro_batch}, chunk {w.chunk}"
        body.append(
            f'<rect x="{left + w.start * scale:.2f}" y="{w.rank * row:.1f}" width="{(w.end - w.start) * scale:.2f}" '
            f'height="{row - 1:.1f}" fill="{WORK_COLOURS[w.kind]}" fill-opacity="{shade:.2f}" stroke="#fff" '
            f'stroke-width="0.3"><title>{title}</title></rect>'
        )
    bottom = ranks * row + 16
    x = left
    for kind, name in names.items():
        body.append(_box(x, bottom - 9, 10, 10, WORK_COLOURS[kind], name))
        body.append(_text(x + 14, bottom, name))
        x += 40 + 7 * len(name)
    body.append(_text(width, bottom, f"idle {events.idle_share:.1%} of the step", "end"))
    return _svg(width + 8, bottom + 10, body)
