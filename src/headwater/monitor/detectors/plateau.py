"""A loss that does not fall any more.

In: `loss`; `lr_share` (the learning rate as a share of its peak); `phase` (what is trained on). Out: an alert.

    Plateau().observe(1, {"loss": 10.4, "lr_share": 0.01})
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from headwater.monitor.detectors.base import Alert, Change, Figures, Persistence, number

LINE_EVERY = 4
"""Steps between two lines drawn through the window, which cost most of what this detector does."""


class Plateau:
    """The loss does not fall any more; looked at while the learning rate is above `lr_share` of its peak, as a loss may
    come to rest at the end of its decay.

    A healthy loss falls like a power of the steps, by about as much with each doubling, and over any fixed number of
    steps it looks flat late in a run. So two things are plateaus. Within the last `window` steps the loss fell by less
    than a hundredth, and than a fifth of what the doubling before them leads to expect, where that is six times more
    than chance: so long as a run is young. Or the loss of the last 50 steps is within `ratio` of what it was at half as
    many steps, which takes a doubling. Says so once a doubling.
    """

    name = "plateau"
    finds = "a loss that no longer falls"
    within = "200 steps while a run is young, then a doubling of its steps"

    def __init__(
        self, after: int = 300, window: int = 200, ratio: float = 0.003, sample: int = 50, lr_share: float = 0.3
    ) -> None:
        self._after, self._ratio, self._sample, self._lr_share = after, ratio, sample, lr_share
        self._values: deque[float] = deque(maxlen=window)
        self._history: list[tuple[int, float]] = []
        self._silent_until = 0
        self._persists = {"window": Persistence(3), "doubling": Persistence(sample)}
        self._change = Change()

    def observe(self, step: int, figures: Figures) -> Alert | None:
        loss = number(figures, "loss")
        if loss is None:
            return None
        if self._change(figures):
            self._values.clear()
            self._history.clear()
        self._values.append(loss)
        values = list(self._values)
        if len(values) < self._sample:
            return None
        now = median(values[-self._sample :])
        if not self._history or step >= 1.05 * self._history[-1][0]:
            self._history.append((step, median(values[-20:])))
        share = number(figures, "lr_share")
        looked_at = step >= self._after and (share is None or share >= self._lr_share)
        before = _at(self._history, step / 2)
        doubling = looked_at and before is not None and now > (1 - self._ratio) * before
        said = self._persists["doubling"](doubling)
        fallen = None
        if step % LINE_EVERY == 0:
            fallen = self._fallen(step, values) if looked_at and len(values) == self._values.maxlen else None
            said |= self._persists["window"](fallen is not None)
        if not said or step < self._silent_until:
            return None
        self._silent_until = 2 * step
        if fallen is not None:
            fall, expected = fallen
            message = f"loss {now:.3f}: it fell by {fall:.3f} in {len(values)} steps, not by {expected:.3f} as before"
            evidence = {"now": now, "fall": fall, "expected": expected}
            return Alert(self.name, "warning", step, message, evidence, step - len(values) + 1)
        message = f"loss {now:.3f}, {before:.3f} at half as many steps: no progress"
        return Alert(self.name, "warning", step, message, {"now": now, "at_half": before}, step // 2)

    def _fallen(self, step: int, values: list[float]) -> tuple[float, float] | None:
        """(fall, expected fall) over the window where it is far too little."""
        start = step - len(values)
        early, late = _at(self._history, start / 2), _at(self._history, start)
        if early is None or late is None or start < self._after / 2:
            return None
        expected = (early - late) * math.log2(step / start)
        fall, error = _fall(values)
        flat = fall < min(0.2 * expected, 0.01 * late)  # a model that rests at token frequencies still falls by more
        return (fall, expected) if flat and expected > 6 * error else None

    def state_dict(self) -> dict[str, Any]:
        return {
            "values": list(self._values),
            "history": [list(pair) for pair in self._history],
            "silent_until": self._silent_until,
            "held": {name: persists.held for name, persists in self._persists.items()},
            "phase": self._change.phase,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._values.clear()
        self._values.extend(state["values"])
        self._history = [(int(step), float(loss)) for step, loss in state["history"]]
        self._silent_until, self._change.phase = int(state["silent_until"]), state["phase"]
        for name, persists in self._persists.items():
            persists.held = int(state["held"][name])


def _at(history: Sequence[tuple[int, float]], step: float) -> float | None:
    """The last median noted at or before a step."""
    found = None
    for noted, value in history:
        if noted > step:
            break
        found = value
    return found


def _fall(values: Sequence[float]) -> tuple[float, float]:
    """How far a straight line through the values falls from end to end, and its standard error; values far off the
    median count as four deviations."""
    middle = median(values)
    reach = 4 * 1.4826 * median(abs(value - middle) for value in values)
    near = [min(max(value, middle - reach), middle + reach) for value in values]
    count = len(near)
    mean, centre = sum(near) / count, (count - 1) / 2
    slope = sum((place - centre) * (value - mean) for place, value in enumerate(near)) / (count * (count**2 - 1) / 12)
    rest = sum((value - mean - slope * (place - centre)) ** 2 for place, value in enumerate(near)) / (count - 2)
    return -slope * count, math.sqrt(12 * rest / count)
