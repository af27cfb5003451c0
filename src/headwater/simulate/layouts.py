"""The trainer's layouts as the planner takes them.

In: a `parallel` section, or the line that a run's record has of one, and what is computed again. Out: a `Layout`.

    layout_of(described("4 ranks = dp 2 (replicate 2 x shard 1) x cp 1 x tp 1 x pp 2, ZeRO 0, 1f1b"), train, 8, 2)
"""

from __future__ import annotations

import re

from headwater.core.errors import InputError
from headwater.parallel.config import ParallelConfig
from headwater.plan import Layout
from headwater.train.config import TrainConfig

_LINE = re.compile(
    r"[\d,]+ ranks = dp \d+ \(replicate (?P<dp_replicate>\d+) x shard (?P<dp_shard>\d+)\) x cp (?P<cp>\d+)"
    r" x tp (?P<tp>\d+) x pp (?P<pp>\d+), ZeRO (?P<zero_stage>\d)"
    r"(, (?P<schedule>\w+)( with (?P<virtual_stages>\d+) stages a rank)?)?"
)


def described(line: str) -> ParallelConfig:
    """The layout whose `ParallelConfig.describe()` is this line. InputError for another line."""
    if line == ParallelConfig().describe():
        return ParallelConfig()
    match = _LINE.fullmatch(line)
    if match is None:
        raise InputError(f"{line!r} is no layout", where="the run's events", mend="compare a run of this version")
    return ParallelConfig.model_validate(
        {
            name: value if name == "schedule" else int(value)
            for name, value in match.groupdict().items()
            if value is not None and (name != "zero_stage" or int(value) or int(match["dp_shard"]) == 1)
        }
    )


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
