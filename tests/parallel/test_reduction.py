"""How often gradients cross the wire: once a step, or once a micro-batch where ranks keep shares of them only."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from headwater.dataset.steps import rank_slice
from headwater.parallel.config import ParallelConfig
from headwater.parallel.mesh import build_mesh
from headwater.train.train_module import TrainModule
from tests.parallel.parity import MODEL, ROWS, assert_equal_to_one_process, batch, compare, train_config
from tests.parallel.ranks import run_ranks

UNITS = MODEL.num_hidden_layers + 1
"""A unit a layer, and the rest: what is reduced at once, while the layer below is computed."""


class Collectives(TorchDispatchMode):
    """Counts c10d operations, those of the backward pass included."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "c10d":
            self.counts[func._schema.name.removeprefix("c10d::")] += 1
        return func(*args, **(kwargs or {}))


def count(parallel: ParallelConfig, micro_batch: int) -> dict[str, int]:
    """Collectives of one step, by kind, of rank 0."""
    mesh = build_mesh(parallel, torch.device("cpu"))
    module = TrainModule.build(MODEL, train_config(), mesh=mesh, precision="fp32", micro_batch=micro_batch, seed=0)
    rows = rank_slice(range(ROWS), mesh.coordinate("dp"), mesh.size("dp"))
    with Collectives() as collectives:
        module.train_step(1, batch(1, rows), lr_factor=1.0)
    return dict(collectives.counts)


CASES: list[tuple[dict[str, Any], int, int, int]] = [
    # layout, micro-batches a step, reduce-scatters, all-gathers
    ({"dp_shard": 2, "zero_stage": 1}, 4, UNITS, UNITS),
    ({"dp_shard": 2, "zero_stage": 2}, 4, 4 * UNITS, UNITS),
    ({"dp_shard": 2, "zero_stage": 2, "gradient_reduction": "step"}, 4, UNITS, UNITS),
    ({"dp_shard": 2, "zero_stage": 3}, 1, UNITS, 2 * UNITS - 1),
    ({"dp_shard": 2, "zero_stage": 3, "gradient_reduction": "step"}, 4, UNITS, 8 * UNITS - 4),
]


@pytest.mark.parametrize(("layout", "micro_batches", "scatters", "gathers"), CASES, ids=str)
def test_gradients_are_reduced_as_often_as_the_layout_says(
    layout: dict[str, Any], micro_batches: int, scatters: int, gathers: int
) -> None:
    counts = run_ranks(2, count, ParallelConfig.model_validate(layout), ROWS // 2 // micro_batches)[0]
    assert counts["_reduce_scatter_base_"] == scatters, counts
    assert counts["_allgather_base_"] <= gathers, counts


def test_copies_of_a_model_reduce_once_a_step() -> None:
    counts = run_ranks(2, count, ParallelConfig(dp_replicate=2), 1)[0]
    # The rest: the number of predicted tokens, the sums of the loss, the norm.
    assert counts["allreduce_"] == UNITS + 3, counts


@pytest.mark.parametrize("reduction", ["step", "micro_batch"])
@pytest.mark.parametrize("layout", [{"dp_shard": 2}, {"dp_shard": 2, "dp_replicate": 2}], ids=str)
def test_when_gradients_are_reduced_does_not_change_them(layout: dict[str, int], reduction: str) -> None:
    parallel = ParallelConfig.model_validate(layout | {"gradient_reduction": reduction})
    assert_equal_to_one_process(compare(parallel, micro_batch=1))
