"""Parameters and heads that no longer do anything, or too much.

In: `update_ratio` (by parameter), `param_grad_norm` (by parameter), `head_entropy_ratio` and `head_activity_ratio` (by
head), all only at steps where they were sampled; `changed_weights` and `weights_moved` at every step. Out: alerts that
name them.

    DeadHeads().observe(200, {"head_activity_ratio": {"0.0": 1.1, "0.1": 0.002}})
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import Any

from headwater.monitor.detectors.base import Alert, Figures, Persistence, RobustWindow, number


class _Named:
    """Counts in how many samples running each name was bad; speaks when a name reaches `samples`."""

    def __init__(self, samples: int) -> None:
        self._samples = samples
        self._held: dict[str, int] = {}

    def reached(self, bad: Mapping[str, bool]) -> list[str]:
        for name, holds in bad.items():
            self._held[name] = self._held.get(name, 0) + 1 if holds else 0
        return sorted(name for name, holds in bad.items() if holds and self._held[name] == self._samples)

    def state_dict(self) -> dict[str, Any]:
        return {"held": {name: held for name, held in self._held.items() if held}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._held = dict(state["held"])


def _listed(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


class DeadHeads(_Named):
    """Attention heads whose output is below `activity` of their layer's mean, or whose entropy is below `entropy` of
    its possible range (Zhai et al. 2023, arXiv 2303.06296), in `samples` samples running."""

    name = "dead_heads"
    finds = "attention heads without output, or that look at single tokens"
    within = "3 samples: 150 steps"

    def __init__(self, activity: float = 0.01, entropy: float = 0.05, samples: int = 3) -> None:
        super().__init__(samples)
        self._activity, self._entropy = activity, entropy

    def observe(self, step: int, figures: Figures) -> Alert | None:
        activity = figures.get("head_activity_ratio") or {}
        entropy = figures.get("head_entropy_ratio") or {}
        bad = {f"dead {head}": value < self._activity for head, value in activity.items()}
        bad |= {f"collapsed {head}": value < self._entropy for head, value in entropy.items()}
        names = self.reached(bad)
        if not names:
            return None
        return Alert(self.name, "warning", step, f"attention heads: {_listed(names)}", {"heads": names})


class TensorGradients(_Named):
    """Gradient norms of single parameters: above `high` at once, below `low` in `samples` samples running."""

    name = "tensor_gradients"
    finds = "single parameters with gradient norms above 1e5 or below 1e-7"
    within = "1 sample above, 3 samples below: 150 steps"

    def __init__(self, high: float = 1e5, low: float = 1e-7, samples: int = 3) -> None:
        super().__init__(samples)
        self._high, self._low = high, low

    def observe(self, step: int, figures: Figures) -> Alert | None:
        norms = figures.get("param_grad_norm") or {}
        large = sorted(name for name, value in norms.items() if value > self._high)
        small = self.reached({name: value < self._low for name, value in norms.items()})
        if large:
            return Alert(
                self.name, "critical", step, f"gradient norm above {self._high:g} in {_listed(large)}", {"large": large}
            )
        if small:
            return Alert(
                self.name, "warning", step, f"gradient norm below {self._low:g} in {_listed(small)}", {"small": small}
            )
        return None


class NoUpdates(_Named):
    """Learning has stopped. At once: `steps` updates running leave every weight as it was (`weights_moved`). In
    `samples` samples running: more than half of the parameters move by less than `low` of their size (single frozen
    ones can be meant), or the middle one by less than `share` of what is usual at that learning rate (`lr_share`)."""

    name = "no_updates"
    finds = "weights that stand still, or move a hundredth of what the learning rate asks for"
    within = "5 steps; 2 samples: 100 steps"

    def __init__(self, low: float = 1e-9, share: float = 0.01, samples: int = 2, steps: int = 5) -> None:
        super().__init__(samples)
        self._low, self._share, self._steps = low, share, steps
        self._usual = RobustWindow(16)
        self._still, self._little = Persistence(steps), Persistence(samples)

    def observe(self, step: int, figures: Figures) -> Alert | None:
        moved = figures.get("weights_moved")
        if moved is not None and self._still(moved is False):
            message = f"the last {self._steps} updates left every weight as it was"
            return Alert(self.name, "warning", step, message, {"steps": self._steps}, step - self._steps)
        ratios = figures.get("update_ratio") or {}
        names = self.reached({name: value < self._low for name, value in ratios.items()})
        if 2 * len(names) > len(ratios):
            message = f"{len(names)} of {len(ratios)} parameters no longer change"
            return Alert(self.name, "warning", step, message, {"names": names})
        rate = number(figures, "lr_share")
        if not ratios or not rate:
            return None
        middle = median(ratios.values()) / rate
        usual = self._usual.median if len(self._usual) >= 3 else None
        little = usual is not None and middle < self._share * usual
        if not little:
            self._usual.add(middle)
        if usual is None or not self._little(little):
            return None
        message = (
            f"updates move parameters {usual / max(middle, 1e-30):,.0f} times less than usual at this learning rate"
        )
        return Alert(self.name, "warning", step, message, {"usual": usual, "now": middle})

    def state_dict(self) -> dict[str, Any]:
        held = {"still": self._still.held, "little": self._little.held}
        return {**super().state_dict(), **held, "usual": self._usual.values}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._still.held, self._little.held = int(state["still"]), int(state["little"])
        self._usual.values = list(state["usual"])


class ChangedWeights:
    """Weights that differ from what the last update left (`changed_weights`, their names): memory that flips bits, or
    code that writes into them. Every bit counts, at the step itself; only a state from before is good."""

    name = "changed_weights"
    finds = "weights that are not, bit by bit, what the last update left"
    within = "the step itself"

    def observe(self, step: int, figures: Figures) -> Alert | None:
        names = figures.get("changed_weights")
        if not names:
            return None
        message = f"weights changed between two updates, by nobody's doing: {_listed(list(names))}"
        return Alert(self.name, "critical", step, message, {"tensors": list(names)})

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        return None
