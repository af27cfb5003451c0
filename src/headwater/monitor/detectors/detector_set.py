"""All detectors of a run as one, with one state and no repetition.

found = DetectorSet().observe(step, figures)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headwater.monitor.detectors import machine, model_health, progress, spikes
from headwater.monitor.detectors.base import Alert, Detector, Figures


def default_detectors() -> list[Detector]:
    """One of each, with the thresholds their own pages state."""
    return [
        spikes.NonFinite(),
        spikes.LossSpike(),
        spikes.MovingAverageRule(),
        spikes.GradientExplosion(),
        spikes.GradientVanishing(),
        progress.NoConvergence(),
        progress.SlowDivergence(),
        progress.Plateau(),
        progress.Oscillation(),
        machine.SlowData(),
        machine.SlowSteps(),
        machine.SlowRank(),
        machine.MemoryCreep(),
        machine.MemoryNearLimit(),
        machine.OldCheckpoint(),
        model_health.DeadHeads(),
        model_health.TensorGradients(),
        model_health.NoUpdates(),
    ]


class DetectorSet:
    """Feeds every step to every detector. State is JSON and belongs into the checkpoint."""

    def __init__(self, detectors: Sequence[Detector] | None = None) -> None:
        self.detectors = list(default_detectors() if detectors is None else detectors)

    def observe(self, step: int, figures: Figures) -> list[Alert]:
        """What is wrong with this step; steps come in order, one that is trained again after a rewind with the state of
        the rewind."""
        alerts = [detector.observe(step, figures) for detector in self.detectors]
        return [alert for alert in alerts if alert is not None]

    def state_dict(self) -> dict[str, Any]:
        return {detector.name: detector.state_dict() for detector in self.detectors}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Detectors that were not there when the state was saved begin anew."""
        for detector in self.detectors:
            if detector.name in state:
                detector.load_state_dict(state[detector.name])
