"""What is put into runs, one case a row of the table: the fault, who may say it, and within how many steps.

In: nothing. Out: `CASES` by name.

    CASES["poisoned batch"].fault(203, seed=1)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from headwater.diagnose.faults import (
    Betas,
    DeadHead,
    Fault,
    LearningRate,
    NotANumber,
    Overflow,
    PoisonedBatch,
    ScaledGradients,
    ShuffledTargets,
)
from headwater.diagnose.faults_bits import FlippedGradient, FlippedWeight
from headwater.diagnose.faults_machine import FullDisk, Leak, LostSaves, SlowLoader, SlowSteps

PREFIX = 300
"""Healthy steps before, after which all models know more than how often each token comes; then the run is stopped and
goes on, so that what a resume forgets shows."""

SPIKES = ("loss_spike", "moving_average", "gradient_explosion", "non_finite")
BESIDE = {"slow_data", "slow_steps", "memory_creep", "disk_full", "old_checkpoint", "overflow"}
"""Detectors of what neither loss nor norm is about."""
DRIFTS = ("divergence", "oscillation", "plateau", "no_convergence")


@dataclass(frozen=True)
class Case:
    """`fault(step, seed)`; `detectors` that say the right thing; `window` in steps after the first wrong one; `after`:
    steps between the resume and the fault; `settings` of the run beside the usual ones; `fresh`: the fault is there
    from the first step of a new run. `possible`: False where nothing can be expected, which the table says.
    `most`: trials at most, where one takes long."""

    fault: Callable[[int, int], Fault]
    detectors: tuple[str, ...]
    window: int
    after: int = 3
    settings: dict[str, Any] = field(default_factory=dict)
    monitor: dict[str, Any] = field(default_factory=dict)
    fresh: bool = False
    possible: bool = True
    most: int = 1_000

    @property
    def instant(self) -> bool:
        return self.window <= 5

    @property
    def in_figures(self) -> bool:
        """Whether loss and norm could show it at all."""
        return not set(self.detectors) <= BESIDE


CHANGED = ("changed_weights",)

CASES: dict[str, Case] = {
    "NaN or infinity in one gradient": Case(lambda at, s: NotANumber(at, seed=s), ("non_finite",), 5),
    "poisoned batch": Case(lambda at, s: PoisonedBatch(at, seed=s), SPIKES, 5),
    "poisoned batch, half of its rows": Case(lambda at, s: PoisonedBatch(at, seed=s, share=0.5), SPIKES, 5),
    "targets shuffled from a step on": Case(lambda at, s: ShuffledTargets(at, seed=s), (*SPIKES, *DRIFTS), 100),
    "flipped exponent bit of a weight": Case(
        lambda at, s: FlippedWeight(at, "exponent", seed=s), (*CHANGED, *SPIKES), 5
    ),
    "flipped sign bit of a weight": Case(lambda at, s: FlippedWeight(at, "sign", seed=s), CHANGED, 5),
    "flipped mantissa bit of a weight": Case(lambda at, s: FlippedWeight(at, "mantissa", seed=s), CHANGED, 5),
    "highest exponent bit of a gradient": Case(
        lambda at, s: FlippedGradient(at, "exponent", bit=-1, seed=s), SPIKES, 5
    ),
    "any lower exponent bit of a gradient": Case(
        lambda at, s: FlippedGradient(at, "exponent", bit=s % 7, seed=s), SPIKES, 5, possible=False
    ),
    "sign bit of a gradient": Case(lambda at, s: FlippedGradient(at, "sign", seed=s), SPIKES, 5, possible=False),
    "mantissa bit of a gradient": Case(
        lambda at, s: FlippedGradient(at, "mantissa", seed=s), SPIKES, 5, possible=False
    ),
    "fp16 that overflows at every step": Case(
        lambda at, s: Overflow(at, seed=s), ("overflow",), 5, settings={"precision": "fp16"}
    ),
    "weights that stand still": Case(lambda at, s: LearningRate(at, 0.0, seed=s), ("no_updates",), 10),
    "vanishing gradients": Case(lambda at, s: ScaledGradients(at, 1e-9, seed=s), ("gradient_vanishing",), 25),
    "learning rate x 30": Case(lambda at, s: LearningRate(at, 30.0, seed=s), (*SPIKES, *DRIFTS), 200),
    "learning rate that creeps up (5 % a step)": Case(
        lambda at, s: LearningRate(at, 1.0, growth=1.05, seed=s), (*SPIKES, *DRIFTS), 200
    ),
    "second moment that forgets (beta2 0.1)": Case(
        lambda at, s: Betas(at, 0.0, 0.1, factor=8.0, seed=s), (*SPIKES, *DRIFTS), 200
    ),
    "nothing is learned (rate / 10,000 from the start)": Case(
        lambda at, s: LearningRate(at, 1e-4, seed=s), ("no_convergence",), 200, fresh=True
    ),
    "nothing to learn (targets shuffled from the start)": Case(
        lambda at, s: ShuffledTargets(at, seed=s), ("no_convergence", "plateau"), 260, fresh=True
    ),
    "learning that stops (rate / 10,000)": Case(
        lambda at, s: LearningRate(at, 1e-4, seed=s), ("plateau", "no_updates", "no_convergence"), 200
    ),
    "dead attention head": Case(lambda at, s: DeadHead(at, layer=s % 2, head=s % 4, seed=s), ("dead_heads",), 200),
    "slow loader": Case(lambda at, s: SlowLoader(at, seconds=0.15, seed=s), ("slow_data",), 40, after=60),
    "slow steps": Case(
        lambda at, s: SlowSteps(at, seconds=1.0, seed=s), ("slow_steps",), 40, after=60, most=6
    ),
    "memory leak (1 MB a step)": Case(lambda at, s: Leak(at, 1.0, seed=s), ("memory_creep",), 200),
    "full disk": Case(lambda at, s: FullDisk(at, seed=s), ("disk_full",), 5),
    "checkpoints that are no longer made": Case(
        lambda at, s: LostSaves(at, seed=s), ("old_checkpoint",), 200, settings={"checkpoint": {"every": 50}}
    ),
}  # fmt: skip
