"""Many small batches scored apart, in any layout: what benchmarks during training need.

In: batches that all ranks bring alike. Out: of each, nats and right predictions, known to all ranks. Data-parallel
ranks take turns; the ranks that share a model compute together, with the weights where they are.

    with module.evaluation(averaged=False):
        evaluate_each(module, [Batch(tokens, targets), ...])
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from headwater.parallel.mesh import Mesh
from headwater.parallel.watchdog import beat
from headwater.train.accumulate import wide_dtype
from headwater.train.batch import Batch
from headwater.train.train_module import TrainModule


@torch.no_grad()
def evaluate_each(module: TrainModule, batches: Sequence[Batch]) -> list[tuple[float, int]]:
    """(sum of nats, right predictions) of each batch. All ranks call it, with the same batches."""
    place, ranks = module.mesh.coordinate("dp"), module.mesh.size("dp")
    device = module.mesh.device
    sums = torch.zeros(len(batches), 2, dtype=wide_dtype(device), device=device)
    for start in range(0, len(batches), ranks):
        beat()
        mine = start + place
        # Every rank makes as many forward passes, for sharded weights come together in them: a rank that has nothing
        # left does the last batch again and forgets it.
        found = module.fitting.evaluate(batches[min(mine, len(batches) - 1)])
        if mine < len(batches):
            sums[mine] = found
    return [(nats, round(right)) for nats, right in module._everywhere(sums).tolist()]


def row_length(tokens: int, longest: int, mesh: Mesh) -> int:
    """How long a row is made for so many tokens: few lengths, because compiled code and pipelines have one each, and
    divisible by the ranks that share a row."""
    parts = 2 * mesh.size("cp") * mesh.size("tp")
    length = 64
    while length < tokens:
        length *= 2
    return math.ceil(min(length, max(longest, tokens)) / parts) * parts
