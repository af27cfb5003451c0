"""What only the endpoints show: facts of a run beside its record, and figures of the machine.

In: nothing. Out: `RUN_METRICS` (from `run.json` and `events.jsonl`) and `MACHINE_METRICS` (of `headwater exporter`),
in the form of the registry; `exposed()` is all that Prometheus can see. Figures of GPUs have the names, labels and
units of NVIDIA's dcgm-exporter, so that a dashboard reads either.

    exposed()["machine_memory_available_bytes"].help
"""

from __future__ import annotations

from headwater.monitor.registry import METRICS, Metric

RUN_METRICS: tuple[Metric, ...] = (
    Metric("run_info", "llm_run_info", "gauge", "1", "Run", "Always 1; the labels say what is trained, on what",
           ("dataset", "created", "version")),
    Metric("steps_planned", "llm_steps_planned", "gauge", "steps", "Planned steps", "Steps the run is to do"),
    Metric("alerts", "llm_alerts_total", "counter", "alerts", "Findings of detectors",
           "What detectors have found since the start of the run", ("detector",)),
    Metric("events", "llm_events_total", "counter", "events", "Events",
           "Entries of events.jsonl since the start of the run", ("event",)),
    Metric("checkpoint_time", "llm_checkpoint_last_success_timestamp_seconds", "gauge", "seconds",
           "Last checkpoint", "When the newest checkpoint was committed, seconds since 1970"),
    Metric("step_time", "llm_step_timestamp_seconds", "gauge", "seconds", "Last step",
           "When the newest line of the record was written, seconds since 1970"),
    Metric("sink_failures", "llm_sink_failures_total", "counter", "failures", "Failed writes of sinks",
           "Lines that a sink of this process could not take", ("sink",)),
)  # fmt: skip

_GPU = ("gpu", "UUID", "device", "modelName")

MACHINE_METRICS: tuple[Metric, ...] = (
    Metric("cpu_seconds", "machine_cpu_seconds_total", "counter", "seconds", "CPU time",
           "Seconds all CPUs together spent in a mode", ("mode",)),
    Metric("cpus", "machine_cpus", "gauge", "CPUs", "CPUs", "Logical CPUs that may be used"),
    Metric("load", "machine_load1", "gauge", "tasks", "Load", "Tasks running or waiting, averaged over a minute"),
    Metric("memory_total", "machine_memory_total_bytes", "gauge", "bytes", "Memory", "RAM of the machine"),
    Metric("memory_available", "machine_memory_available_bytes", "gauge", "bytes", "Available memory",
           "RAM that programs can still take without swapping"),
    Metric("swap_used", "machine_swap_used_bytes", "gauge", "bytes", "Swap in use", "Swap space in use"),
    Metric("disk_read", "machine_disk_read_bytes_total", "counter", "bytes", "Disk reads",
           "Bytes read from a disk", ("device",)),
    Metric("disk_written", "machine_disk_written_bytes_total", "counter", "bytes", "Disk writes",
           "Bytes written to a disk", ("device",)),
    Metric("filesystem_size", "machine_filesystem_size_bytes", "gauge", "bytes", "File system",
           "Size of a file system", ("mountpoint",)),
    Metric("filesystem_free", "machine_filesystem_free_bytes", "gauge", "bytes", "Free space",
           "Space that users may still take on a file system", ("mountpoint",)),
    Metric("network_received", "machine_network_receive_bytes_total", "counter", "bytes", "Network in",
           "Bytes received on an interface", ("device",)),
    Metric("network_sent", "machine_network_transmit_bytes_total", "counter", "bytes", "Network out",
           "Bytes sent on an interface", ("device",)),
    Metric("network_errors", "machine_network_errors_total", "counter", "packets", "Network errors",
           "Packets received or sent with errors, or dropped, on an interface", ("device",)),
    Metric("source_up", "machine_source_up", "gauge", "1", "Sources",
           "1 where a source of figures answers, 0 where it fails or is not there", ("source",)),
    Metric("gpu_util", "DCGM_FI_DEV_GPU_UTIL", "gauge", "percent", "GPU utilisation",
           "Share of time with a kernel running", _GPU),
    Metric("gpu_tensor", "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "gauge", "ratio", "Tensor cores",
           "Share of cycles the tensor cores are at work", _GPU),
    Metric("gpu_graphics", "DCGM_FI_PROF_GR_ENGINE_ACTIVE", "gauge", "ratio", "Compute engine",
           "Share of time the compute engine is at work", _GPU),
    Metric("gpu_sm", "DCGM_FI_PROF_SM_ACTIVE", "gauge", "ratio", "Multiprocessors",
           "Share of cycles with work on a multiprocessor, averaged over them", _GPU),
    Metric("gpu_dram", "DCGM_FI_PROF_DRAM_ACTIVE", "gauge", "ratio", "GPU memory bandwidth",
           "Share of cycles the memory interface is at work", _GPU),
    Metric("gpu_memory_used", "DCGM_FI_DEV_FB_USED", "gauge", "MiB", "GPU memory in use",
           "Frame buffer in use", _GPU),
    Metric("gpu_memory_free", "DCGM_FI_DEV_FB_FREE", "gauge", "MiB", "GPU memory free", "Frame buffer free", _GPU),
    Metric("gpu_power", "DCGM_FI_DEV_POWER_USAGE", "gauge", "watts", "GPU power", "Power draw", _GPU),
    Metric("gpu_temperature", "DCGM_FI_DEV_GPU_TEMP", "gauge", "Celsius", "GPU temperature", "Temperature", _GPU),
    Metric("gpu_clock", "DCGM_FI_DEV_SM_CLOCK", "gauge", "MHz", "GPU clock", "Clock of the multiprocessors", _GPU),
    Metric("gpu_throttled", "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", "gauge", "bits", "GPU throttling",
           "Why clocks are held down, as NVML's bit mask; 0 and 1 (idle) are no fault", _GPU),
    Metric("gpu_xid", "DCGM_FI_DEV_XID_ERRORS", "gauge", "code", "GPU errors",
           "The last XID error since the exporter began, 0 for none", _GPU),
    Metric("gpu_ecc", "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "gauge", "errors", "GPU memory errors",
           "Uncorrectable memory errors since the driver was loaded", _GPU),
)  # fmt: skip


def exposed() -> dict[str, Metric]:
    """Every metric that Prometheus can see, by its name there."""
    declared = (*METRICS.values(), *RUN_METRICS, *MACHINE_METRICS)
    return {metric.prometheus: metric for metric in declared if metric.prometheus}
