"""A run's mixture, given what the dataset has: planned, said, and then part of the run's plan and its ledger.

plan = mixed(plan_run(config), config, dataset.split("train"), reporter)
"""

from __future__ import annotations

from dataclasses import replace

from headwater.core.progress import Reporter
from headwater.dataset.dataset import DatasetSplit
from headwater.dataset.mix_plan import Stretch, plan_mixture
from headwater.train.config import TrainConfig
from headwater.train.phases import RunPlan


def mixed(plan: RunPlan, config: TrainConfig, split: DatasetSplit, reporter: Reporter) -> RunPlan:
    """The plan with the weights that `train.mixing` makes of the wanted ones; the same plan without such a block.
    RecipeError, with the numbers, for shares that cannot be had."""
    if config.mixing is None:
        return plan
    sizes = {
        name: {language: counts["tokens"] for language, counts in stream.languages.items()}
        for name, stream in split.domains.items()
    }
    stretches = [Stretch(s.steps * s.tokens_per_step, s.seq_len, s.mixture) for s in plan.segments]
    plans = plan_mixture(sizes, stretches, config.mixing, max_epochs=config.max_epochs)
    for segment, mix in zip(plan.segments, plans, strict=True):
        where = f"phase {segment.phase}, " if len(plan.segments) > 1 else ""
        reporter.info(f"mixture of {where}steps {segment.first_step:,} to {segment.last_step:,}")
        for line in mix.lines():
            reporter.info(f"  {line}")
    segments = tuple(replace(segment, mixture=mix.weights) for segment, mix in zip(plan.segments, plans, strict=True))
    return replace(plan, segments=segments)
