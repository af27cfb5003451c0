"""The machine a run trains on: device, free memory, peak speed, what is in use.

In: the wish from the recipe. Out: torch's device and facts about it. Limits are named, never worked around silently.

    choose_device("auto")        # device(type='cpu')
"""

from __future__ import annotations

import os
import re
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.utils.deterministic as deterministic

from headwater.core.errors import HeadwaterError, RecipeError
from headwater.parallel.precision import Precision
from headwater.train.config import TrainConfig


def choose_device(wish: str) -> torch.device:
    """The device to train on. RecipeError if the one asked for is not there."""
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if wish == "auto":
        wish = next(kind for kind, there in available.items() if there)
    if not available[wish]:
        raise RecipeError(
            f"there is no {wish} device here", where="train.device", mend="set train.device to auto or cpu"
        )
    return torch.device(wish, 0) if wish == "cuda" else torch.device(wish)


def device_limits(device: torch.device, config: TrainConfig) -> list[str]:
    """What does not hold on this device, in words for the person."""
    limits = []
    if device.type == "mps":
        limits.append("on MPS bitwise resume is not promised: Apple's kernels are not deterministic")
        if config.compile:
            limits.append("torch.compile on MPS is experimental")
    if config.recompute.offload and device.type != "cuda":
        limits.append(f"recompute.offload saves nothing here: {device.type} has no memory apart from the host's")
    return limits


@contextmanager
def determinism(enabled: bool, device: torch.device) -> Iterator[None]:
    """Deterministic CUDA kernels for a block; the earlier setting comes back after it.

    Nothing needs to be switched on the CPU: its kernels for this work give the same bits with the same threads.
    """
    if device.type != "cuda" or not enabled:
        yield
        return
    before = torch.are_deterministic_algorithms_enabled()
    before_benchmark = torch.backends.cudnn.benchmark
    before_fill = deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS refuses to be deterministic without
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    # Otherwise every fresh tensor is filled with NaN, a check that costs a pass over memory.
    deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)
        torch.backends.cudnn.benchmark = before_benchmark
        deterministic.fill_uninitialized_memory = before_fill  # type: ignore[attr-defined]


def free_memory_bytes(device: torch.device) -> int:
    """Memory a run may still take on the device."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    if device.type == "mps":
        return torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory()
    available = _meminfo_available()
    limit = _cgroup_free()
    return min(available, limit) if limit is not None else available


def used_memory_bytes(device: torch.device) -> int:
    """Peak memory of the device's allocator; on CPU the resident size of the process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if device.type == "mps":
        return torch.mps.current_allocated_memory()
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def memory_figures(device: torch.device) -> dict[str, int]:
    """`mem_allocated` (`used_memory_bytes`), and where the device has an allocator of its own, `mem_reserved`, the peak
    of what that holds, in bytes, and `alloc_retries`, how often it had to give back cached memory first."""
    figures = {"mem_allocated": used_memory_bytes(device)}
    if device.type == "cuda":
        figures["mem_reserved"] = torch.cuda.max_memory_reserved(device)
        figures["alloc_retries"] = int(torch.cuda.memory_stats(device).get("num_alloc_retries", 0))
    return figures


def gpu_utilisation(device: torch.device) -> float | None:
    """Share of time with a kernel running (NVML), 0 to 1; None without a GPU or without NVML's Python package."""
    if device.type != "cuda":
        return None
    try:
        return torch.cuda.utilization(device) / 100
    except (ModuleNotFoundError, RuntimeError):
        return None


def peak_flops(device: torch.device, precision: Precision) -> float | None:
    """Dense peak in FLOP/s from the hardware catalogue; None where the part is not in it."""
    if device.type != "cuda":
        return None
    from headwater.plan.hardware import accelerator

    name = torch.cuda.get_device_name(device).lower()
    for part in re.findall(r"[a-z]+\d+[a-z]*", name):
        try:
            return accelerator(part).peak_flops(precision)
        except HeadwaterError:
            continue
    return None


def synchronise(device: torch.device) -> None:
    """Wait for the device, so that a clock read means something."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def _meminfo_available() -> int:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def _cgroup_free() -> int | None:
    """What the container's limit leaves, or None without one."""
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
        return None if limit == "max" else max(0, int(limit) - used)
    except (OSError, ValueError):
        return None
