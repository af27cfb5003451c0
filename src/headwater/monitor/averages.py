"""Moving averages whose state goes into checkpoints, so that a resumed record continues exactly.

mean = MovingAverage(100); mean.add(3.2); mean.value
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable


class MovingAverage:
    """Simple moving average over the last `window` values; `value` is None before the first."""

    def __init__(self, window: int) -> None:
        self._values: deque[float] = deque(maxlen=window)

    def add(self, value: float) -> None:
        self._values.append(value)

    @property
    def value(self) -> float | None:
        # Summed anew each time: a running sum would drift, and differ after a resume in the last digits.
        return sum(self._values) / len(self._values) if self._values else None

    def state_dict(self) -> list[float]:
        return list(self._values)

    def load_state_dict(self, values: Iterable[float]) -> None:
        self._values.clear()
        self._values.extend(values)
