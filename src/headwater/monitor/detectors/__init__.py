"""What is wrong with a run, step by step: one small state machine a symptom, all of them in a `DetectorSet`.

detectors = DetectorSet(); detectors.observe(1, {"loss": 10.4, "grad_norm": 1.2, "step_seconds": 0.4})
"""

from headwater.monitor.detectors.base import Alert, Detector, Figures, RobustWindow
from headwater.monitor.detectors.detector_set import (
    DetectorSet,
    default_detectors,
    machine_detectors,
    training_detectors,
)

__all__ = [
    "Alert",
    "Detector",
    "DetectorSet",
    "Figures",
    "RobustWindow",
    "default_detectors",
    "machine_detectors",
    "training_detectors",
]
