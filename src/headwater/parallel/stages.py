"""A model cut into pipeline stages: which layers, on which rank, and what a schedule asks of the micro-batches.

In: the model's configuration and the layout. Out: `StageSpec`s, the same on every rank, without torch.

    [spec.layers for spec in split(config, ParallelConfig(pp=2))]      # e.g. [range(0, 3), range(3, 5)]

The planner counts with the same split (`headwater.plan.stage_split`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headwater.model.config import ModelConfig
from headwater.parallel.config import INTERLEAVED, V_SHAPED, ParallelConfig
from headwater.plan.stage_split import rank_of_stage, split_layers

SPLIT_BACKWARD: tuple[str, ...] = ("interleaved_zero_bubble", "zbv", "dualpipev")
"""Schedules that compute input gradients and weight gradients apart."""


MOST_IDLE = 0.2
"""Share of a step a pipeline rank may wait for others, where the trainer chooses the micro-batch."""


@dataclass(frozen=True, slots=True)
class StageSpec:
    """One stage: its place in the model, the pipeline rank that holds it, its layers, and whether it has the embedding
    (`first`) or the final norm and head (`last`)."""

    index: int
    rank: int
    layers: range
    first: bool
    last: bool

    def describe(self) -> str:
        """`stage 3 on rank 0: layers 12..15, head`."""
        layers = f"layers {self.layers.start}..{self.layers.stop - 1}" if len(self.layers) > 1 else ""
        parts = ["embedding"] * self.first + [layers or f"layer {self.layers.start}"] + ["head"] * self.last
        return f"stage {self.index} on rank {self.rank}: {', '.join(parts)}"


def head_units(config: ModelConfig, *, recomputed: float = 0.0) -> float:
    """What the head weighs in layers, by multiply work; a layer computed again (`recomputed`: the share of them) is a
    third dearer, the head never is."""
    count = config.parameter_count()
    head = config.true_vocab_size * config.hidden_size
    return head / (count.per_layer * (1.0 + recomputed / 3.0))


def split(config: ModelConfig, parallel: ParallelConfig, *, recomputed: float = 0.0) -> list[StageSpec]:
    """The stages of a layout, in the model's order. ValueError if there are fewer layers than stages."""
    v_shaped = parallel.schedule in V_SHAPED
    chunks = parallel.virtual_stages if parallel.pp > 1 else 1
    counts = split_layers(
        config.num_hidden_layers,
        pp=parallel.pp,
        chunks=chunks,
        head_units=round(head_units(config, recomputed=recomputed), 3),
        v_shaped=v_shaped,
    )
    specs, start = [], 0
    for index, count in enumerate(counts):
        rank = rank_of_stage(index, parallel.pp, chunks, v_shaped=v_shaped)
        specs.append(StageSpec(index, rank, range(start, start + count), index == 0, index == len(counts) - 1))
        start += count
    return specs


def of_rank(specs: Sequence[StageSpec], rank: int) -> list[StageSpec]:
    """A rank's own stages, in the model's order."""
    return [spec for spec in specs if spec.rank == rank]


def least_micro_batches(parallel: ParallelConfig) -> int:
    """The fewest micro-batches a step may have in the layout's schedule; 1 without a pipeline."""
    if parallel.pp == 1 or parallel.schedule == "gpipe":
        return 1
    return 2 * parallel.pp if parallel.schedule in V_SHAPED else parallel.pp


def micro_batch_problem(parallel: ParallelConfig, micro_batches: int) -> tuple[str, str] | None:
    """(what is wrong, how to mend it) with so many micro-batches a step; None if the schedule can run them.

    1F1B has one micro-batch at each stage before the first comes back; the interleaved schedules send groups of pp
    micro-batches through all chunks in turn (Narayanan et al. 2021, section 2.2); the V-shaped ones have one for each
    of their 2 pp stages under way.
    """
    least = least_micro_batches(parallel)
    if micro_batches < least:
        return (
            f"schedule {parallel.schedule} over pp {parallel.pp} needs at least {least} micro-batches a step and rank, "
            f"not {micro_batches}",
            "use a smaller parallel.micro_batch or a larger train.global_batch"
            + ("" if least == 1 else ", or schedule: gpipe"),
        )
    if parallel.pp > 1 and parallel.schedule in INTERLEAVED and micro_batches % parallel.pp:
        lower = micro_batches - micro_batches % parallel.pp
        return (
            f"schedule {parallel.schedule} runs micro-batches in groups of pp {parallel.pp}, and {micro_batches} "
            "a step and rank do not make whole groups",
            f"arrange for {lower} or {lower + parallel.pp} of them (train.global_batch, parallel.micro_batch)",
        )
    return None


def micro_batch_choices(parallel: ParallelConfig, rows: int) -> list[int]:
    """The `micro_batch` sizes that cut `rows` samples of a data-parallel rank as the schedule asks, smallest first."""
    sizes = (size for size in range(1, rows + 1) if rows % size == 0)
    return [size for size in sizes if micro_batch_problem(parallel, rows // size) is None]


def choose_for_pipeline(parallel: ParallelConfig, rows: Sequence[int], most: int) -> tuple[int, str]:
    """(micro-batch, why) for steps of these numbers of samples a data-parallel rank: the largest of at most `most`
    samples that leaves a pipeline rank idle for no more than a fifth of the step, else the smallest there is.

    ValueError (what, then `mend:`) where no size cuts all of them as the schedule asks.
    """
    common = sorted(set[int].intersection(*(set(micro_batch_choices(parallel, number)) for number in rows)))
    if not common:
        raise ValueError(
            f"no micro-batch cuts steps of {' and '.join(map(str, sorted(set(rows))))} samples a data-parallel rank as "
            f"schedule {parallel.schedule} over pp {parallel.pp} asks: {micro_batch_rule(parallel)}"
            f"\n  mend: use multiples of {least_micro_batches(parallel) * parallel.data_parallel} samples a step"
        )
    fewest = min(rows)
    busy = [size for size in common if size <= most and parallel.bubble_ratio(fewest // size) <= MOST_IDLE]
    chosen = max(busy, default=common[0])
    idle = parallel.bubble_ratio(fewest // chosen)
    return chosen, f"{fewest // chosen} micro-batches a step leave a pipeline rank idle for about {idle:.0%} of it"


def micro_batch_rule(parallel: ParallelConfig) -> str:
    """What the schedule asks of the number of micro-batches, in words."""
    least = least_micro_batches(parallel)
    return f"a multiple of {parallel.pp}" if parallel.schedule in INTERLEAVED else f"at least {least}"


def compile_problem(parallel: ParallelConfig, *, compiled: bool) -> tuple[str, str] | None:
    """(what is wrong, how to mend it) with compiled blocks; None if the schedule can run them."""
    if not compiled or parallel.pp == 1 or parallel.schedule not in SPLIT_BACKWARD:
        return None
    return (
        f"schedule {parallel.schedule} computes input and weight gradients apart, which compiled blocks cannot",
        "set train.compile: false, or use schedule: 1f1b or interleaved_1f1b",
    )
