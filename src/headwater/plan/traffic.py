"""Bytes that a rank puts on the wire in a step, by axis: what the step's times are made of, as plain figures.

In: `Cases` of one or more layouts. Out: bytes of the first, a middle and the last pipeline stage. The messages are
those of `headwater.plan.step`: rings carry 2 (q - 1) / q of an all-reduced message, (q - 1) / q of a gathered or
scattered one.

    wire_bytes(one_case(model, train, cluster, layout))["middle"]["tp"]
"""

from __future__ import annotations

import numpy as np

from .cases import Array, Cases, Schedule
from .counts import head_units, layer_parameters_local
from .schedules import folded_here, stage_layers

_SEVERAL = (Schedule.INTERLEAVED, Schedule.INTERLEAVED_ZB, Schedule.ZB_V, Schedule.DUALPIPE_V)


def wire_bytes(x: Cases) -> dict[str, dict[str, Array]]:
    """By stage (`first`, `middle`, `last`) and axis (`tp`, `pp`, `cp`, `dp`)."""
    first, full, last = stage_layers(x.layers, x.pp, x.spread, head_units(x), x.chunks, x.schedule)
    alone, folded = np.asarray(x.pp) <= 1, folded_here(x)
    return {
        "first": _of_stage(x, first, embedding=~folded, head=alone),
        "middle": _of_stage(x, full, embedding=alone, head=alone),
        "last": _of_stage(x, last, embedding=alone | folded, head=np.asarray(True)),
    }


def _share(q: Array) -> Array:
    return (q - 1.0) / np.maximum(q, 1.0)


def _of_stage(x: Cases, layers: Array, *, embedding: Array, head: Array) -> dict[str, Array]:
    m = x.microbatches
    stream = 2.0 * x.width * x.tokens * x.hidden
    pairs = np.where(x.parallel_block > 0, 1.0, 2.0)
    # Forward and backward: an all-reduce each, or a gather and a scatter; sequence parallelism gathers once more in the
    # backward pass, where the gathered input was not kept.
    regathered = (np.asarray(x.recompute_light) > 0) & (np.asarray(x.sequence_parallel) > 0)
    passes = pairs * (2.0 * (2.0 + x.recompute) + np.where(regathered, 1.0, 0.0))
    tp = layers * passes * stream * _share(x.tp)
    ends = np.asarray(embedding) * 1.0 + np.asarray(head) * 1.0
    tp = m * (tp + 2.0 * ends * stream * _share(x.tp))
    crossings = np.where(np.isin(x.schedule, _SEVERAL), np.maximum(x.chunks, 1.0), 1.0)
    split = np.where((x.sequence_parallel > 0) | (x.scatter_gather > 0), x.tp, 1.0)
    sides = 2.0 * crossings - np.asarray(embedding) * 1.0 - np.asarray(head) * 1.0
    # Of two ranks that a model is folded over, the other is where it turns: both its stages are its own.
    sides = sides - 2.0 * (folded_here(x) & (np.asarray(x.pp) == 2) & ~np.asarray(embedding))
    pp = np.where(x.pp > 1, m * sides * 2.0 * x.width * x.tokens * x.hidden / split, 0.0)
    tables = np.asarray(embedding) + np.asarray(head) * (1.0 - np.asarray(embedding) * x.tied)
    held = layers * layer_parameters_local(x) + tables * x.vocab * x.hidden / x.tp
    # Hybrid sharding scatters and gathers inside its group, and sums each share over the groups once a step.
    group = np.where(x.zero >= 1, np.asarray(x.shard_group), x.dp * x.cp)
    copies = x.dp * x.cp / group
    across = 2.0 * _share(copies) * x.grad_bytes / group
    once = np.where(x.zero >= 1, 1.0, 2.0) * x.grad_bytes + np.where(x.zero >= 1, x.param_bytes, 0.0)
    every = np.where(
        (x.zero >= 3) & (np.asarray(x.pp) <= 1),
        x.param_bytes * (1.0 + (x.reshard > 0)) + x.grad_bytes,
        0.0,
    )
    scattering = np.where((x.zero == 2) & (np.asarray(x.pp) <= 1), x.grad_bytes, 0.0)
    inside = np.where(every > 0, m * every, once + np.maximum(m - 1.0, 0.0) * scattering)
    dp = held * (_share(group) * inside + across)
    kv = 2.0 * x.width * x.tokens * 2.0 * x.kv_local * x.head_dim * (x.cp - 1.0)
    cp = m * layers * kv * (3.0 + x.recompute)
    return {"tp": tp, "pp": pp, "cp": cp, "dp": dp}
