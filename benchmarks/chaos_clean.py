"""Healthy runs, as unlike each other as real ones are: what a detector must keep quiet on.

In: nothing. Out: `CLEAN`, settings by name, and the share of the steps each gets.

    for clean in CLEAN: start(world, folder, dataset=clean.dataset, config=clean.config(2_000))
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Clean:
    """`share` of the clean steps; `settings` of `train` beside the length, which schedules and phases follow."""

    name: str
    dataset: str
    share: int = 1
    settings: dict[str, Any] = field(default_factory=dict)
    parallel: dict[str, Any] = field(default_factory=dict)

    def config(self, steps: int) -> dict[str, Any]:
        config = {**self.settings, "steps": steps, "checkpoint": {"every": max(1, steps // 4)}}
        if "batch_ramp" in config:
            config["batch_ramp"] = {"start": 4, "increment": 4, "steps": max(1, steps // 4)}
        return config


def _schedule(name: str, warmup: int = 40, **more: Any) -> dict[str, Any]:
    return {"name": name, "warmup_steps": warmup, **more}


def _phases(*phases: dict[str, Any]) -> tuple[dict[str, Any], ...]:
    return tuple({"name": f"phase{n}", "share": 1 / len(phases), **phase} for n, phase in enumerate(phases))


CLEAN: tuple[Clean, ...] = (
    Clean("constant rate, both languages", "mixed", 2, {"schedule": _schedule("constant", 20)}),
    Clean("cosine, English", "en", 2, {"schedule": _schedule("cosine", 100)}),
    Clean("warm-up, stable, decay, Chinese", "zh", 2, {"schedule": _schedule("wsd", 40, decay_ratio=0.3)}),
    Clean("linear to 0, high rate", "mixed", 1,
          {"optimizer": {"lr": 1e-2}, "schedule": _schedule("linear", 50, min_ratio=0.0)}),
    Clean("low rate", "mixed", 1, {"optimizer": {"lr": 3e-4}, "schedule": _schedule("constant", 20)}),
    Clean("batch that grows", "zh", 1, {"batch_ramp": {}, "global_batch": 12, "schedule": _schedule("cosine")}),
    Clean("accumulation, z-loss, averaged weights", "en", 1,
          {"z_loss": 1e-4, "averaging": {"name": "ema"}, "schedule": _schedule("cosine")}, {"micro_batch": 2}),
    Clean("longer samples in a second phase", "mixed", 1,
          {"phases": _phases({}, {"seq_len": 64}), "schedule": _schedule("cosine")}),
    Clean("another mixture in a second phase", "mixed", 1,
          {"phases": _phases({"mixture": {"en": 0.9, "zh": 0.1}}, {"mixture": {"en": 0.1, "zh": 0.9}}),
           "schedule": _schedule("constant")}),
    Clean("Muon", "mixed", 1,
          {"optimizer": {"name": "muon", "lr": 5e-3, "adamw_lr": 3e-3}, "schedule": _schedule("wsd")}),
    Clean("large batch, no clipping", "en", 1,
          {"global_batch": 24, "clip_grad_norm": None, "schedule": _schedule("linear")}),
    Clean("small batch", "zh", 1, {"global_batch": 2, "schedule": _schedule("cosine")}),
)  # fmt: skip
