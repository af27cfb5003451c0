"""The schedule of a pipeline as its ranks ran it, and drawn.

In: the order in which each rank's stages worked, with the FLOPs of every piece. Out: a `Timeline`: when each piece
would begin and end if products took all the time and messages none, the makespan, and how long every rank waits.

    drawn = timeline({0: actions_of_rank_0, 1: actions_of_rank_1}, pp=2); print(drawn.ascii(100)); drawn.svg()

The order is what the trainer's schedule did; only the clock is made up. Where not all ranks were simulated there is no
clock to be had, and the timeline is empty.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Protocol


class Piece(Protocol):
    """What a stage did: `kind` F, B, I or W."""

    @property
    def kind(self) -> str: ...
    @property
    def stage(self) -> int: ...
    @property
    def micro_batch(self) -> int: ...
    @property
    def flops(self) -> float: ...


@dataclass(frozen=True)
class Span:
    """A piece of work and its place in time, in FLOPs of one rank."""

    rank: int
    kind: str
    stage: int
    micro_batch: int
    start: float
    end: float


@dataclass(frozen=True)
class Timeline:
    """`idle`: share of the makespan that each rank waits."""

    spans: list[Span]
    makespan: float
    idle: list[float]

    @property
    def bubble(self) -> float:
        """The mean share of a step that a rank waits for others."""
        return sum(self.idle) / len(self.idle) if self.idle else 0.0

    def ascii(self, width: int = 100) -> str:
        """A line a rank: the micro-batch (its last digit) where it goes forward, letters a, b, c ... where it comes
        back, `w` for weight gradients on their own, `.` where the rank waits."""
        lines = []
        for rank in range(len(self.idle)):
            row = ["."] * width
            for span in self.spans:
                if span.rank == rank:
                    first = round(span.start / self.makespan * width)
                    last = max(first + 1, round(span.end / self.makespan * width))
                    mark = str(span.micro_batch % 10) if span.kind == "F" else "w"
                    if span.kind in "BI":
                        mark = chr(ord("a") + span.micro_batch % 26)
                    row[first:last] = [mark] * (min(last, width) - first)
            lines.append(f"{rank:>3} {''.join(row)} {self.idle[rank]:5.1%} idle")
        return "\n".join(lines)

    def svg(self, width: int = 1200, row: int = 26) -> str:
        """The same as a drawing; a shade of colour for every stage of a rank."""
        ranks = len(self.idle)
        height = row * ranks + 30
        stages = sorted({span.stage for span in self.spans})
        shade = {stage: (stage // max(ranks, 1)) for stage in stages}
        deepest = max(shade.values(), default=0) or 1
        colours = {"F": (211, 70), "B": (152, 45), "I": (152, 45), "W": (35, 80)}
        scale = (width - 60) / (self.makespan or 1.0)
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
            f'height="{height}" font-family="sans-serif" font-size="9" fill="currentColor">'
        ]
        parts += [
            f'<text x="4" y="{row * rank + row / 2 + 3:.0f}" font-size="11">rank {rank}</text>' for rank in range(ranks)
        ]
        for span in self.spans:
            hue, saturation = colours[span.kind]
            light = 78 - 30 * shade[span.stage] / deepest
            x, wide = 56 + span.start * scale, max((span.end - span.start) * scale, 0.3)
            title = escape(f"{span.kind} stage {span.stage}, micro-batch {span.micro_batch}")
            parts.append(
                f'<rect x="{x:.1f}" y="{row * span.rank + 3}" width="{wide:.1f}" height="{row - 6}" stroke="white" '
                f'stroke-width="0.3" fill="hsl({hue} {saturation}% {light:.0f}%)"><title>{title}</title></rect>'
            )
            if wide > 11:
                parts.append(
                    f'<text x="{x + wide / 2:.1f}" y="{row * span.rank + row / 2 + 3:.0f}" text-anchor="middle">'
                    f"{span.micro_batch}</text>"
                )
        legend = (("F", "forward"), ("B", "backward"), ("W", "weight gradients"))
        for place, (kind, text) in enumerate(legend):
            hue, saturation = colours[kind]
            x = 56 + 140 * place
            parts.append(
                f'<rect x="{x}" y="{height - 20}" width="12" height="12" fill="hsl({hue} {saturation}% 65%)"/>'
                f'<text x="{x + 17}" y="{height - 10}" font-size="11">{text}</text>'
            )
        return "".join(parts) + "</svg>"


def timeline(orders: Mapping[int, Sequence[Piece]], pp: int) -> Timeline:
    """Place every piece as early as its rank and what it needs allow. ValueError if the orders wait for one another."""
    if set(orders) != set(range(pp)):
        return Timeline([], 0.0, [])
    last = max(piece.stage for order in orders.values() for piece in order)
    ended: dict[tuple[str, int, int], float] = {}
    at = dict.fromkeys(orders, 0)
    clock = dict.fromkeys(orders, 0.0)
    spans: list[Span] = []
    total = sum(len(order) for order in orders.values())
    while len(spans) < total:
        before = len(spans)
        for rank, order in orders.items():
            while at[rank] < len(order):
                piece = order[at[rank]]
                needs = _needs(piece, last)
                if needs is not None and needs not in ended:
                    break
                start = max(clock[rank], ended[needs] if needs is not None else 0.0)
                clock[rank] = start + piece.flops
                kind = "back" if piece.kind in "BI" else piece.kind
                ended[kind, piece.stage, piece.micro_batch] = clock[rank]
                spans.append(Span(rank, piece.kind, piece.stage, piece.micro_batch, start, clock[rank]))
                at[rank] += 1
        if len(spans) == before:
            raise ValueError("the ranks of the pipeline wait for one another")
    makespan = max(clock.values()) or 1.0
    busy = dict.fromkeys(orders, 0.0)
    for span in spans:
        busy[span.rank] += span.end - span.start
    return Timeline(spans, makespan, [1.0 - busy[rank] / makespan for rank in range(pp)])


def _needs(piece: Piece, last: int) -> tuple[str, int, int] | None:
    if piece.kind == "F":
        return ("F", piece.stage - 1, piece.micro_batch) if piece.stage else None
    if piece.kind == "W":
        return "back", piece.stage, piece.micro_batch
    if piece.stage == last:
        return "F", piece.stage, piece.micro_batch
    return "back", piece.stage + 1, piece.micro_batch
