"""What the machine is doing, for the record: CPU and RAM always, the GPU where NVML answers.

In: the device of the run. Out: figures by the registry's keys, read at most once a second, as asking takes a tenth of a
millisecond and the counters behind them move slowly.

    host = HostFigures(device); host.read()      # {"cpu_util": 0.93, "ram_used": 7_300_000_000, "gpu_util": None}
"""

from __future__ import annotations

import time
from typing import Any

import torch

from headwater.train import devices

SECONDS = 1.0


class HostFigures:
    """See the module. `cpu_util` is null at first: it is a share of the time between two readings."""

    def __init__(self, device: torch.device) -> None:
        import psutil

        self._device = device
        psutil.cpu_percent()  # the first counts from here
        self._at = -SECONDS
        self._began = time.monotonic()
        self._figures: dict[str, Any] = {}

    def read(self) -> dict[str, Any]:
        """Figures no older than a second."""
        import psutil

        now = time.monotonic()
        if now - self._at < SECONDS:
            return self._figures
        self._at = now
        memory = psutil.virtual_memory()
        self._figures = {
            "cpu_util": psutil.cpu_percent() / 100 if now - self._began > 0.1 else None,
            "ram_used": memory.total - memory.available,
            "gpu_util": devices.gpu_utilisation(self._device),
        }
        return self._figures
