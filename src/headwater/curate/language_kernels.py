"""The compiled walk through the language model's automaton (`language_model`).

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
