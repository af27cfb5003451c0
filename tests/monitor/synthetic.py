"""Records of runs that never happened: a loss that falls like a power of the steps, noise like that of real batches.

In: a length and a seed. Out: figures by step, as the detectors get them; faults are put in by changing some.
"""

from __future__ import annotations

import math
import random
from typing import Any

UNIFORM = 9.2


def heavy(draw: random.Random, degrees: int) -> float:
    """Student's t with variance 1: mildly heavy tails at 6 degrees of freedom."""
    square = sum(draw.gauss(0, 1) ** 2 for _ in range(degrees)) / degrees
    return draw.gauss(0, 1) / math.sqrt(square) * math.sqrt((degrees - 2) / degrees)


def clean_run(steps: int, seed: int, *, tails: int | None = None, noise: float = 0.02) -> list[dict[str, Any]]:
    """Healthy figures of steps 1, 2, ...; `noise`: share of the loss; `tails`: degrees of freedom, None: Gaussian."""
    draw = random.Random(seed)
    shock = (lambda: draw.gauss(0, 1)) if tails is None else (lambda: heavy(draw, tails))
    rows = []
    for step in range(1, steps + 1):
        level = 1.7 + 7.5 * (1 + step / 20) ** -0.35
        seconds = 0.4 * math.exp(0.08 * shock()) + (2.0 if draw.random() < 0.005 else 0.0)
        rows.append(
            {
                "loss": level * (1 + noise * shock()),
                "grad_norm": (0.4 + 4 / math.sqrt(step)) * math.exp(0.2 * shock()),
                "step_seconds": seconds,
                "data_wait_seconds": min(0.9, abs(0.02 * shock())) * seconds,
                "step_tokens": 65_536,
                "mem_allocated": 8e9 + min(step, 30) * 1e7 + 2e7 * draw.random(),
                "mem_limit": 16e9,
                "uniform_loss": UNIFORM,
                "rank_seconds": [0.3 * math.exp(0.05 * shock()) for _ in range(4)],
                "checkpoint_age_steps": step % 50,
                "checkpoint_every_steps": 50,
                "checkpoint_bytes": 1e9,
                "disk_free_bytes": 1e11 * draw.random() + 2e9,
                "lr_share": 1.0,
                "phase": "run",
                "weights_moved": True,
            }
        )
        if step % 50 == 0:
            rows[-1] |= {
                "update_ratio": {f"layer{n}": 1e-3 * math.exp(0.3 * shock()) for n in range(4)},
                "param_grad_norm": {f"layer{n}": 0.1 * math.exp(0.5 * shock()) for n in range(4)},
                "head_entropy_ratio": {f"{n}.0": 0.6 + 0.1 * draw.random() for n in range(4)},
                "head_activity_ratio": {f"{n}.0": math.exp(0.3 * shock()) for n in range(4)},
            }
    return rows
