"""The trainer's layouts as the planner takes them.

In: a `parallel` section and what is computed again. Out: a `Layout`.

    layout_of(ParallelConfig(dp_replicate=2, pp=2), TrainConfig(), layers=8, micro_batch=2)
"""

from __future__ import annotations

from headwater.parallel.config import ParallelConfig
from headwater.plan import Layout
from headwater.train.config import TrainConfig


def layout_of(parallel: ParallelConfig, train: TrainConfig, layers: int, micro_batch: int) -> Layout:
    """The planner's layout of a model of `layers` layers."""
    again = train.activation_checkpointing
    stage = layers // (parallel.pp * parallel.virtual_stages)
    return Layout(
        tp=parallel.tp,
        pp=parallel.pp,
        dp=parallel.data_parallel,
        cp=parallel.cp,
        chunks=parallel.virtual_stages,
        micro_batch=micro_batch,
        zero=parallel.zero,
        shard=parallel.dp_shard if parallel.zero else parallel.data_parallel,
        schedule=parallel.schedule,
        recompute=train.recompute.share(stage) if again == "full" else 0.0,
        recompute_light=again == "selective",
    )
