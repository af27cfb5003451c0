"""The compiled parts of the language model (`language_model`): the walk through its automaton and the sum of features.

walk(data, move, row, output, hits)     # how many features, their numbers in `hits`
"""

from __future__ import annotations

from typing import Any

from headwater.curate.quality.kernels import kernel


@kernel
def walk(data: Any, move: Any, row: Any, output: Any, hits: Any) -> Any:
    """Numbers of the features met in `data`, uint8, into `hits`, in order; returns how many."""
    state = 0
    count = 0
    for index in range(data.size):
        state = move[row[state] + data[index]]
        feature = output[state]
        if feature >= 0:
            hits[count] = feature
            count += 1
    return count


@kernel
def add_up(hits: Any, count: Any, weights: Any, logs: Any, seen: Any, order: Any, total: Any) -> Any:
    """Add `weights[how often] * logs[feature]` of each feature to `total`, float64 [columns], in the order in which
    they first occur; returns how many there are. `seen`, int32 [features], is zero before and after."""
    kinds = 0
    for index in range(count):
        feature = hits[index]
        if seen[feature] == 0:
            order[kinds] = feature
            kinds += 1
        seen[feature] += 1
    for index in range(kinds):
        feature = order[index]
        weight = weights[seen[feature]]
        seen[feature] = 0
        for column in range(total.size):
            total[column] += weight * logs[feature, column]
    return kinds
