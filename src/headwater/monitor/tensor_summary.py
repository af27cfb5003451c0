"""A sample of tensors and heads in a few figures: extremes, a histogram of gradient norms, flags, dead heads.

In: a sample, `{metric: {name: value}}` by `TENSOR_METRICS`. Out: figures by the registry's keys, small enough for a
line of the record and for labels of Prometheus, however large the model.

    counter = LowGradients(limit=1e-7); figures = summary(sample, counter.add(sample), high=1e5)
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

from headwater.monitor.tensor_files import Sample
from headwater.monitor.tensor_series import TENSOR_METRICS

LOW_SAMPLES = 3
"""A gradient is flagged as low after so many samples below the limit: single small ones are no news."""

DEAD_ACTIVITY, DEAD_ENTROPY = 0.01, 0.05
SMALLEST_DECADE, LARGEST_DECADE = -12, 6


class LowGradients:
    """How many samples running each parameter's gradient has been below a limit. State goes into the checkpoint."""

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._held: dict[str, int] = {}

    def add(self, sample: Sample) -> list[str]:
        """Take a sample in; the parameters that have been low for `LOW_SAMPLES` samples or longer."""
        norms = sample.get("grad_norm")
        if norms is None:
            return []
        self._held = {name: self._held.get(name, 0) + 1 for name, norm in norms.items() if norm < self._limit}
        return [name for name, held in self._held.items() if held >= LOW_SAMPLES]

    def state_dict(self) -> dict[str, int]:
        return dict(self._held)

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        self._held = {str(name): int(held) for name, held in state.items()}


def summary(sample: Sample, low: list[str], *, high: float, extremes: int) -> dict[str, Any]:
    """The figures of a sample for the record. `low`: parameters flagged as low; `high`: the limit above which a norm is
    flagged at once."""
    found: dict[str, Any] = dict(tensor_extremes(sample, extremes))
    if (norms := sample.get("grad_norm")) is not None:
        found["grad_histogram"] = histogram(norms)
        found["grad_flags"] = {"high": sum(not norm <= high for norm in norms.values()), "low": len(low)}
    if "head_activity" in sample:
        found["dead_heads"] = len(dead_heads(sample))
    return found


def tensor_extremes(sample: Sample, k: int = 5) -> dict[str, dict[str, float]]:
    """The `k` largest and the `k` smallest values of every metric, the smallest first, by the registry's key."""
    found = {}
    for metric, values in sample.items():
        ordered = sorted(values.items(), key=lambda item: (math.isnan(item[1]), item[1], item[0]))
        chosen = ordered if len(ordered) <= 2 * k else ordered[:k] + ordered[-k:]
        found[TENSOR_METRICS[metric]] = dict(chosen)
    return found


def histogram(norms: Mapping[str, float]) -> dict[str, int]:
    """How many norms begin with each power of ten, `{"-3": 12}` for 0.001 to 0.01; 0 counts as the smallest, NaN and
    infinity as the largest."""
    decades = Counter(_decade(norm) for norm in norms.values())
    return {str(decade): decades[decade] for decade in sorted(decades)}


def _decade(norm: float) -> int:
    if not math.isfinite(norm):
        return LARGEST_DECADE
    if norm <= 0:
        return SMALLEST_DECADE
    return min(LARGEST_DECADE, max(SMALLEST_DECADE, math.floor(math.log10(norm))))


def dead_heads(sample: Sample) -> list[str]:
    """Heads that add next to nothing to the stream, or look at single tokens only."""
    activity, entropy = sample.get("head_activity", {}), sample.get("head_entropy", {})
    return [head for head, value in activity.items() if value < DEAD_ACTIVITY or entropy.get(head, 1.0) < DEAD_ENTROPY]
