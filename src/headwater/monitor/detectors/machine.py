"""Time and room: late data, slower steps, a slow rank, memory that creeps or runs out, old checkpoints, a full disk.

In: `step_seconds`, `step_tokens`, `data_wait_seconds`, `rank_seconds` (a list, by rank), `mem_allocated`, `mem_limit`,
`checkpoint_age_steps`, `checkpoint_every_steps`, `disk_free_bytes`, `checkpoint_bytes`. Out: one alert when a condition
has held long enough.

    SlowData().observe(1, {"step_seconds": 0.5, "data_wait_seconds": 0.01})
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Mapping
from itertools import pairwise
from statistics import median
from typing import Any

from headwater.core.files import gib, space
from headwater.monitor.detectors.base import Alert, Figures, Persistence, RobustWindow, number

NEW_USUAL = 256
"""After so many slow steps running they are what is usual."""


class SlowData:
    """More than `share` of the step spent waiting for data, in the median of `steps` steps."""

    name = "slow_data"
    finds = "more than 30 % of the step spent waiting for data"
    within = "20 steps"

    def __init__(self, share: float = 0.3, steps: int = 20) -> None:
        self._share = share
        self._values: deque[float] = deque(maxlen=steps)
        self._persists = Persistence(1)

    def observe(self, step: int, figures: Figures) -> Alert | None:
        whole, waited = number(figures, "step_seconds"), number(figures, "data_wait_seconds")
        if not whole or waited is None:
            return None
        self._values.append(waited / whole)
        share = median(self._values)
        if not self._persists(len(self._values) == self._values.maxlen and share > self._share):
            return None
        return Alert(self.name, "warning", step, f"{share:.0%} of the step is spent waiting for data", {"share": share})

    def state_dict(self) -> dict[str, Any]:
        return {"values": list(self._values), "held": self._persists.held}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._values.clear()
        self._values.extend(state["values"])
        self._persists.held = int(state["held"])


class SlowSteps:
    """Steps `ratio` times as long as their usual duration, in the median of `steps` of them, for `lasting` seconds:
    single long steps (checkpoints, validation) and moments of a busy machine do not count. Where the tokens of a step
    change by a tenth (a batch that grows, another phase), the usual is learned anew."""

    name = "slow_steps"
    finds = "steps 1.5 times as long as usual"
    within = "20 steps and 20 seconds"

    def __init__(self, ratio: float = 1.5, steps: int = 20, window: int = 256, lasting: float = 20.0) -> None:
        self._ratio, self._lasting = ratio, lasting
        self._recent: deque[float] = deque(maxlen=steps)
        self._usual = RobustWindow(window)
        self._held, self._slow = 0, 0.0
        self._tokens: float | None = None

    def observe(self, step: int, figures: Figures) -> Alert | None:
        seconds = number(figures, "step_seconds")
        if seconds is None:
            return None
        tokens = number(figures, "step_tokens")
        if tokens is not None:
            if self._tokens is not None and abs(tokens - self._tokens) > 0.1 * self._tokens:
                self._recent.clear()
                self._usual.clear()
                self._held, self._slow = 0, 0.0
            self._tokens = tokens
        if len(self._recent) == self._recent.maxlen:  # the usual is what was before the recent ones
            left = self._recent[0]
            if not len(self._usual) or left < self._ratio * self._usual.median or self._held > NEW_USUAL:
                self._usual.add(left)
        self._recent.append(seconds)
        if len(self._usual) < (self._recent.maxlen or 0):
            return None
        now, usual = median(self._recent), self._usual.median
        slow = now > self._ratio * usual
        before = self._slow
        if not slow:
            self._slow = 0.0
        elif before:
            self._slow += seconds
        else:  # those that made the median slow count too, one very long step (a checkpoint) like the others
            self._slow = sum(min(one, 2 * now) for one in self._recent if one > self._ratio * usual)
        self._held = self._held + 1 if slow else 0
        if not before < self._lasting <= self._slow:
            return None
        return Alert(
            self.name, "warning", step, f"steps take {now:.3g} s, usually {usual:.3g} s", {"now": now, "usual": usual}
        )

    def state_dict(self) -> dict[str, Any]:
        return {
            "recent": list(self._recent),
            "usual": self._usual.values,
            "held": self._held,
            "slow": self._slow,
            "tokens": self._tokens,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._recent.clear()
        self._recent.extend(state["recent"])
        self._usual.values = list(state["usual"])
        self._held, self._slow = int(state["held"]), float(state["slow"])
        self._tokens = state["tokens"]


class SlowRank:
    """One rank's own work (without waiting for others) takes so long that the time of the other ranks' median over its
    own is below `score` in `samples` samples running. 0.7 is the default threshold of NVIDIA's resiliency extension."""

    name = "slow_rank"
    finds = "a rank whose own work takes 1.4 times as long as the others'"
    within = "3 exchanges: 30 steps"

    def __init__(self, score: float = 0.7, samples: int = 3) -> None:
        self._score, self._samples = score, samples
        self._held: dict[str, int] = {}

    def observe(self, step: int, figures: Figures) -> Alert | None:
        seconds = figures.get("rank_seconds")
        if not isinstance(seconds, list | tuple) or len(seconds) < 2:
            return None
        found = None
        ordered = sorted(seconds)
        for rank, own in enumerate(seconds):
            middle = _median_of_others(ordered, own)
            slow = own > 0 and middle / own < self._score
            self._held[str(rank)] = self._held.get(str(rank), 0) + 1 if slow else 0
            if self._held[str(rank)] == self._samples and found is None:
                found = Alert(
                    self.name,
                    "warning",
                    step,
                    f"rank {rank} takes {own:.3g} s for its part of a step, the others {middle:.3g} s",
                    {"rank": rank, "seconds": own, "median": middle},
                )
        return found

    def state_dict(self) -> dict[str, Any]:
        return {"held": self._held}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._held = dict(state["held"])


def _median_of_others(ordered: list[float], own: float) -> float:
    """Of two ranks the other one, of thousands nearly the median: no copy for each."""
    count = len(ordered) - 1
    place = bisect_left(ordered, own)

    def other(index: int) -> float:
        return ordered[index if index < place else index + 1]

    return (other((count - 1) // 2) + other(count // 2)) / 2


class MemoryCreep:
    """Memory grew in nearly every stretch of the last `window` steps, and by `ratio` altogether. The first `settle`
    steps do not count: caches and optimizer state appear in them."""

    name = "memory_creep"
    finds = "memory that grows by 3 % in 120 steps, steadily"
    within = "120 steps, after the first 40"

    def __init__(self, window: int = 120, ratio: float = 0.03, settle: int = 40) -> None:
        self._values: deque[float] = deque(maxlen=window)
        self._ratio, self._settle, self._seen = ratio, settle, 0
        self._persists = Persistence(1)

    def observe(self, step: int, figures: Figures) -> Alert | None:
        memory = number(figures, "mem_allocated")
        if memory is None:
            return None
        self._seen += 1
        if self._seen <= self._settle:
            return None
        self._values.append(memory)
        if len(self._values) < (self._values.maxlen or 0):
            return None
        values = list(self._values)
        part = len(values) // 8
        levels = [median(values[start : start + part]) for start in range(0, 8 * part, part)]
        rises = sum(after > before for before, after in pairwise(levels))
        growth = levels[-1] / levels[0] - 1 if levels[0] else 0.0
        if not self._persists(rises >= 6 and growth > self._ratio):
            return None
        message = f"memory grew by {growth:.1%} in {len(values)} steps, to {gib(memory)}"
        return Alert(self.name, "warning", step, message, {"growth": growth, "bytes": memory})

    def state_dict(self) -> dict[str, Any]:
        return {"values": list(self._values), "seen": self._seen, "held": self._persists.held}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._values.clear()
        self._values.extend(state["values"])
        self._seen, self._persists.held = int(state["seen"]), int(state["held"])


class MemoryNearLimit:
    """Memory above `ratio` of what the device has."""

    name = "memory_near_limit"
    finds = "memory above 95 % of the device's"
    within = "the step itself"

    def __init__(self, ratio: float = 0.95) -> None:
        self._ratio = ratio
        self._persists = Persistence(1)

    def observe(self, step: int, figures: Figures) -> Alert | None:
        memory, limit = number(figures, "mem_allocated"), number(figures, "mem_limit")
        if memory is None or not limit or not self._persists(memory > self._ratio * limit):
            return None
        message = f"{gib(memory)} of {gib(limit)} of memory in use"
        return Alert(self.name, "warning", step, message, {"bytes": memory, "limit": limit})

    def state_dict(self) -> dict[str, Any]:
        return {"held": self._persists.held}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._persists.held = int(state["held"])


class OldCheckpoint:
    """No checkpoint for `ratio` times as many steps, or as much time, as they are asked to come in; whichever of both
    the run counts in (`checkpoint_age_*` and `checkpoint_every_*`, in `steps` or `seconds`)."""

    name = "old_checkpoint"
    finds = "no new checkpoint for 2.5 times as long as asked"
    within = "2.5 intervals"

    def __init__(self, ratio: float = 2.5) -> None:
        self._ratio = ratio
        self._persists = Persistence(1)

    def observe(self, step: int, figures: Figures) -> Alert | None:
        for unit in ("steps", "seconds"):
            age, every = number(figures, f"checkpoint_age_{unit}"), number(figures, f"checkpoint_every_{unit}")
            if age is None or not every:
                continue
            if not self._persists(age > self._ratio * every):
                return None
            message = f"the last checkpoint is {age:,.0f} {unit} old; they should come every {every:,.0f}"
            return Alert(self.name, "warning", step, message, {"age": age, "every": every, "unit": unit})
        return None

    def state_dict(self) -> dict[str, Any]:
        return {"held": self._persists.held}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._persists.held = int(state["held"])


class DiskNearFull:
    """Where checkpoints are written there is no room for another one (`disk_free_bytes`, `checkpoint_bytes`)."""

    name = "disk_near_full"
    finds = "a disk without room for the next checkpoint"
    within = "20 steps"

    def __init__(self, checkpoints: float = 1.2) -> None:
        self._checkpoints = checkpoints
        self._persists = Persistence(1)

    def observe(self, step: int, figures: Figures) -> Alert | None:
        free, needed = number(figures, "disk_free_bytes"), number(figures, "checkpoint_bytes")
        if free is None or not needed or not self._persists(free < self._checkpoints * needed):
            return None
        message = f"the next checkpoint takes {space(needed)}, and {space(free)} are free"
        return Alert(self.name, "critical", step, message, {"free": free, "needed": needed})

    def state_dict(self) -> dict[str, Any]:
        return {"held": self._persists.held}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._persists.held = int(state["held"])
