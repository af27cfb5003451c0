"""Loss that does not go down, goes up slowly, or swings.

In: `loss`, and `uniform_loss` (that of a guess: the logarithm of the vocabulary). Out: one alert when it becomes
certain, within the window each detector states.

    NoConvergence().observe(1, {"loss": 10.4})
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from headwater.monitor.detectors.base import Alert, Figures, Persistence, number


class NoConvergence:
    """`after` steps into the run the loss is still within `ratio` of where it began. Says so once. A run that begins
    below two thirds of `uniform_loss` goes on with a trained model, which need not learn that much."""

    name = "no_convergence"

    def __init__(self, after: int = 200, ratio: float = 0.02, sample: int = 20) -> None:
        self._after, self._ratio, self._sample = after, ratio, sample
        self._first: list[float] = []
        self._last: deque[float] = deque(maxlen=2 * sample)
        self._seen = 0

    def observe(self, step: int, figures: Figures) -> Alert | None:
        loss = number(figures, "loss")
        if loss is None or self._seen > self._after:
            return None
        self._seen += 1
        if len(self._first) < self._sample:
            self._first.append(loss)
        self._last.append(loss)
        if self._seen != self._after:
            return None
        began, now = median(self._first), median(self._last)
        guess = number(figures, "uniform_loss")
        if now < (1 - self._ratio) * began or (guess is not None and began < guess * 2 / 3):
            return None
        message = f"loss {now:.3f} after {self._seen} steps, {began:.3f} at the beginning: nothing has been learned"
        return Alert(self.name, "warning", step, message, {"began": began, "now": now})

    def state_dict(self) -> dict[str, Any]:
        return {"first": self._first, "last": list(self._last), "seen": self._seen}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._first, self._seen = list(state["first"]), int(state["seen"])
        self._last.clear()
        self._last.extend(state["last"])


class SlowDivergence:
    """The median of the last `window` losses is `ratio` above the lowest such median: creeping up, without a spike."""

    name = "divergence"

    def __init__(self, window: int = 64, ratio: float = 0.05, least: float = 0.05) -> None:
        self._values: deque[float] = deque(maxlen=window)
        self._ratio, self._least = ratio, least
        self._lowest: float | None = None
        self._persists = Persistence(8)

    def observe(self, step: int, figures: Figures) -> Alert | None:
        loss = number(figures, "loss")
        if loss is None:
            return None
        self._values.append(loss)
        if len(self._values) < (self._values.maxlen or 0):
            return None
        now = median(self._values)
        self._lowest = now if self._lowest is None else min(self._lowest, now)
        rise = now - self._lowest
        if not self._persists(rise > self._ratio * self._lowest + self._least):
            return None
        message = f"loss {now:.3f} over the last {len(self._values)} steps, {self._lowest:.3f} at its best"
        return Alert(self.name, "warning", step, message, {"now": now, "best": self._lowest})

    def state_dict(self) -> dict[str, Any]:
        return {"values": list(self._values), "lowest": self._lowest, "held": self._persists.held}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._values.clear()
        self._values.extend(state["values"])
        self._lowest, self._persists.held = state["lowest"], int(state["held"])


class Plateau:
    """The loss of the last `sample` steps is within `ratio` of what it was at half as many steps.

    Doublings, not a fixed window: a healthy loss falls like a power of the steps, by about as much with each doubling,
    and over any fixed window it looks flat late in a run. Looked at from `after` steps on; says so once a doubling.
    """

    name = "plateau"

    def __init__(self, after: int = 200, ratio: float = 0.003, sample: int = 50) -> None:
        self._after, self._ratio = after, ratio
        self._values: deque[float] = deque(maxlen=sample)
        self._history: list[tuple[int, float]] = []
        self._silent_until = 0
        self._persists = Persistence(sample)

    def observe(self, step: int, figures: Figures) -> Alert | None:
        loss = number(figures, "loss")
        if loss is None:
            return None
        self._values.append(loss)
        if len(self._values) < (self._values.maxlen or 0):
            return None
        now = median(self._values)
        if not self._history or step >= 1.1 * self._history[-1][0]:
            self._history.append((step, now))
        before = _at(self._history, step / 2)
        flat = before is not None and step >= self._after and now > (1 - self._ratio) * before
        if not self._persists(flat) or step < self._silent_until:
            return None
        self._silent_until = 2 * step
        message = f"loss {now:.3f}, {before:.3f} at half as many steps: no progress"
        return Alert(self.name, "warning", step, message, {"now": now, "at_half": before})

    def state_dict(self) -> dict[str, Any]:
        return {
            "values": list(self._values),
            "history": [list(pair) for pair in self._history],
            "silent_until": self._silent_until,
            "held": self._persists.held,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._values.clear()
        self._values.extend(state["values"])
        self._history = [(int(step), float(loss)) for step, loss in state["history"]]
        self._silent_until, self._persists.held = int(state["silent_until"]), int(state["held"])


def _at(history: Sequence[tuple[int, float]], step: float) -> float | None:
    """The last median noted at or before a step."""
    found = None
    for noted, value in history:
        if noted > step:
            break
        found = value
    return found


class Oscillation:
    """The loss swings around its own local level `ratio` times as widely as before, for `steps` steps.

    Width: median distance from the median of the last `local` losses, of the last 64 steps against the 256 before.
    Spikes do not count (medians), a trend does not count (local level).
    """

    name = "oscillation"

    def __init__(self, ratio: float = 3.0, least: float = 0.02, steps: int = 16, local: int = 16) -> None:
        self._ratio, self._least = ratio, least
        self._recent: deque[float] = deque(maxlen=local)
        self._widths: deque[float] = deque(maxlen=64 + 256)
        self._persists = Persistence(steps)

    def observe(self, step: int, figures: Figures) -> Alert | None:
        loss = number(figures, "loss")
        if loss is None:
            return None
        if len(self._recent) == self._recent.maxlen:
            self._widths.append(abs(loss - median(self._recent)))
        self._recent.append(loss)
        widths = list(self._widths)
        if len(widths) < 128:
            return None
        before, now = median(widths[:-64]), median(widths[-64:])
        wide = now > self._ratio * before and now > self._least * abs(median(self._recent))
        if not self._persists(wide):
            return None
        message = f"loss swings by {now:.3f} around its level, {now / max(before, 1e-12):.1f} times as widely as before"
        return Alert(self.name, "warning", step, message, {"width": now, "before": before})

    def state_dict(self) -> dict[str, Any]:
        return {"recent": list(self._recent), "widths": list(self._widths), "held": self._persists.held}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for store, key in ((self._recent, "recent"), (self._widths, "widths")):
            store.clear()
            store.extend(state[key])
        self._persists.held = int(state["held"])
