"""A run on the terminal, live: how far it is, its figures, its loss as a small chart, what happened last.

In: a `RunReader`. Out: a screen that is drawn anew (rich), or plain lines where there is no terminal. Only characters
that print come through: no name and no message of a run can steer the terminal.

    print(summary_text(reader))            # once
    follow(reader, Console(), every=2.0)   # until the run is finished
"""

from __future__ import annotations

import math
import time
import unicodedata
from collections.abc import Sequence
from typing import Any

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from headwater.monitor.console import duration
from headwater.monitor.web.reader import RunReader

CHART_ROWS = 8
EVENTS_SHOWN = 6
NOTES_SHOWN = 4
BAR_WIDTH = 40
STYLES = {"critical": "bold red", "warning": "yellow", "action": "magenta", "info": "dim"}
STATES = {"running": "green", "silent": "yellow", "finished": "cyan", "stopped": "yellow", "empty": "dim"}

FIGURES = (
    ("loss_sma", "loss", "{:.4f}"),
    ("val_loss/all", "validation loss", "{:.4f}"),
    ("val_bits_per_byte/all", "bits per byte", "{:.4f}"),
    ("grad_norm", "gradient norm", "{:.3g}"),
    ("lr", "learning rate", "{:.3e}"),
    ("throughput", "tokens/s", "{:,.0f}"),
    ("mfu", "MFU", "{:.1%}"),
    ("gpu_util", "GPU busy", "{:.0%}"),
    ("mem_allocated", "memory", "{}"),
    ("step_seconds", "seconds a step", "{:.3g}"),
    ("tokens", "tokens", "{:,.0f}"),
)

_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""Bits of a braille character, by row and column."""


def printable(text: object) -> str:
    """`text` with every character that is none to print (escape sequences, marks that turn its direction) as a dot."""
    return "".join(
        " " if char in "\n\t" else "·" if unicodedata.category(char) in ("Cc", "Cf", "Cs", "Co", "Cn") else char
        for char in str(text)
    )


def figures(reader: RunReader) -> list[tuple[str, str]]:
    """(Name, value as text) of the newest figures there are."""
    newest = reader.figures()
    newest.setdefault("loss_sma", newest.get("loss", math.nan))
    found = []
    for key, name, shape in FIGURES:
        value = newest.get(key)
        if value is not None and not math.isnan(value):
            found.append((name, _bytes(value) if key == "mem_allocated" else shape.format(value)))
    return found


def headline(status: dict[str, Any]) -> str:
    """`running  step 1,200 of 2,000  60 %  5m 10s left  last line 2s ago`."""
    parts = [status["words"]]
    if status["steps"]:
        share = min(1.0, status["step"] / status["steps"])
        parts.append(f"step {status['step']:,} of {status['steps']:,.0f}  {share:.0%}")
    elif status["step"]:
        parts.append(f"step {status['step']:,}")
    if status["eta"] is not None:
        parts.append(f"{duration(status['eta'])} left")
    if status["age"] is not None and status["state"] in ("running", "silent"):
        parts.append(f"last line {duration(status['age'])} ago")
    return "  ".join(parts)


def summary_text(reader: RunReader) -> str:
    """The run as plain lines."""
    view = reader.view(points=10)
    lines = [printable(view["name"]), f"  {headline(view['status'])}"]
    lines += [f"  {name:<18} {value}" for name, value in figures(reader)]
    if view["time"] is not None and view["time"]["goodput"] is not None:
        lines.append(f"  {'goodput':<18} {view['time']['goodput']:.0%} of {duration(view['time']['total'])}")
    lines += [f"  {line}" for line in _events(view["events"])]
    lines += [f"  note: {printable(note)}" for note in view["notes"]]
    return "\n".join(lines)


def line_text(reader: RunReader) -> str:
    """The run in one line."""
    shown = "  ".join(f"{name} {value}" for name, value in figures(reader)[:6])
    return f"{headline(reader.view(points=10)['status'])}  {shown}".rstrip()


def _events(events: Sequence[dict[str, Any]]) -> list[str]:
    return [_event_text(event) for event in events[-EVENTS_SHOWN:]]


def _event_text(event: dict[str, Any]) -> str:
    place = "" if event["step"] is None else f"step {event['step']:,.0f}  "
    first = str(event["text"]).split("\n")[0]
    return printable(f"{place}{event['title']}{': ' if first else ''}{first}")


def screen(reader: RunReader, width: int, *, unicode: bool = True) -> RenderableType:
    """Everything at once, for a terminal `width` columns wide."""
    view = reader.view(points=10)
    status = view["status"]
    parts: list[RenderableType] = [
        Text.assemble((printable(view["name"]), "bold"), "  ", (headline(status), STATES[status["state"]]))
    ]
    if status["steps"]:
        parts.append(_bar(min(1.0, status["step"] / status["steps"]), min(width - 2, 2 * BAR_WIDTH), unicode=unicode))
    table = Table.grid(padding=(0, 2))
    found = figures(reader)
    if view["time"] is not None and view["time"]["goodput"] is not None:
        found.append(("goodput", f"{view['time']['goodput']:.0%}"))
    columns = max(1, min(3, width // 30))
    for start in range(0, len(found), columns):
        cells = [
            text for name, value in found[start : start + columns] for text in (f"[dim]{name}[/]", f"[bold]{value}[/]")
        ]
        table.add_row(*cells)
    parts += [Text(), table]
    losses = reader.curve("loss")
    if len(losses) > 1 and unicode:
        parts += [Text(), *chart(losses, min(width - 12, 110))]
    if view["events"]:
        parts.append(Text())
        for event in view["events"][-EVENTS_SHOWN:]:
            parts.append(Text(_clip(_event_text(event), width), style=STYLES[event["level"]]))
    parts += [Text(f"note: {printable(note)}", style="yellow") for note in view["notes"][:NOTES_SHOWN]]
    return Group(*parts)


def _bar(share: float, width: int, *, unicode: bool) -> Text:
    done = round(share * width)
    full, empty = ("━", "─") if unicode else ("#", "-")
    return Text.assemble((full * done, "cyan"), (empty * (width - done), "dim"))


def _clip(text: str, width: int) -> str:
    while cell_len(text) > width:
        text = text[: max(1, width - 1 - (cell_len(text) - len(text)))][:-1] + "…"
    return text


def chart(values: Sequence[float], width: int, rows: int = CHART_ROWS) -> list[Text]:
    """Values as a chart of braille dots, `width` x `rows` characters; each column of dots spans its least and greatest
    value, so no spike is lost. The first and last line say the range."""
    dots = width * 2
    spans = []
    for column in range(min(dots, len(values))):
        some = values[
            column * len(values) // min(dots, len(values)) : (column + 1) * len(values) // min(dots, len(values))
        ]
        spans.append((min(some), max(some)))
    low, high = min(span[0] for span in spans), max(span[1] for span in spans)
    height = rows * 4

    def row(value: float) -> int:
        return round((high - value) / (high - low) * (height - 1)) if high > low else height // 2

    grid = [[0] * width for _ in range(rows)]
    for column, (least, greatest) in enumerate(spans):
        for y in range(row(greatest), row(least) + 1):
            grid[y // 4][column // 2] |= _DOTS[y % 4][column % 2]
    marks = {0: f"{high:.4g}", rows - 1: f"{low:.4g}"}
    return [
        Text.assemble((f"{marks.get(number, ''):>8}  ", "dim"), ("".join(chr(0x2800 + bits) for bits in line), "cyan"))
        for number, line in enumerate(grid)
    ]


def follow(reader: RunReader, console: Console, every: float) -> None:
    """Show the run until it is finished: a screen drawn anew on a terminal, elsewhere a line when something is new."""
    if not console.is_terminal:
        told = ""
        while True:
            reader.refresh()
            line = line_text(reader)
            if line != told:
                console.print(escape(line), highlight=False, soft_wrap=True)
            told = line
            if reader.status()["state"] == "finished":
                return
            time.sleep(every)
    unicode = "utf" in (console.encoding or "").lower()
    reader.refresh()
    with Live(console=console, auto_refresh=False, screen=True) as live:
        while reader.status()["state"] != "finished":
            live.update(screen(reader, console.width, unicode=unicode), refresh=True)
            time.sleep(every)
            reader.refresh()
    console.print(screen(reader, console.width, unicode=unicode), highlight=False)


def _bytes(value: float) -> str:
    for limit, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB")):
        if value >= limit:
            return f"{value / limit:,.1f} {unit}"
    return f"{value:,.0f} bytes"
