"""What a training precision means for arithmetic on a part: peaks, limits and widths, as fields of `Cases`."""

from __future__ import annotations

from .hardware import Accelerator

# Bytes of a weight as multiplied, and block-scaled or per-tensor scaling.
LINEAR = {"fp16": (2.0, 0), "bf16": (2.0, 0), "fp32": (4.0, 0), "tf32": (4.0, 0), "fp8": (1.0, 1), "int8": (1.0, 1),
          "mxfp8": (1.03, 2), "nvfp4": (0.56, 2)}  # fmt: skip

WHOLE = ("fp32", "tf32")  # 32-bit weights, gradients and activations: no separate master copy


def arithmetic(part: Accelerator, precision: str) -> dict[str, float]:
    """Peaks, limits and byte widths of `precision` on `part`, as fields of `Cases`."""
    whole = precision in WHOLE
    half = precision if precision in ("fp16", "bf16", *WHOLE) and precision in part.peak else part.half
    peak = part.peak_flops(precision)
    size, kind = LINEAR[precision]
    return {
        "peak_linear": peak,
        "peak_half": part.peak_flops(half),
        "limit_linear": part.gemm_limit(precision),
        "limit_half": part.gemm_limit(half),
        "linear_bytes": size,
        "quantised": float(kind),
        "width": 2.0 if whole else 1.0,
        "param_bytes": 4.0 if whole else 2.0,
        "optimizer_bytes": 8.0 if whole else 12.0,
        "memory_bandwidth": part.memory_bandwidth,
        "memory_bytes": part.memory_bytes,
        "units": float(part.units),
        "intra_bandwidth": part.intra_bandwidth,
        "domain": float(part.domain),
        "pcie_bandwidth": part.pcie_bandwidth,
    }
