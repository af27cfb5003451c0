"""The rules of other trainers, written anew from what they do, to be asked about the same recorded losses and norms.

In: losses and gradient norms of a run, step by step. Out: whether the rule would have spoken at the step.

- `OLMo-core SkipStep`: loss or norm above the mean of the last 128 of all steps by 6 standard deviations; silent until
  half of the window is there; the window is not in its checkpoint, so it begins anew after a resume.
- `Megatron-LM`: NaN and infinity; with its check for spiky losses, ten times the largest of the first 100 losses.
- `Lightning SpikeDetection`: not finite, or at least three times the running mean of the last 10.
- `moving average`: 1.5 times the average of the last 100.

    rule = OlmoSkipStep(); rule.speaks(loss=2.3, norm=0.4)
"""

from __future__ import annotations

import math
from collections import deque
from typing import Protocol


class Rule(Protocol):
    """One rule with its history."""

    def speaks(self, loss: float, norm: float) -> bool: ...

    def resume(self) -> None:
        """The run goes on in a new process."""


class OlmoSkipStep:
    """Statistics of everything seen, spikes included; a value that is not finite makes them NaN, and then nothing is
    above them. Its optimizer does not tell such steps apart."""

    window, sigmas = 128, 6.0

    def __init__(self) -> None:
        self._losses: deque[float] = deque(maxlen=self.window)
        self._norms: deque[float] = deque(maxlen=self.window)

    def speaks(self, loss: float, norm: float) -> bool:
        found = self._above(self._losses, loss) or self._above(self._norms, norm)
        self._losses.append(loss)
        self._norms.append(norm)
        return found

    def _above(self, values: deque[float], value: float) -> bool:
        if len(values) < self.window // 2:
            return False
        mean = sum(values) / len(values)
        if not math.isfinite(mean):
            return False
        deviation = math.sqrt(sum((other - mean) ** 2 for other in values) / (len(values) - 1))
        return value - mean > self.sigmas * deviation

    def resume(self) -> None:
        self._losses.clear()
        self._norms.clear()


class MegatronSpiky:
    """The largest of the first 100 stays what later losses are held against."""

    def __init__(self) -> None:
        self._seen, self._largest = 0, 0.0

    def speaks(self, loss: float, norm: float) -> bool:
        if not math.isfinite(loss) or not math.isfinite(norm):
            return True
        self._seen += 1
        if self._seen <= 100:
            self._largest = max(self._largest, loss)
            return False
        return loss > 10 * self._largest

    def resume(self) -> None:
        self._seen, self._largest = 0, 0.0


class LightningSpike:
    """Its state is in the checkpoint (in the version whose loading works)."""

    def __init__(self) -> None:
        self._values: deque[float] = deque(maxlen=10)

    def speaks(self, loss: float, norm: float) -> bool:
        if not math.isfinite(loss):
            return True
        found = len(self._values) == 10 and loss >= 3 * sum(self._values) / 10
        if not found:
            self._values.append(loss)
        return found

    def resume(self) -> None:
        return None


class MovingAverage:
    """Everything enters the average, spikes too."""

    def __init__(self) -> None:
        self._values: deque[float] = deque(maxlen=100)

    def speaks(self, loss: float, norm: float) -> bool:
        found = len(self._values) >= 10 and loss > 1.5 * sum(self._values) / len(self._values)
        self._values.append(loss)
        return found

    def resume(self) -> None:
        self._values.clear()


PEERS: dict[str, type[OlmoSkipStep] | type[MegatronSpiky] | type[LightningSpike] | type[MovingAverage]] = {
    "OLMo-core": OlmoSkipStep,
    "Megatron-LM": MegatronSpiky,
    "Lightning": LightningSpike,
    "moving average": MovingAverage,
}
