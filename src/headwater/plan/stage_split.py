"""Which layers a pipeline stage gets: one rule for the planner and for what really runs.

In: layers, ranks, groups of layers a rank holds, and what the head weighs in layers. Out: the layers of every stage.

    split_layers(5, pp=2, chunks=1, head_units=0.4) == (3, 2)

Every stage has a layer. The rest go one by one to the rank that has least to do with it, then to its lightest stage; of
equals the later one, which holds fewer micro-batches' activations and, not being the first, no embedding. A lookup
multiplies nothing, so the embedding weighs nothing else; the head is a matrix product and weighs `head_units` layers.
"""

from __future__ import annotations

from functools import lru_cache


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
    ranks = [rank_of_stage(stage, pp, chunks, v_shaped=v_shaped) for stage in range(stages)]
    counts = [1] * stages
    stage_load = [1.0] * (stages - 1) + [1.0 + head_units]
    rank_load = [0.0] * pp
    for stage, load in enumerate(stage_load):
        rank_load[ranks[stage]] += load
    for _ in range(layers - stages):
        chosen = min(range(stages), key=lambda s: (rank_load[ranks[s]], stage_load[s], -s))
        counts[chosen] += 1
        stage_load[chosen] += 1.0
        rank_load[ranks[chosen]] += 1.0
    return tuple(counts)
