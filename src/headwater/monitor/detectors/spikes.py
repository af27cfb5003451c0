"""Loss and gradient norm that leave their recent range, or the range of numbers.

In: `loss`, `grad_norm`, `non_finite` (the first tensor with NaN or infinity, by name), `phase` (what is trained on:
where it changes, levels are learned anew). Out: alerts at the step itself.

    LossSpike().observe(1, {"loss": 2.3})
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from statistics import median
from typing import Any

from headwater.monitor.detectors.base import Alert, Change, Figures, Persistence, RobustWindow, number

FLOOR = 0.01
"""Share of the level added to its deviation, so that a very quiet loss does not make small changes look large."""


class LossSpike:
    """Loss more than `spike` robust standard deviations, and `least` nats, above its level: the median of the last
    `local` accepted values. The deviation is that of the last `window` values from the level of their time, so that a
    loss that falls quickly does not count as wide.

    Values that are flagged never enter, so a spike cannot hide the next one. After `patience` flagged steps in a row
    the new level is accepted (a change of data, say). In the first `warm_up` steps only a rise above the highest value
    so far by half is a spike.
    """

    name = "loss_spike"
    finds = "a loss six robust deviations, and 0.1 nats, above its level"
    within = "the step itself"

    def __init__(
        self,
        window: int = 128,
        spike: float = 6.0,
        least: float = 0.1,
        warm_up: int = 40,
        patience: int = 32,
        local: int = 16,
    ) -> None:
        self._recent: deque[float] = deque(maxlen=local)
        self._rises = RobustWindow(window, floor_ratio=0.0)
        self._spike, self._least, self._warm_up, self._patience = spike, least, warm_up, patience
        self._flagged = 0
        self._change = Change()

    def observe(self, step: int, figures: Figures) -> Alert | None:
        loss = number(figures, "loss")
        if loss is None:
            return None
        if self._change(figures):
            self._recent.clear()
        if not self._recent:
            self._accept(loss)
            return None
        level = median(self._recent)
        score = None
        if len(self._rises) + (self._recent.maxlen or 0) < self._warm_up:
            spiked = loss > 1.5 * max(self._recent)
        else:
            score = (loss - level - self._rises.median) / (self._rises.spread + FLOOR * level or FLOOR)
            spiked = score > self._spike and loss - level > self._least
        if not spiked:
            self._accept(loss)
            return None
        self._flagged += 1
        if self._flagged > self._patience:
            self._recent.clear()
            self._rises.clear()
            self._accept(loss)
        message = f"loss {loss:.3f}, at a level of {level:.3f} before"
        return Alert(self.name, "critical", step, message, {"loss": loss, "level": level, "score": score})

    def _accept(self, loss: float) -> None:
        self._flagged = 0
        if len(self._recent) == self._recent.maxlen:
            self._rises.add(loss - median(self._recent))
        self._recent.append(loss)

    def state_dict(self) -> dict[str, Any]:
        return {
            "recent": list(self._recent),
            "rises": self._rises.values,
            "flagged": self._flagged,
            "phase": self._change.phase,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._recent.clear()
        self._recent.extend(state["recent"])
        self._change.phase = state["phase"]
        self._rises.values, self._flagged = list(state["rises"]), int(state["flagged"])


class MovingAverageRule:
    """Loss above `factor` times the simple average of the last `window` accepted values, and `least` nats above it (a
    loss near 0 swings by factors): the rule many teams know. After `patience` flagged steps in a row the new level is
    accepted."""

    name = "moving_average"
    finds = "a loss 1.5 times its average over 100 accepted steps"
    within = "the step itself"

    def __init__(
        self, window: int = 100, factor: float = 1.5, least: float = 0.1, warm_up: int = 10, patience: int = 32
    ) -> None:
        self._values: deque[float] = deque(maxlen=window)
        self._factor, self._least, self._warm_up, self._patience = factor, least, warm_up, patience
        self._flagged = 0
        self._change = Change()

    def observe(self, step: int, figures: Figures) -> Alert | None:
        loss = number(figures, "loss")
        if loss is None:
            return None
        if self._change(figures):
            self._values.clear()
        if len(self._values) >= self._warm_up:
            average = sum(self._values) / len(self._values)
            if loss > max(self._factor * average, average + self._least):
                self._flagged += 1
                if self._flagged > self._patience:
                    self._flagged = 0
                    self._values.clear()
                message = f"loss {loss:.3f} is above {self._factor:g} x its moving average {average:.3f}"
                return Alert(self.name, "critical", step, message, {"loss": loss, "average": average})
        self._flagged = 0
        self._values.append(loss)
        return None

    def state_dict(self) -> dict[str, Any]:
        return {"values": list(self._values), "flagged": self._flagged, "phase": self._change.phase}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._values.clear()
        self._values.extend(state["values"])
        self._flagged, self._change.phase = int(state["flagged"]), state["phase"]


class NonFinite:
    """NaN or infinity in loss or gradient; the first tensor that has it, where it is known."""

    name = "non_finite"
    finds = "NaN or infinity in the loss or the gradient, with the first parameter that has it"
    within = "the step itself, before its update"

    def observe(self, step: int, figures: Figures) -> Alert | None:
        bad = [key for key in ("loss", "grad_norm") if _not_finite(figures.get(key))]
        tensor = figures.get("non_finite")
        if not bad and not tensor:
            return None
        where = f", first in {tensor}" if tensor else ""
        names = " and ".join(name.replace("_", " ") for name in bad) or "a tensor"
        return Alert(
            self.name, "critical", step, f"NaN or infinity in {names}{where}", {"tensor": tensor, "figures": bad}
        )

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        return None


def _not_finite(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


class GradientExplosion:
    """Gradient norm above `limit`, or `score` robust standard deviations and `ratio` times above its recent median (of
    logarithms: norms spread by factors): `burst` times at once, or in `often` of the last eight steps. Single norms of
    thirty times the usual come in healthy runs, where a step's few documents ask for the same thing."""

    name = "gradient_explosion"
    finds = "a gradient norm above 1e5 or 100 times the usual, or five times the usual in 4 of 8 steps"
    within = "the step itself, or 4 steps"

    def __init__(
        self,
        window: int = 128,
        score: float = 8.0,
        ratio: float = 5.0,
        burst: float = 100.0,
        often: int = 4,
        limit: float = 1e5,
        warm_up: int = 32,
    ) -> None:
        self._window = RobustWindow(window, floor_ratio=0.0)
        self._score, self._ratio, self._burst, self._often = score, ratio, burst, often
        self._limit, self._warm_up = limit, warm_up
        self._high: deque[bool] = deque(maxlen=8)
        self._flagged = 0

    def observe(self, step: int, figures: Figures) -> Alert | None:
        norm = number(figures, "grad_norm")
        if norm is None:
            return None
        value = math.log(max(norm, 1e-30))
        usual = math.exp(self._window.median) if len(self._window) else None
        times = norm / usual if usual and len(self._window) >= self._warm_up else 0.0
        high = times > self._ratio and self._window.score(value) > self._score
        self._high.append(high)
        if not high and norm <= self._limit:
            self._flagged = 0
            self._window.add(value)
            return None
        self._flagged += 1
        if self._flagged > self._warm_up:  # a new level, not a burst
            self._flagged = 0
            self._window.clear()
            self._high.clear()
        if norm <= self._limit and times < self._burst and sum(self._high) < self._often:
            return None
        beside = f", usually {usual:.3g}" if usual is not None else ""
        evidence = {"grad_norm": norm, "median": usual}
        onset = step - max((age for age, high in enumerate(reversed(self._high)) if high), default=0)
        return Alert(self.name, "critical", step, f"gradient norm {norm:.3g}{beside}", evidence, onset)

    def state_dict(self) -> dict[str, Any]:
        return {"window": self._window.values, "high": list(self._high), "flagged": self._flagged}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._window.values, self._flagged = list(state["window"]), int(state["flagged"])
        self._high.clear()
        self._high.extend(state["high"])


class GradientVanishing:
    """Gradient norm below `limit`, or a thousandth of its usual size, for `steps` steps."""

    name = "gradient_vanishing"
    finds = "a gradient norm below 1e-7, or a thousandth of the usual"
    within = "20 steps"

    def __init__(self, limit: float = 1e-7, ratio: float = 1e-3, steps: int = 20, window: int = 256) -> None:
        self._limit, self._ratio = limit, ratio
        self._window = RobustWindow(window)
        self._persists = Persistence(steps)
        self._steps = steps

    def observe(self, step: int, figures: Figures) -> Alert | None:
        norm = number(figures, "grad_norm")
        if norm is None:
            return None
        usual = self._window.median if len(self._window) >= self._steps else None
        low = norm < self._limit or (usual is not None and norm < self._ratio * usual)
        if not low:
            self._window.add(norm)
        if not self._persists(low):
            return None
        message = f"gradient norm {norm:.3g} for {self._steps} steps"
        onset = step - self._steps + 1
        return Alert(self.name, "warning", step, message, {"grad_norm": norm, "median": usual}, onset)

    def state_dict(self) -> dict[str, Any]:
        return {"window": self._window.values, "held": self._persists.held}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._window.values, self._persists.held = list(state["window"]), int(state["held"])
