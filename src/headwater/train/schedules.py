"""Learning-rate schedules as pure functions of the step.

In: a `ScheduleConfig`, the number of steps it covers. Out: a factor of the peak, in [0, 1]. Nothing here has state,
so a resumed run cannot disagree with an undisturbed one.

    factor(ScheduleConfig(name="wsd", warmup_steps=100), position=1, total=1000)   # 0.01

`position` counts from 1, the first optimizer step, so the first step already moves the weights and the last step
of a cosine or linear schedule is exactly at the floor.
"""

from __future__ import annotations

import math

from headwater.train.update_config import DecayShape, ScheduleConfig

EXPONENTIAL_FLOOR = 1e-3
"""An exponential decay cannot reach 0; with a floor below this it ends here (ratio to the peak) and is shifted to hit
the floor exactly."""


def decay_shape(shape: DecayShape, progress: float) -> float:
    """From 1 at `progress` 0 to 0 at `progress` 1, monotone.

    `linear` and `cosine` as named; `one_minus_sqrt` is 1 - sqrt(x) (Hägele et al. 2024); `exponential` falls by a
    constant factor a step to `EXPONENTIAL_FLOOR`, shifted and scaled to end at 0.
    """
    if progress <= 0:
        return 1.0
    if progress >= 1:
        return 0.0
    match shape:
        case "linear":
            return 1.0 - progress
        case "cosine":
            return 0.5 * (1.0 + math.cos(math.pi * progress))
        case "one_minus_sqrt":
            return 1.0 - math.sqrt(progress)
        case "exponential":
            return (EXPONENTIAL_FLOOR**progress - EXPONENTIAL_FLOOR) / (1.0 - EXPONENTIAL_FLOOR)


def warmup_steps(config: ScheduleConfig, total: int) -> int:
    """The warm-up in force; a warm-up longer than the run is an error, never a shorter warm-up."""
    if config.warmup_steps > total:
        raise ValueError(f"warm-up of {config.warmup_steps} steps is longer than the {total} steps it belongs to")
    return config.warmup_steps


def factor(config: ScheduleConfig, position: int, total: int, peak_lr: float = 1.0) -> float:
    """Learning rate at `position` (1..total) as a share of the peak.

    Raises ValueError if `position` is outside 1..total or the warm-up is longer than `total`.
    `peak_lr` only serves to turn an absolute `min_lr` into a ratio.
    """
    if not 1 <= position <= total:
        raise ValueError(f"position {position} is outside 1..{total}")
    warmup = warmup_steps(config, total)
    if position <= warmup:
        return position / warmup
    floor = config.min_ratio if config.min_lr is None else min(1.0, config.min_lr / peak_lr)
    after, length = position - warmup, total - warmup
    match config.name:
        case "constant":
            return 1.0
        case "cosine":
            height = decay_shape("cosine", after / length)
        case "linear":
            height = decay_shape("linear", after / length)
        case "wsd":
            decay = min(length, max(1, round(config.decay_ratio * total)))
            height = decay_shape(config.decay_shape, (after - (length - decay)) / decay)
    return floor + (1.0 - floor) * height
