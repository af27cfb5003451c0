"""Figures of GPUs, by the names, labels and units of NVIDIA's dcgm-exporter.

In: the driver through NVML, or the address of a dcgm-exporter, whose figures are passed on. Out: {metric key: {labels:
value}} of `MACHINE_METRICS`; nothing where there is no driver. What a GPU cannot tell is left out, not zero.

    Nvml().read()        # {"gpu_util": {("0", "GPU-5f...", "nvidia0", "NVIDIA H100"): 97.0}, ...}
"""

from __future__ import annotations

import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from headwater.monitor.live_metrics import MACHINE_METRICS

GpuFigures = dict[str, dict[tuple[str, ...], float]]
MIB = 1 << 20
ANSWER_SECONDS = 3.0
LONGEST_ANSWER = 16 << 20
REFUSED = "refused"

PROFILED = {
    "gpu_graphics": "NVML_GPM_METRIC_GRAPHICS_UTIL",
    "gpu_sm": "NVML_GPM_METRIC_SM_UTIL",
    "gpu_tensor": "NVML_GPM_METRIC_ANY_TENSOR_UTIL",
    "gpu_dram": "NVML_GPM_METRIC_DRAM_BW_UTIL",
}
"""Figures between two readings that Hopper and later GPUs count themselves (GPM), in percent there."""

_BY_NAME = {metric.prometheus: metric for metric in MACHINE_METRICS}


class Nvml:
    """The driver's own figures. `available` is False without a driver or without its Python package."""

    def __init__(self) -> None:
        self._samples: dict[int, Any] = {}
        self._xid: dict[int, int] = {}
        try:
            import pynvml
        except ImportError:
            self.available = False
            return
        self._nvml = pynvml
        try:
            pynvml.nvmlInit()
            self._handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        except pynvml.NVMLError:
            self.available = False
            return
        self.available = True
        self._names = [self._label(index, handle) for index, handle in enumerate(self._handles)]
        self._listen()

    def read(self) -> GpuFigures:
        found: GpuFigures = {}
        self._hear()
        for index, handle in enumerate(self._handles):
            for key, value in self._figures(index, handle):
                found.setdefault(key, {})[self._names[index]] = value
        return found

    def _label(self, index: int, handle: Any) -> tuple[str, ...]:
        uuid = self._asked(lambda: self._nvml.nvmlDeviceGetUUID(handle), "")
        model = self._asked(lambda: self._nvml.nvmlDeviceGetName(handle), "")
        return str(index), str(uuid), f"nvidia{index}", str(model)

    def _asked(self, question: Callable[[], Any], otherwise: Any = None) -> Any:
        """An answer of the driver, or `otherwise` where this GPU has none."""
        try:
            return question()
        except self._nvml.NVMLError:
            return otherwise

    def _figures(self, index: int, handle: Any) -> Iterator[tuple[str, float]]:
        nvml = self._nvml
        if (used := self._asked(lambda: nvml.nvmlDeviceGetUtilizationRates(handle))) is not None:
            yield "gpu_util", float(used.gpu)
        if (memory := self._asked(lambda: nvml.nvmlDeviceGetMemoryInfo(handle))) is not None:
            yield "gpu_memory_used", memory.used / MIB
            yield "gpu_memory_free", memory.free / MIB
        simple: dict[str, tuple[Callable[[], Any], float]] = {
            "gpu_power": (lambda: nvml.nvmlDeviceGetPowerUsage(handle), 1000),
            "gpu_temperature": (lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU), 1),
            "gpu_clock": (lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM), 1),
            "gpu_throttled": (lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle), 1),
            "gpu_ecc": (
                lambda: nvml.nvmlDeviceGetTotalEccErrors(
                    handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
                ),
                1,
            ),
        }
        for key, (question, divisor) in simple.items():
            if (value := self._asked(question)) is not None:
                yield key, value / divisor
        if index in self._xid:
            yield "gpu_xid", float(self._xid[index])
        yield from self._profiled(index, handle)

    def _profiled(self, index: int, handle: Any) -> Iterator[tuple[str, float]]:
        nvml = self._nvml
        support = self._asked(lambda: nvml.nvmlGpmQueryDeviceSupport(handle))
        if support is None or not support.isSupportedDevice:
            return
        sample = self._sample(handle)
        before = self._samples.pop(index, None)
        if sample is not None:
            self._samples[index] = sample
        if before is None:
            return
        wanted = nvml.c_nvmlGpmMetricsGet_t()
        wanted.version, wanted.numMetrics = nvml.NVML_GPM_METRICS_GET_VERSION, len(PROFILED)
        wanted.sample1, wanted.sample2 = before, sample
        for place, name in enumerate(PROFILED.values()):
            wanted.metrics[place].metricId = getattr(nvml, name)
        answered = self._asked(lambda: nvml.nvmlGpmMetricsGet(wanted)) if sample is not None else None
        self._asked(lambda: nvml.nvmlGpmSampleFree(before))
        for place, key in enumerate(PROFILED if answered is not None else ()):
            if wanted.metrics[place].nvmlReturn == nvml.NVML_SUCCESS:
                yield key, wanted.metrics[place].value / 100

    def _sample(self, handle: Any) -> Any:
        """A reading of the GPU's own counters, which whoever has it frees; None where the driver gives none."""
        nvml = self._nvml
        room = self._asked(nvml.nvmlGpmSampleAlloc)
        if room is None or self._asked(lambda: nvml.nvmlGpmSampleGet(handle, room)) is not None:
            return room
        self._asked(lambda: nvml.nvmlGpmSampleFree(room))
        return None

    def _listen(self) -> None:
        """Ask the driver to keep XID errors for us; GPUs that cannot are left out."""
        nvml = self._nvml
        self._events = self._asked(nvml.nvmlEventSetCreate)
        if self._events is None:
            return
        for index, handle in enumerate(self._handles):
            listen = partial(nvml.nvmlDeviceRegisterEvents, handle, nvml.nvmlEventTypeXidCriticalError, self._events)
            if self._asked(listen, REFUSED) != REFUSED:
                self._xid[index] = 0

    def _hear(self) -> None:
        """Take the XID errors that came since the last reading."""
        nvml = self._nvml
        while self._events is not None:
            event = self._asked(lambda: nvml.nvmlEventSetWait_v2(self._events, 0))
            if event is None:  # a time-out: there is no more
                return
            index = self._asked(partial(nvml.nvmlDeviceGetIndex, event.device))
            if index is not None and event.eventType == nvml.nvmlEventTypeXidCriticalError:
                self._xid[index] = int(event.eventData)


class Dcgm:
    """A dcgm-exporter's figures, passed on: those of `MACHINE_METRICS`, with the labels that we have too."""

    def __init__(self, url: str) -> None:
        self._url = url

    def read(self) -> GpuFigures:
        """Raises OSError if it does not answer, ValueError for what is no answer of an exporter."""
        from prometheus_client.parser import text_string_to_metric_families

        with urllib.request.urlopen(self._url, timeout=ANSWER_SECONDS) as answer:
            text = answer.read(LONGEST_ANSWER).decode("utf-8", "replace")
        found: GpuFigures = {}
        for one in text_string_to_metric_families(text):
            for sample in one.samples:
                metric = _BY_NAME.get(sample.name)
                if metric is not None and sample.name.startswith("DCGM_"):
                    names = tuple(sample.labels.get(key, "") for key in metric.labels)
                    found.setdefault(metric.key, {})[names] = sample.value
        return found
