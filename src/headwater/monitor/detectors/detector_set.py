"""All detectors of a run as one, with one state; what goes on is said once, not at every step.

found = DetectorSet().observe(step, figures)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

from headwater.monitor.config import DetectorsConfig
from headwater.monitor.detectors import machine, model_health, plateau, progress, spikes
from headwater.monitor.detectors.base import Alert, Detector, Figures

QUIET_STEPS = 8
"""A detector that speaks again within so many steps of its last word means the same thing."""


def default_detectors(config: DetectorsConfig | None = None) -> list[Detector]:
    """One of each, with the thresholds of the recipe; those it does not name are stated by each detector."""
    return training_detectors(config) + machine_detectors(config)


def training_detectors(config: DetectorsConfig | None = None) -> list[Detector]:
    """Those that look at what training computes, the same on every machine."""
    config = config or DetectorsConfig()
    return [
        spikes.NonFinite(),
        model_health.ChangedWeights(),
        spikes.LossSpike(spike=config.spike_score),
        spikes.MovingAverageRule(factor=config.moving_average_factor),
        spikes.GradientExplosion(limit=config.grad_norm_high),
        spikes.GradientVanishing(limit=config.grad_norm_low),
        progress.NoConvergence(after=config.no_convergence_steps),
        progress.SlowDivergence(),
        plateau.Plateau(),
        progress.Oscillation(),
        model_health.DeadHeads(),
        model_health.TensorGradients(high=config.grad_norm_high, low=config.grad_norm_low),
        model_health.NoUpdates(),
    ]


def machine_detectors(config: DetectorsConfig | None = None) -> list[Detector]:
    """Those that look at time and memory, which are of the machine and the day."""
    config = config or DetectorsConfig()
    return [
        machine.SlowData(share=config.data_wait_share),
        machine.SlowSteps(ratio=config.slow_step_ratio),
        machine.SlowRank(),
        machine.MemoryCreep(),
        machine.MemoryNearLimit(),
        machine.OldCheckpoint(),
        machine.DiskNearFull(),
    ]


class DetectorSet:
    """Feeds every step to every detector. State is JSON and belongs into the checkpoint."""

    def __init__(self, detectors: Sequence[Detector] | None = None) -> None:
        self.detectors = list(default_detectors() if detectors is None else detectors)
        self._spoke: dict[str, int] = {}
        self.found: list[Alert] = []
        """All that is wrong with the step observed last, what has just been said included."""

    def observe(self, step: int, figures: Figures) -> list[Alert]:
        """What is wrong with this step; steps come in order, one that is trained again after a rewind with the state of
        the rewind."""
        alerts, self.found = [], []
        for detector in self.detectors:
            alert = detector.observe(step, figures)
            if alert is None:
                continue
            self.found.append(alert)
            last = self._spoke.get(detector.name)
            self._spoke[detector.name] = step
            if last is None or step - last > QUIET_STEPS:
                alerts.append(alert)
        return alerts

    def state_dict(self) -> dict[str, Any]:
        return {
            "detectors": {detector.name: detector.state_dict() for detector in self.detectors},
            "spoke": dict(self._spoke),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> list[str]:
        """Put back what `state_dict` gave. Detectors that the state does not have, or has in another version's form,
        begin anew; their names are returned."""
        self._spoke = {str(name): int(step) for name, step in state.get("spoke", {}).items()}
        saved, anew = state.get("detectors", {}), []
        for place, detector in enumerate(self.detectors):
            filled = deepcopy(detector)  # a state that fits only half must not leave half of it
            try:
                filled.load_state_dict(saved[detector.name])
            except (KeyError, TypeError, ValueError):
                anew.append(detector.name)
            else:
                self.detectors[place] = filled
        return anew
