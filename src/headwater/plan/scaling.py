"""Scaling-law advice: the compute-optimal size and data for a budget, with how uncertain that is.

L(N, D) = E + A / N^alpha + B / D^beta, constants of the Chinchilla data refitted by Besiroglu et al. (2024); the
printed originals (Hoffmann et al. 2022) are kept for comparison. E belongs to a tokenizer and a corpus: differences of
loss mean something, the loss itself does not.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from headwater.core.errors import InputError


@dataclass(frozen=True)
class Law:
    """One fit; `error` are standard errors of (alpha, beta) where published."""

    name: str
    e: float
    a: float
    b: float
    alpha: float
    beta: float
    error: tuple[float, float] = (0.02, 0.02)

    def loss(self, parameters: float, tokens: float) -> float:
        return self.e + self.a / parameters**self.alpha + self.b / tokens**self.beta

    def optimum(self, flops: float) -> tuple[float, float]:
        """Parameters and tokens that minimise the loss under 6 N D = flops."""
        ratio = (self.alpha * self.a / (self.beta * self.b)) ** (1.0 / (self.alpha + self.beta))
        parameters = ratio * (flops / 6.0) ** (self.beta / (self.alpha + self.beta))
        return parameters, flops / 6.0 / parameters

    def band(self, flops: float) -> tuple[float, float]:
        """Factors on the optimal parameters one standard error away.

        N* grows as C^(beta / (alpha + beta)); the error of that exponent follows from those of alpha and beta (taken as
        independent) and turns the line about the middle of the fitted runs.
        """
        total = (self.alpha + self.beta) ** 2
        spread = ((self.beta * self.error[0] / total) ** 2 + (self.alpha * self.error[1] / total) ** 2) ** 0.5
        turn = abs(math.log(flops / MIDDLE_FLOPS)) * spread
        return math.exp(-turn), math.exp(turn)


REFIT = Law("Besiroglu 2024 refit", 1.8172, 482.01, 2085.43, 0.3478, 0.3658)
CHINCHILLA = Law("Chinchilla as printed", 1.69, 406.4, 410.7, 0.34, 0.28)
MIDDLE_FLOPS = 1e20  # compute of a middling run of the fit's data; assumed
REPEATS_USEFUL = 4.0  # epochs until repeated data loses its worth (Muennighoff et al. 2023)


def advice(parameters: float, tokens: float, unique_tokens: float = 0.0) -> dict[str, Any]:
    """Where a plan stands: its loss, the optimum of its compute with a band, and how far it is from it.

    The band is one standard error of the fitted exponents; see `Law.band`.
    """
    if parameters <= 0 or tokens <= 0:
        raise InputError("parameters and tokens must be above zero", where="scaling")
    flops = 6.0 * parameters * tokens
    best_n, best_d = REFIT.optimum(flops)
    low, high = REFIT.band(flops)
    epochs = tokens / unique_tokens if unique_tokens else 1.0
    return {
        "law": REFIT.name,
        "compute_flops": flops,
        "loss": REFIT.loss(parameters, tokens),
        "loss_at_optimum": REFIT.loss(best_n, best_d),
        "optimal_parameters": best_n,
        "optimal_parameters_low": best_n * low,
        "optimal_parameters_high": best_n * high,
        "optimal_tokens": best_d,
        "optimal_tokens_per_parameter": best_d / best_n,
        "optimal_tokens_per_parameter_low": best_d / best_n / high**2,
        "optimal_tokens_per_parameter_high": best_d / best_n / low**2,
        "tokens_per_parameter": tokens / parameters,
        "epochs": epochs,
        "constants": asdict(REFIT),
    }


def inference_optimum(target_loss: float, inference_tokens: float, law: Law = REFIT) -> tuple[float, float]:
    """Parameters and training tokens with the least 6 N D + 2 N D_inference at a loss (Sardana et al. 2023).

    InputError when no model reaches the loss.
    """
    if target_loss <= law.e:
        raise InputError(f"no model reaches a loss of {target_loss}: the law's floor is {law.e}", where="scaling")
    best: tuple[float, float, float] | None = None
    for step in range(0, 4001):
        n = 10.0 ** (6.0 + step * 0.002)
        left = target_loss - law.e - law.a / n**law.alpha
        if left <= 0:
            continue
        d = (law.b / left) ** (1.0 / law.beta)
        total = 6.0 * n * d + 2.0 * n * inference_tokens
        if best is None or total < best[0]:
            best = (total, n, d)
    if best is None:
        raise InputError(f"no model below 1e14 parameters reaches a loss of {target_loss}", where="scaling")
    return best[1], best[2]
