"""Muon and AdamW in one optimizer: orthogonalised momentum for hidden matrices, AdamW for the rest.

In: parameter groups whose `kind` is "muon" or "adamw". Out: a `torch.optim.Optimizer` with one state dict. Muon
replaces a matrix's momentum by the nearest (semi-)orthogonal matrix, found by a few Newton-Schulz iterations, so
that every direction of the matrix moves equally far (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/).

    MuonAdamW([{"params": matrices, "kind": "muon", "lr": 0.02}, {"params": others, "kind": "adamw", "lr": 0.003}])

Matrices of one shape are stacked and orthogonalised together: on a small model that is a few batched products in
place of hundreds of tiny ones. A matrix that is sharded over ranks is gathered, orthogonalised whole on every rank, and
each keeps its part of the update: the same result in every layout, for one all-gather of the matrices a step.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from headwater.parallel.slices import from_local, local, local_part, whole

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
"""Coefficients a, b, c of x <- a x + b (x x') x + c (x x')^2 x, chosen for steep convergence of small singular values;
they bring them to about 0.7..1.2, not to 1 exactly (Jordan et al. 2024)."""

NORM_EPS = 1e-7
STACK_ELEMENTS = 64 << 20
"""Largest stack of matrices orthogonalised at once, in elements, to bound the extra memory."""

DEFAULTS: dict[str, Any] = {
    "kind": "adamw",
    "lr": 1e-3,
    "weight_decay": 0.0,
    "betas": (0.9, 0.95),
    "eps": 1e-8,
    "momentum": 0.95,
    "nesterov": True,
    "newton_schulz_steps": 5,
    "scale": "spectral",
    "bf16": False,
}


def orthogonalise(stack: Tensor, steps: int, *, bf16: bool = False) -> Tensor:
    """Newton-Schulz on `[n, rows, columns]`; same shape and dtype back, singular values near 1.

    The iteration forgives rounding, so bf16 serves as well as fp32 where the hardware has it (Jordan et al.).
    """
    a, b, c = NEWTON_SCHULZ
    x = stack.to(torch.bfloat16 if bf16 else torch.float32)
    tall = x.size(-2) > x.size(-1)
    if tall:
        x = x.mT
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=NORM_EPS)
    for _ in range(steps):
        gram = x @ x.mT
        poly = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        x = torch.baddbmm(x, poly, x, beta=a)
    return (x.mT if tall else x).to(stack.dtype)


def update_scale(rows: int, columns: int, scale: Literal["spectral", "rms"]) -> float:
    """What an orthogonalised update of a `[rows, columns]` matrix is multiplied with (besides the learning rate).

    `spectral`: sqrt(max(1, rows / columns)) (Jordan et al.). `rms`: 0.2 sqrt(max(rows, columns)), which gives
    entries AdamW's usual root mean square (Liu et al. 2025, Moonlight, arXiv 2502.16982, section 2.2).
    """
    if scale == "rms":
        return 0.2 * math.sqrt(max(rows, columns))
    return math.sqrt(max(1.0, rows / columns))


class MuonAdamW(torch.optim.Optimizer):
    """See the module. Groups may set any key of `DEFAULTS`; parameters of "muon" groups must be matrices."""

    def __init__(self, groups: Iterable[dict[str, Any]]) -> None:
        super().__init__(list(groups), dict(DEFAULTS))
        for group in self.param_groups:
            if group["kind"] == "muon" and any(parameter.ndim != 2 for parameter in group["params"]):
                raise ValueError("Muon updates matrices only; put other parameters into a group of kind adamw")

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One update; parameters without a gradient stay as they are."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            if parameters and group["kind"] == "muon":
                self._muon(group, parameters)
            elif parameters:
                self._adamw(group, parameters)
        return loss

    def _muon(self, group: dict[str, Any], parameters: list[Tensor]) -> None:
        grads: list[Tensor] = [p.grad for p in parameters]  # type: ignore[misc]
        for parameter in parameters:
            if "momentum" not in self.state[parameter]:
                self.state[parameter]["momentum"] = torch.zeros_like(parameter)
        own_grads = [local(grad) for grad in grads]
        momenta = [local(self.state[parameter]["momentum"]) for parameter in parameters]
        torch._foreach_lerp_(momenta, own_grads, 1.0 - group["momentum"])
        directions = momenta
        if group["nesterov"]:
            directions = list(torch._foreach_lerp(own_grads, momenta, group["momentum"]))
        own = [local(parameter) for parameter in parameters]
        if group["weight_decay"]:
            torch._foreach_mul_(own, 1.0 - group["lr"] * group["weight_decay"])
        by_shape: dict[torch.Size, list[int]] = defaultdict(list)
        for index, parameter in enumerate(parameters):
            by_shape[parameter.shape].append(index)
        for shape, indices in by_shape.items():
            rows, columns = shape
            at_once = max(1, STACK_ELEMENTS // (rows * columns))
            alpha = -group["lr"] * update_scale(rows, columns, group["scale"])
            for start in range(0, len(indices), at_once):
                part = indices[start : start + at_once]
                stack = torch.stack([whole(from_local(directions[i], parameters[i])) for i in part])
                updates = orthogonalise(stack, group["newton_schulz_steps"], bf16=group["bf16"])
                shares = [local_part(update, parameters[i]) for update, i in zip(updates, part, strict=True)]
                torch._foreach_add_([own[i] for i in part], shares, alpha=alpha)

    def _adamw(self, group: dict[str, Any], parameters: list[Tensor]) -> None:
        for parameter in parameters:
            state = self.state[parameter]
            if not state:
                state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
                state["exp_avg"] = torch.zeros_like(parameter)
                state["exp_avg_sq"] = torch.zeros_like(parameter)
        states = [self.state[parameter] for parameter in parameters]
        beta1, beta2 = group["betas"]
        adamw(
            parameters,
            [parameter.grad for parameter in parameters],  # type: ignore[misc]
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],
            [state["step"] for state in states],
            fused=True,
            amsgrad=False,
            beta1=beta1,
            beta2=beta2,
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )
