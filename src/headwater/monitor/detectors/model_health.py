"""Parameters and heads that no longer do anything, or too much.

In: `update_ratio` (by parameter), `param_grad_norm` (by parameter), `head_entropy_ratio` and `head_activity_ratio` (by
"layer.head"), all only at steps where they were sampled. Out: alerts that name them.

    DeadHeads().observe(200, {"head_activity_ratio": {"0.0": 1.1, "0.1": 0.002}})
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headwater.monitor.detectors.base import Alert, Figures


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
        return Alert(self.name, "warning", step, f"attention heads (layer.head): {_listed(names)}", {"heads": names})


class TensorGradients(_Named):
    """Gradient norms of single parameters: above `high` at once, below `low` in `samples` samples running."""

    name = "tensor_gradients"

    def __init__(self, high: float = 1e5, low: float = 1e-7, samples: int = 20) -> None:
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
    """Parameters that move by less than `low` of their size in `samples` samples running: learning has stopped. Only
    when it is more than half of them: single frozen parameters can be meant."""

    name = "no_updates"

    def __init__(self, low: float = 1e-9, samples: int = 5) -> None:
        super().__init__(samples)
        self._low = low

    def observe(self, step: int, figures: Figures) -> Alert | None:
        ratios = figures.get("update_ratio") or {}
        names = self.reached({name: value < self._low for name, value in ratios.items()})
        if 2 * len(names) <= len(ratios) or not names:
            return None
        return Alert(
            self.name, "warning", step, f"{len(names)} of {len(ratios)} parameters no longer change", {"names": names}
        )
