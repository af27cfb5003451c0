"""Which layers a pipeline stage gets: one rule for the planner and for what really runs.

In: layers, ranks, groups of layers a rank holds, and what the head weighs in layers. Out: the layers of every stage.

    split_layers(5, pp=2, chunks=1, head_units=0.4) == (3, 2)

Every stage has a layer. The rest go one by one to the rank that has least to do with it, then to its lightest stage; of
equals the later one, which holds fewer micro-batches' activations and, not being the first, no embedding. A lookup
multiplies nothing, so the embedding weighs nothing else; the head is a matrix product and weighs `head_units` layers.
"""

from __future__ import annotations

from functools import lru_cache
from heapq import heapify, heapreplace


def rank_of_stage(stage: int, pp: int, chunks: int, *, v_shaped: bool) -> int:
    """The pipeline rank that holds a stage: round after round, or down and up again in a V (Qi et al. 2024)."""
    if v_shaped:
        return stage if stage < pp else pp * chunks - 1 - stage
    return stage % pp


@lru_cache(maxsize=65536)
def split_layers(
    layers: int, *, pp: int, chunks: int = 1, head_units: float = 0.0, v_shaped: bool = False
) -> tuple[int, ...]:
    """Layers of each of pp x chunks stages, in the model's order; their sum is `layers`.

    Raises `ValueError` if there are fewer layers than stages.
    """
    stages = pp * chunks
    if layers < stages:
        raise ValueError(f"{layers} layers cannot fill {stages} stages\n  mend: use fewer stages")
    held: list[list[int]] = [[] for _ in range(pp)]
    for stage in range(stages):
        held[rank_of_stage(stage, pp, chunks, v_shaped=v_shaped)].append(stage)
    counts = [1] * stages
    loads = [1.0] * (stages - 1) + [1.0 + head_units]

    def lightest(rank: int) -> tuple[float, float, int]:
        stage = min(held[rank], key=lambda s: (loads[s], -s))
        return sum(loads[s] for s in held[rank]), loads[stage], -stage

    queue = [(*lightest(rank), rank) for rank in range(pp)]
    heapify(queue)
    for _ in range(layers - stages):
        *_, negative, rank = queue[0]
        counts[-negative] += 1
        loads[-negative] += 1.0
        heapreplace(queue, (*lightest(rank), rank))
    return tuple(counts)


def rank_layers(counts: tuple[int, ...], pp: int, *, v_shaped: bool = False) -> tuple[int, int, int]:
    """Layers of the rank with the embedding, of the fullest rank between, and of the rank with the head. In a V one
    rank has both: it counts as the last, and the first is as full as the fullest other."""
    chunks = len(counts) // pp
    held = [0] * pp
    for stage, count in enumerate(counts):
        held[rank_of_stage(stage, pp, chunks, v_shaped=v_shaped)] += count
    if pp == 1:
        return held[0], held[0], held[0]
    if v_shaped:
        return max(held[1:]), max(held[1:]), held[0]
    return held[0], max(held[1:-1], default=held[0]), held[-1]
