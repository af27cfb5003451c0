"""The record of a run as columns: one array a figure, which grows as lines are added.

In: objects of `metrics.jsonl`. Out: `series(key, label)`, arrays by step, sorted, each step once. Odd lines are
counted: no step, steps that come twice or go back, clocks that jump, values that are no numbers, NaN and infinities.

    columns = Columns(); columns.add(rows); steps, values = columns.series(("loss", ""))
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headwater.monitor.web.thin import Floats, Indices

Key = tuple[str, str]
"""(metric, label); the label is "" for a plain figure."""

MOST_LABELS = 64
MOST_KEYS = 400
LEFT_TO_MAPS = frozenset(
    {
        *("param_grad_norm", "param_weight_norm", "update_ratio", "head_entropy_ratio", "head_sink_ratio"),
        *("head_max_logit", "head_activity_ratio"),
    }
)
"""The record has only the extremes of these, under names that change from sample to sample; heat maps show them all."""

BAD_STEPS_KEPT = 200
LARGEST = 1e300
"""No figure of a run is larger; near the end of a float's range an axis cannot be drawn."""


class Columns:
    """All figures of a run. Counters: `without_step`, `repeated`, `not_numbers`, `labels_left_out`; `not_finite`:
    metric to the first steps whose value was NaN or infinite."""

    def __init__(self) -> None:
        self._parts: dict[Key, list[tuple[Indices, Floats]]] = {}  # (lines, their values)
        self._count = 0
        self._steps: list[Floats] = []
        self._order: tuple[int, Floats, Indices] | None = None
        self._joined: dict[Key, tuple[int, Floats]] = {}
        self.without_step = self.not_numbers = self.labels_left_out = 0
        self.not_finite: dict[str, list[int]] = {}

    def __len__(self) -> int:
        return self._count

    def names(self) -> list[Key]:
        """Every figure there is."""
        return list(self._parts)

    def labels(self, metric: str) -> list[str]:
        """Labels of a metric, `all` first."""
        return sorted((label for key, label in self._parts if key == metric and label), key=lambda x: (x != "all", x))

    def add(self, rows: Sequence[dict[str, Any]]) -> None:
        """Add lines, in the order written."""
        import numpy

        good = [row for row in rows if _is_step(row.get("step"))]
        self.without_step += len(rows) - len(good)
        if not good:
            return
        steps = numpy.array([row["step"] for row in good], dtype=numpy.float64)
        for names, places, columns in _by_shape(good, numpy.arange(len(good))):
            for name, values in zip(names, columns, strict=True):
                if name == "step" or name in LEFT_TO_MAPS:
                    continue
                kinds = set(map(type, values))
                if dict not in kinds:
                    self._store((name, ""), values, kinds, places, steps)
                    continue
                inner = [at for at, value in enumerate(values) if type(value) is dict]
                for labels, where, parts in _by_shape([values[at] for at in inner], places[inner]):
                    for label, part in zip(labels, parts, strict=True):
                        self._store((name, label), part, set(map(type, part)), where, steps)
        self._steps.append(steps)
        self._count += len(good)
        self._order = None

    def _store(self, key: Key, values: Sequence[Any], kinds: set[type], places: Indices, steps: Floats) -> None:
        """Values, of these types, at `places` among the lines that are being added."""
        import numpy

        if kinds == {type(None)}:
            return
        if key not in self._parts and (
            len(self._parts) >= MOST_KEYS or (key[1] and len(self.labels(key[0])) >= MOST_LABELS)
        ):
            self.labels_left_out += 1
            return
        try:
            column = numpy.array(values, dtype=numpy.float64)  # None becomes NaN, "NaN" and "Infinity" themselves
            if column.ndim != 1:
                raise ValueError("lists")
        except (ValueError, TypeError, OverflowError):
            column = numpy.array([self._number(value) for value in values], dtype=numpy.float64)
        gone = ~(numpy.abs(column) < LARGEST)
        if gone.any():
            bad = [int(steps[places[at]]) for at in numpy.flatnonzero(gone).tolist() if _not_finite(values[at])]
            if bad:
                kept = self.not_finite.setdefault(key[0], [])
                kept += bad[: BAD_STEPS_KEPT - len(kept)]
            column[gone] = numpy.nan
        if not gone.all():
            self._parts.setdefault(key, []).append((places + self._count, column))

    def _number(self, value: Any) -> float | None:
        if value is None:
            return None
        try:
            return float(value)
        except (TypeError, ValueError, OverflowError):
            self.not_numbers += not isinstance(value, str | list)
            return None

    def _sorted(self) -> tuple[int, Floats, Indices]:
        """(lines whose step was there already or later, steps rising, the line of each): of several lines for a step
        the last written counts."""
        import numpy

        if self._order is None:
            steps = numpy.concatenate(self._steps) if self._steps else numpy.empty(0)
            if len(steps) < 2 or (numpy.diff(steps) > 0).all():
                self._order = (0, steps, numpy.arange(len(steps)))
            else:
                back = int((steps[1:] <= numpy.maximum.accumulate(steps)[:-1]).sum())
                lines = numpy.argsort(steps, kind="stable")
                last = numpy.append(numpy.diff(steps[lines]) > 0, True)
                self._order = (back, steps[lines][last], lines[last])
        return self._order

    @property
    def repeated(self) -> int:
        """Lines whose step is not above all before them: two writers, or a record put together by hand."""
        return self._sorted()[0]

    @property
    def steps(self) -> Floats:
        return self._sorted()[1]

    def dense(self, key: Key) -> Floats:
        """A value a step of `steps`; NaN where there is none."""
        import numpy

        _, _, lines = self._sorted()
        parts = self._parts.get(key, [])
        if key not in self._joined or self._joined[key][0] != self._count:
            whole = numpy.full(self._count, numpy.nan)
            for places, column in parts:
                whole[places] = column
            self._joined[key] = (self._count, whole)
        return self._joined[key][1][lines]

    def series(self, key: Key) -> tuple[Floats, Floats]:
        """(steps, values) where there is a finite value."""
        import numpy

        values = self.dense(key)
        there = ~numpy.isnan(values)
        return self.steps[there], values[there]

    def last(self, key: Key) -> float | None:
        _, values = self.series(key)
        return float(values[-1]) if len(values) else None


def _by_shape(
    rows: Sequence[dict[str, Any]], places: Indices
) -> Iterator[tuple[tuple[str, ...], Indices, list[tuple[Any, ...]]]]:
    """Objects with the same keys together: (keys, their places, a tuple of values a key). Lines of a record have few
    shapes, and taking a shape's columns out at once is three times as fast as asking each line for each key."""
    shapes: dict[tuple[str, ...], list[int]] = {}
    for at, row in enumerate(rows):
        shapes.setdefault(tuple(row), []).append(at)
    for names, own in shapes.items():
        if names:
            yield names, places[own], list(zip(*[rows[at].values() for at in own], strict=True))


def _is_step(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e15


def _not_finite(value: Any) -> bool:
    if isinstance(value, str):
        return value in ("NaN", "Infinity", "-Infinity")
    return isinstance(value, float) and not math.isfinite(value)
