"""Single bits that flip, as cosmic rays and tired memory flip them: in a weight between updates, or in a gradient.

In: a tensor, an element, a bit. Out: the tensor with that bit changed, or callbacks that do so at a step.

    flip_bit(weight, 17, SIGN); train(..., callbacks=[FlippedWeight(50, part="exponent", seed=3)])
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from headwater.diagnose.faults import Fault
from headwater.parallel.slices import local
from headwater.train.trainer import Trainer

Part = Literal["sign", "exponent", "mantissa"]

LAYOUT: dict[torch.dtype, tuple[torch.dtype, int, int]] = {
    torch.float32: (torch.int32, 32, 23),
    torch.bfloat16: (torch.int16, 16, 7),
    torch.float16: (torch.int16, 16, 10),
}
"""(integers of the same size, bits, bits of the mantissa) by kind of number."""


def bits_of(dtype: torch.dtype, part: Part) -> range:
    """Numbers of a part's bits, 0 being the lowest."""
    _, bits, mantissa = LAYOUT[dtype]
    return {"sign": range(bits - 1, bits), "exponent": range(mantissa, bits - 1), "mantissa": range(mantissa)}[part]


@torch.no_grad()
def flip_bit(tensor: Tensor, element: int, bit: int) -> None:
    """Flip one bit of a (contiguous) tensor's element, in place."""
    integers, bits, _ = LAYOUT[tensor.dtype]
    mask = 1 << bit if bit < bits - 1 else -(1 << bit)  # the sign bit as a two's complement
    words = tensor.detach().view(-1).view(integers)
    words[element] = words[element] ^ mask


class FlippedWeight(Fault):
    """One bit of one weight flips before a step. Which weight and bit is drawn, every weight being as likely as any
    other; `bit`, counted from the part's lowest (-1: its highest), where it shall not be."""

    name = "flipped_weight"

    def __init__(self, step: int, part: Part, *, bit: int | None = None, seed: int = 0) -> None:
        super().__init__(step, steps=1, seed=seed)
        self.part, self.bit = part, bit
        self.flipped = ""
        """`model.norm.weight[5] bit 30: 1.0 -> inf`, once it has happened."""

    def _flip(self, tensors: dict[str, Tensor]) -> None:
        own = {name: local(tensor) for name, tensor in tensors.items() if local(tensor).numel()}
        sizes = [tensor.numel() for tensor in own.values()]
        (name,) = self.random.choices(list(own), weights=sizes)
        tensor = own[name]
        element = self.random.randrange(tensor.numel())
        bits = bits_of(tensor.dtype, self.part)
        bit = self.random.choice(bits) if self.bit is None else bits[self.bit]
        before = tensor.view(-1)[element].item()
        flip_bit(tensor, element, bit)
        self.flipped = f"{name}[{element}] bit {bit}: {before:g} -> {tensor.view(-1)[element].item():g}"

    def before(self, trainer: Trainer) -> None:
        self._flip(dict(trainer.module.parameters))


class FlippedGradient(FlippedWeight):
    """One bit of one gradient's element flips after the backward pass of a step."""

    name = "flipped_gradient"

    def before(self, trainer: Trainer) -> None:
        return None

    def gradients(self, trainer: Trainer) -> None:
        self._flip({name: p.grad for name, p in trainer.module.parameters.items() if p.grad is not None})
