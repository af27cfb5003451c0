"""Pipeline schedules in closed form: idle time of a step and micro-batches in flight.

In: times a micro-batch of one stage (forward F, input gradient B, weight gradient W, seconds), stages p, chunks v,
micro-batches m. Sources: GPipe (Huang 2019), 1F1B and interleaving (Narayanan, SC21), zero bubble (Qi 2024),
DualPipe (DeepSeek-V3). Checked against the event-driven simulator in `pipeline_events.py`.
"""

from __future__ import annotations

import numpy as np

from .cases import Array, Cases, Schedule
from .stage_split import rank_layers, split_layers


def bubble_seconds(schedule: Array, p: Array, v: Array, f: Array, b: Array, w: Array) -> Array:
    """Idle seconds of a stage in one step, all stages alike: what is added to m * (F + B + W)."""
    whole = f + b + w
    ramp = (p - 1.0) * whole
    h1 = (p - 1.0) * np.maximum(f + b - w, 0.0)
    h2 = (p - 1.0) * np.maximum(f + b - 2.0 * w, 0.0)
    dual = np.maximum(p / 2.0 - 1.0, 0.0) * np.maximum((f + b + w) + (b + w) - 3.0 * w, 0.0)
    # ZB-V is free of bubbles in theory (F = B = W); its list schedule (`pipeline_vshape.py`) keeps half of H1's.
    zbv = h1 / 2.0
    # DualPipeV: p ranks hold two chunks each in a V; times of a chunk are half of the rank's.
    dual_v = (p - 1.0) * np.maximum(whole + (b + w) - 3.0 * w, 0.0) / 2.0
    return np.select(
        [
            np.asarray(p) <= 1,
            schedule == Schedule.INTERLEAVED,
            (schedule == Schedule.ZB_H1) | (schedule == Schedule.ZB_1P),
            (schedule == Schedule.ZB_H2) | (schedule == Schedule.ZB_2P),
            schedule == Schedule.ZB_V,
            schedule == Schedule.DUALPIPE,
            schedule == Schedule.INTERLEAVED_ZB,
            schedule == Schedule.DUALPIPE_V,
        ],
        [0.0 * ramp, ramp / np.maximum(v, 1.0), h1, h2, zbv, dual, h1 / np.maximum(v, 1.0), dual_v],
        default=ramp,
    )


def in_flight(schedule: Array, p: Array, v: Array, m: Array, stage: Array) -> Array:
    """Micro-batches whose activations stage `stage` (0-based) holds at its fullest, in units of that whole stage."""
    left = p - stage
    inter = np.minimum((p * (v - 1.0) + 2.0 * left - 1.0) / np.maximum(v, 1.0), m)
    return np.select(
        [
            np.asarray(p) <= 1,
            schedule == Schedule.GPIPE,
            schedule == Schedule.INTERLEAVED,
            (schedule == Schedule.ZB_H1) | (schedule == Schedule.ZB_1P) | (schedule == Schedule.ZB_V),
            (schedule == Schedule.ZB_H2),
            (schedule == Schedule.ZB_2P),
            schedule == Schedule.DUALPIPE,
            schedule == Schedule.INTERLEAVED_ZB,
            schedule == Schedule.DUALPIPE_V,
        ],
        [
            np.ones_like(left * m),
            m + 0.0 * left,
            inter,
            np.minimum(p + 0.0 * left, m),
            np.minimum(2.0 * left - 1.0 + 0.0 * m, m),
            np.minimum(2.0 * p + 0.0 * left, m),
            np.minimum(p + 1.0 + 0.0 * left, m),
            np.maximum(inter, np.minimum(p + 0.0 * left, m)),
            np.minimum(p + 0.5 + 0.0 * left, m),
        ],
        default=np.minimum(left, m),
    )


def stage_layers(
    layers: Array,
    p: Array,
    spread: Array = 0.0,
    head_units: Array = 0.0,
    chunks: Array = 1.0,
    schedule: Array = Schedule.NONE,
) -> tuple[Array, Array, Array]:
    """Layers of the first, the middle and the last stage (of all chunks of a rank, where it has several).

    Even where p divides L; where L+2 or L+1 divides, embedding and head count as a layer each (Megatron, BLOOM,
    Llama 3); otherwise the heaviest stages take the remainder and the last is light. `spread` 1 to 3: as `Cases` has
    it; 3 is the cut that Headwater's own pipelines make.
    """
    even = layers / p
    two = (layers + 2.0) % p == 0
    one = (layers + 1.0) % p == 0
    exact = (layers % p == 0) | (np.asarray(p) <= 1)
    full = np.where(exact, even, np.where(two, (layers + 2.0) / p, np.where(one, (layers + 1.0) / p, np.ceil(even))))
    first = np.where(~exact & two, full - 1.0, full)
    rest = layers - first - full * np.maximum(p - 2.0, 0.0)
    last = np.where(exact | (np.asarray(p) <= 1), full, np.maximum(rest, 0.0))
    # Cut by items (embedding, layers, head), as DeepSpeed's "type:transformer|embedding" does.
    by_item = (np.asarray(spread) > 0) & (np.asarray(p) > 1)
    most = np.ceil((layers + 2.0) / p)
    full = np.where(by_item, most, full)
    first = np.where(by_item, most - 1.0, first)
    last = np.where(by_item, np.floor((layers + 2.0) / p) - 1.0, last)
    # Cut by cost (nanotron, embedding-aware planners): the head weighs `head_units` layers.
    by_cost = (np.asarray(spread) > 1) & (np.asarray(p) > 1)
    if np.any(by_cost):
        low = np.maximum(np.floor((layers + head_units) / p), 1.0)
        rest_low, rest_high = layers - low * (p - 1.0), layers - (low + 1.0) * (p - 1.0)
        rest_high = np.maximum(rest_high, 0.0)
        high_better = np.maximum(low + 1.0, rest_high + head_units) < np.maximum(low, rest_low + head_units)
        chosen = np.where(high_better, low + 1.0, low)
        full = np.where(by_cost, chosen, full)
        first = np.where(by_cost, chosen, first)
        last = np.where(by_cost, np.maximum(layers - chosen * (p - 1.0), 0.0), last)
    ours = (np.asarray(spread) > 2) & (np.asarray(p) > 1) & (layers >= p * chunks)
    if np.any(ours):
        first, full, last = _cut_as_trained(ours, (first, full, last), layers, p, chunks, head_units, schedule)
    return first, full, last


def _cut_as_trained(
    ours: Array,
    otherwise: tuple[Array, Array, Array],
    layers: Array,
    p: Array,
    chunks: Array,
    head_units: Array,
    schedule: Array,
) -> tuple[Array, Array, Array]:
    """`stage_split`, case by case, where `ours`. It is a search over integers, made once for equal cases."""
    v_shaped = (np.asarray(schedule) == Schedule.ZB_V) | (np.asarray(schedule) == Schedule.DUALPIPE_V)
    cases = np.broadcast_arrays(ours, layers, p, chunks, head_units, v_shaped, *otherwise)
    result = [np.array(values, dtype=float) for values in cases[6:]]
    for place in np.ndindex(cases[0].shape):
        mine, depth, stages, parts, head, v = (values[place] for values in cases[:6])
        if mine:
            counts = split_layers(
                int(depth), pp=int(stages), chunks=int(parts), head_units=round(float(head), 3), v_shaped=bool(v)
            )
            for values, value in zip(result, rank_layers(counts, int(stages), v_shaped=bool(v)), strict=True):
                values[place] = value
    return result[0], result[1], result[2]


def folded_here(x: Cases) -> Array:
    """Where this project's trainer folds the model: rank 0 holds the embedding and the head."""
    folded = (np.asarray(x.schedule) == Schedule.ZB_V) | (np.asarray(x.schedule) == Schedule.DUALPIPE_V)
    return np.asarray(folded & (np.asarray(x.spread) > 2) & (np.asarray(x.pp) > 1))


def splits_here(x: Cases) -> Array:
    """Where this project's trainer computes gradients of inputs and of weights apart. What is computed again is made
    for each of the two, and what the second needs is kept until then: by the simulator's count, that saves little.
    """
    apart = folded_here(x) | (np.asarray(x.schedule) == Schedule.INTERLEAVED_ZB)
    return np.asarray(apart & (np.asarray(x.spread) > 2) & (np.asarray(x.pp) > 1))
