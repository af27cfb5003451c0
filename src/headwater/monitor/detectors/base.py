"""What detectors share: alerts, and a window of accepted values with robust statistics.

A detector is fed every step's figures, in order, and says what is wrong with the step; it keeps its history as plain
JSON, which goes into the checkpoint: after a resume it knows all it knew before.

    window = RobustWindow(128); window.add(2.3); window.score(9.0)
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Literal, Protocol

Figures = Mapping[str, Any]
"""A step's figures by the keys of `headwater.monitor.registry`; one that is missing or None is not looked at."""
Severity = Literal["warning", "critical"]
LARGEST = 1e300
"""No figure of a run is larger; integers of JSON can be, beyond what a float holds."""


@dataclass(frozen=True, slots=True)
class Alert:
    """Something wrong at a step. `message` is for people; `evidence` the numbers behind it; `onset` the first step that
    can have been wrong (`step` unless said): a state from before it is good."""

    detector: str
    severity: Severity
    step: int
    message: str
    evidence: dict[str, Any] = field(default_factory=dict)
    onset: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "onset", min(self.onset or self.step, self.step))


class Detector(Protocol):
    """A state machine over figures. `finds` says what, `within` how soon after the first wrong step, both with the
    usual thresholds: the documentation's table."""

    name: str
    finds: str
    within: str

    def observe(self, step: int, figures: Figures) -> Alert | None: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


def number(figures: Figures, key: str) -> float | None:
    """A finite figure, or None."""
    value = figures.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < LARGEST:
        return None
    return float(value)


class RobustWindow:
    """The last `size` accepted values. Their median and MAD withstand up to half of them being wrong.

    1.4826 x MAD estimates the standard deviation of normal values (Rousseeuw and Croux 1993). `floor_ratio` of the
    median is added, so that a very quiet series does not make small changes look large.
    """

    def __init__(self, size: int, *, floor_ratio: float = 0.01) -> None:
        self._values: deque[float] = deque(maxlen=size)
        self._floor_ratio = floor_ratio

    def __len__(self) -> int:
        return len(self._values)

    def add(self, value: float) -> None:
        self._values.append(value)

    def clear(self) -> None:
        self._values.clear()

    @property
    def median(self) -> float:
        return median(self._values)

    @property
    def spread(self) -> float:
        """Robust standard deviation, with the floor."""
        middle = self.median
        return 1.4826 * median(abs(value - middle) for value in self._values) + self._floor_ratio * abs(middle)

    def score(self, value: float) -> float:
        """How many robust standard deviations above the median; infinite where there is no spread at all."""
        difference = value - self.median
        spread = self.spread
        if spread == 0:
            return math.inf if difference > 0 else 0.0 if difference == 0 else -math.inf
        return difference / spread

    @property
    def values(self) -> list[float]:
        return list(self._values)

    @values.setter
    def values(self, values: list[float]) -> None:
        self._values.clear()
        self._values.extend(values)


class Persistence:
    """Says yes once a condition has held for `steps` steps running, and again only after it stopped."""

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self.held = 0

    def __call__(self, holds: bool) -> bool:
        self.held = self.held + 1 if holds else 0
        return self.held == self._steps


class Change:
    """Says yes at the step at which a planned change begins: `phase` of the figures is another than before. What is
    usual for a loss is learned anew then; a level that rises with the data is no fault."""

    def __init__(self) -> None:
        self.phase: str | None = None

    def __call__(self, figures: Figures) -> bool:
        phase = figures.get("phase")
        if not isinstance(phase, str) or phase == self.phase:
            return False
        before, self.phase = self.phase, phase
        return before is not None
