"""The arithmetic of a run: which precision a device can do, and what each means for weights, products and reductions.

In: the recipe's wish and the device. Out: a `Precision`, and from it autocast, FSDP's policy and the mode of fp32
products.

    precision, why = choose_precision("auto", torch.device("cpu"), width=1024)
    with matrix_products(precision), autocast(precision, device): loss = forward(batch)

Weights, their gradients, optimizer state and sums over ranks are fp32 in every precision. Half precision is autocast's
in a single process and in a sharded one alike: the policy for FSDP only makes the blocks' weights travel in half
precision, which is the cast autocast would make after the gather. What then differs is the rounding of the norms'
weights (and of their gradients) inside sharded blocks; embedding, final norm and head stay fp32 until they are used.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch

from headwater.core.errors import RecipeError

if TYPE_CHECKING:
    from torch.distributed.fsdp import MixedPrecisionPolicy

Precision = Literal["fp32", "tf32", "bf16", "fp16", "fp8"]

CPU_BF16_WIDTH = 128
"""Narrower matrices are bound by calls, not by arithmetic. At width 192 a step in bf16 took 0.53 to 0.57 of fp32's time
(3.4 M parameters, 8,192 tokens, 1 thread of an EPYC with AVX512_BF16)."""

_NEEDS: dict[str, tuple[tuple[int, int], str]] = {
    "tf32": ((8, 0), "Ampere (A100) and later"),
    "bf16": ((8, 0), "Ampere (A100) and later"),
    "fp16": ((5, 3), "Maxwell (compute capability 5.3) and later"),
    "fp8": ((8, 9), "Ada and Hopper (L4, H100) and later"),
}
"""Smallest CUDA compute capability with the arithmetic, and the parts in words (NVIDIA, CUDA programming guide, table
of arithmetic instructions)."""

_TENSOR_CORES = (7, 0)
"""From here on fp16 products are faster than fp32's; earlier parts have none, or compute them slowly (6.1)."""


@dataclass(frozen=True, slots=True)
class Hardware:
    """What decides a precision. `capability` is CUDA's (major, minor); `fast_bf16` whether a CPU has instructions for
    bf16 products, without which they are emulated."""

    kind: Literal["cpu", "cuda", "rocm", "mps"]
    name: str
    capability: tuple[int, int] = (0, 0)
    fast_bf16: bool = False

    @classmethod
    def of(cls, device: torch.device) -> Hardware:
        """The hardware behind a device that is there."""
        if device.type == "cuda":
            kind: Literal["cuda", "rocm"] = "cuda" if torch.version.hip is None else "rocm"
            return cls(kind, torch.cuda.get_device_name(device), torch.cuda.get_device_capability(device))
        if device.type == "mps":
            return cls("mps", "Apple's GPU")
        return cls("cpu", "this CPU", fast_bf16=cpu_has_bf16())

    def lacks(self, precision: str) -> str:
        """Why this hardware does not compute in `precision`; "" where it does."""
        if precision == "fp32" or precision not in _NEEDS:
            return ""
        if self.kind == "cuda":
            least, parts = _NEEDS[precision]
            if self.capability >= least:
                return ""
            major, minor = self.capability
            return f"{self.name} (compute capability {major}.{minor}) has no {precision} arithmetic: {parts} have it"
        if precision == "tf32":
            return f"tf32 is an arithmetic of NVIDIA's tensor cores, and {self.name} has none"
        if precision == "fp8" and self.kind != "cpu":
            return f"fp8 training is for CUDA (and, as an exact reference, CPUs), not for {self.name}"
        return ""


def decide(wish: str, hardware: Hardware, width: int) -> tuple[Precision, str]:
    """(precision, why) for a model of `width` (hidden_size); a pure function.

    `auto` is bf16 where the hardware has it, else fp16 on tensor cores, else fp32. RecipeError for what the hardware
    lacks.
    """
    if wish == "auto":
        return _automatic(hardware, width)
    missing = hardware.lacks(wish)
    if missing:
        best = _automatic(hardware, width)[0]
        raise RecipeError(missing, where="train.precision", mend=f"set train.precision to {best}, or to auto")
    for known in ("fp32", "tf32", "bf16", "fp16", "fp8"):
        if wish == known:
            return known, "as the recipe says" + _warning(known, hardware)
    raise ValueError(f"unknown precision {wish!r}")


def _automatic(hardware: Hardware, width: int) -> tuple[Precision, str]:
    if hardware.kind in ("cuda", "rocm"):
        if not hardware.lacks("bf16"):
            return "bf16", "the GPU has it"
        if hardware.capability >= _TENSOR_CORES:
            return "fp16", f"{hardware.name} has no bf16, and fp16 with a loss scale is fast on it"
        return "fp32", f"{hardware.name} is fast in neither bf16 nor fp16"
    if hardware.kind == "cpu" and hardware.fast_bf16:
        if width >= CPU_BF16_WIDTH:
            return "bf16", "this CPU multiplies matrices in it, about 1.7 times as fast as fp32"
        return "fp32", f"a model less than {CPU_BF16_WIDTH} wide gains nothing from bf16"
    return "fp32", f"{hardware.name} has no bf16 arithmetic"


def _warning(precision: Precision, hardware: Hardware) -> str:
    if hardware.kind != "cpu":
        return ""
    if precision == "fp16":
        return "; on a CPU fp16 products are up to 200 times slower than fp32's: for checks only"
    if precision == "fp8":
        return "; on a CPU fp8 is an exact reference, slower than bf16: for checks only"
    if precision == "bf16" and not hardware.fast_bf16:
        return "; this CPU emulates bf16, slower than fp32"
    return ""


def choose_precision(wish: str, device: torch.device, width: int) -> tuple[Precision, str]:
    """`decide` for a device that is there."""
    return decide(wish, Hardware.of(device), width)


def cpu_has_bf16() -> bool:
    """Whether the CPU has instructions for bf16 products; without them bf16 is emulated and slow."""
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()


def product_dtype_of(precision: Precision) -> torch.dtype:
    """The dtype matrix products take and give. fp8's own operands aside, an fp8 run computes in bf16."""
    return {"bf16": torch.bfloat16, "fp8": torch.bfloat16, "fp16": torch.float16}.get(precision, torch.float32)


def is_half(precision: Precision) -> bool:
    """Whether activations take two bytes an element."""
    return product_dtype_of(precision) != torch.float32


def autocast(precision: Precision, device: torch.device) -> AbstractContextManager[object]:
    """Half precision for the products of a forward pass; nothing in fp32 and tf32."""
    dtype = product_dtype_of(precision)
    if dtype == torch.float32:  # autocast to float32 is refused, even switched off, on some devices
        return torch.autocast(device.type, torch.bfloat16, enabled=False)
    return torch.autocast(device.type, dtype)


@contextmanager
def matrix_products(precision: Precision) -> Iterator[None]:
    """fp32 products of CUDA in tf32 with `tf32`, in full fp32 with everything else; the setting before comes back."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def sharding_policy(precision: Precision) -> MixedPrecisionPolicy:
    """For `fully_shard` of a block: weights gathered in the product dtype, gradients reduced in fp32.

    Inputs are left alone, so that the stream between blocks stays fp32 as it is in one process. Embedding, final norm
    and head take `sharding_policy("fp32")`: their fp32 values are used, or cast by the loss.
    """
    from torch.distributed.fsdp import MixedPrecisionPolicy

    dtype = product_dtype_of(precision)
    if dtype == torch.float32:
        return MixedPrecisionPolicy(cast_forward_inputs=False)
    return MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32, cast_forward_inputs=False)
