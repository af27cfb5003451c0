"""Loss that does not go down, goes up slowly, or swings.

In: `loss`; `uniform_loss` and `unigram_loss` (what guessing costs without and with knowing how often each token comes);
`lr_share` (the learning rate as a share of its peak); `phase` (what is trained on: where it changes, levels are learned
anew). Out: one alert when it becomes certain, within the window each detector states.

    NoConvergence().observe(1, {"loss": 10.4})
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from statistics import median
from typing import Any

from headwater.monitor.detectors.base import Alert, Change, Figures, Persistence, number


class NoConvergence:
    """Nothing is learned. `after` steps into the run, counted from half of the peak learning rate on, the loss is still
    within `ratio` of where it began; or, a third of that later, no lower than what token frequencies alone explain
    (`unigram_loss`), and falling by less than `ratio` in `flat` steps: a healthy model rests at that level, too, but
    not for so long (one that learns slowly gets there later, when this is no longer looked for). Says so once. A run
    that begins below two thirds of `uniform_loss` goes on with a trained model, which need not learn that much."""

    name = "no_convergence"
    finds = "a loss near where it began, or no lower than token frequencies explain"
    within = "180 steps from half of the peak rate on; 240 for token frequencies"

    def __init__(self, after: int = 180, ratio: float = 0.02, sample: int = 20, flat: int = 140) -> None:
        self._after, self._ratio, self._sample = after, ratio, sample
        self._first: list[float] = []
        self._last: deque[float] = deque(maxlen=max(flat, 3 * sample))
        self._seen = 0
        self._done = False
        self._change = Change()

    def observe(self, step: int, figures: Figures) -> Alert | None:
        loss = number(figures, "loss")
        self._done = self._done or self._change(figures)  # what guessing costs is of the data it began with
        if loss is None or self._done:
            return None
        share = number(figures, "lr_share")
        if self._seen or share is None or share >= 0.5:
            self._seen += 1
        if len(self._first) < self._sample:
            self._first.append(loss)
        self._last.append(loss)
        if self._seen < self._after:
            return None
        began, recent = median(self._first), list(self._last)
        now = median(recent[-2 * self._sample :])
        uniform, unigram = number(figures, "uniform_loss"), number(figures, "unigram_loss")
        self._done = self._seen >= 1.5 * self._after or (uniform is not None and began < uniform * 2 / 3)
        evidence = {"began": began, "now": now, "unigram": unigram}
        if self._done:
            return None
        if self._seen == self._after and now >= (1 - self._ratio) * began:
            self._done = True
            message = f"loss {now:.3f} after {self._seen} steps, {began:.3f} at the beginning: nothing has been learned"
            return Alert(self.name, "warning", step, message, evidence, step - self._after + 1)
        if unigram is None or self._seen < self._after * 4 // 3:
            return None
        if now < (1 - 1.5 * self._ratio) * unigram:
            self._done = True
        third = len(recent) // 3
        flat = median(recent[-third:]) > (1 - self._ratio) * median(recent[:third])
        if not flat or now < (1 - 0.1 * self._ratio) * unigram:
            return None
        self._done = True
        message = f"loss {now:.3f} after {self._seen} steps: token frequencies alone explain {unigram:.3f}"
        return Alert(self.name, "warning", step, message, evidence, step - self._seen + 1)

    def state_dict(self) -> dict[str, Any]:
        state = {"first": self._first, "last": list(self._last), "seen": self._seen, "done": self._done}
        return {**state, "phase": self._change.phase}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._first, self._seen, self._done = list(state["first"]), int(state["seen"]), bool(state["done"])
        self._change.phase = state["phase"]
        self._last.clear()
        self._last.extend(state["last"])


class SlowDivergence:
    """The median of the last `window` losses is `ratio` above the lowest such median: creeping up, without a spike."""

    name = "divergence"
    finds = "a median loss 5 % above its lowest, without a spike"
    within = "64 steps after it is so far up"

    def __init__(self, window: int = 64, ratio: float = 0.05, least: float = 0.05) -> None:
        self._values: deque[float] = deque(maxlen=window)
        self._ratio, self._least = ratio, least
        self._lowest: float | None = None
        self._persists = Persistence(8)
        self._change = Change()

    def observe(self, step: int, figures: Figures) -> Alert | None:
        loss = number(figures, "loss")
        if loss is None:
            return None
        if self._change(figures):
            self._values.clear()
            self._lowest = None
        self._values.append(loss)
        if len(self._values) < (self._values.maxlen or 0):
            return None
        now = median(self._values)
        self._lowest = now if self._lowest is None else min(self._lowest, now)
        rise = now - self._lowest
        if not self._persists(rise > self._ratio * self._lowest + self._least):
            return None
        message = f"loss {now:.3f} over the last {len(self._values)} steps, {self._lowest:.3f} at its best"
        onset = step - len(self._values)
        return Alert(self.name, "warning", step, message, {"now": now, "best": self._lowest}, onset)

    def state_dict(self) -> dict[str, Any]:
        return {
            "values": list(self._values),
            "lowest": self._lowest,
            "held": self._persists.held,
            "phase": self._change.phase,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._values.clear()
        self._values.extend(state["values"])
        self._lowest, self._persists.held = state["lowest"], int(state["held"])
        self._change.phase = state["phase"]


class Oscillation:
    """The loss swings around its own local level `ratio` times as widely as before, for `steps` steps.

    Width: median distance from the median of the last `local` losses, of the last 64 steps against the 256 before.
    Spikes do not count (medians), a trend does not count (local level).
    """

    name = "oscillation"
    finds = "a loss that swings three times as widely as before"
    within = "100 steps"

    def __init__(self, ratio: float = 3.0, least: float = 0.02, steps: int = 16, local: int = 16) -> None:
        self._ratio, self._least = ratio, least
        self._recent: deque[float] = deque(maxlen=local)
        self._widths: deque[float] = deque(maxlen=64 + 256)
        self._persists = Persistence(steps)
        self._change = Change()

    def observe(self, step: int, figures: Figures) -> Alert | None:
        loss = number(figures, "loss")
        if loss is None:
            return None
        if self._change(figures):
            self._recent.clear()
            self._widths.clear()
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
        return Alert(self.name, "warning", step, message, {"width": now, "before": before}, step - 64)

    def state_dict(self) -> dict[str, Any]:
        return {
            "recent": list(self._recent),
            "widths": list(self._widths),
            "held": self._persists.held,
            "phase": self._change.phase,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for store, key in ((self._recent, "recent"), (self._widths, "widths")):
            store.clear()
            store.extend(state[key])
        self._persists.held, self._change.phase = int(state["held"]), state["phase"]
