"""Pipelines together with the other axes train as one process does, and validate as it does."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from headwater.dataset.steps import rank_slice
from headwater.parallel.config import ParallelConfig
from headwater.parallel.mesh import build_mesh
from headwater.train.optimizers import named_parameters
from headwater.train.train_module import TrainModule
from tests.parallel.parity import (
    MODEL,
    ROWS,
    SEQ,
    assert_equal_to_one_process,
    batch,
    compare,
    train_config,
    whole,
)
from tests.parallel.ranks import RankError, run_ranks
from tests.parallel.test_reduction import Collectives

LAYOUTS: dict[str, dict[str, Any]] = {
    "pp 2 x zero 0": {"pp": 2, "dp_replicate": 2},
    "pp 2 x zero 1": {"pp": 2, "dp_shard": 2, "zero_stage": 1, "schedule": "interleaved_1f1b", "virtual_stages": 2},
    "pp 2 x zero 3": {"pp": 2, "dp_shard": 2, "schedule": "zbv", "virtual_stages": 2},
    "pp 2 x tp 2": {"pp": 2, "tp": 2},
    "pp 2 x tp 2, zero bubble": {"pp": 2, "tp": 2, "schedule": "interleaved_zero_bubble", "virtual_stages": 2},
    "pp 2 x cp 2": {"pp": 2, "cp": 2, "schedule": "interleaved_1f1b", "virtual_stages": 2},
    "2 x 2 x 2": {"pp": 2, "tp": 2, "dp_shard": 2},
    "2 x 2 x 2, dualpipev": {"pp": 2, "tp": 2, "dp_replicate": 2, "schedule": "dualpipev", "virtual_stages": 2},
}


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_a_pipeline_with_other_axes_trains_as_one_process_does(layout: dict[str, Any]) -> None:
    tied = MODEL.model_copy(update={"tie_word_embeddings": True})
    found = compare(ParallelConfig.model_validate(layout), model=tied, config=train_config(z_loss=1e-3), micro_batch=1)
    assert_equal_to_one_process(found)


def reductions(layout: dict[str, Any], micro_batch: int) -> dict[str, int]:
    """Collectives of one step by this rank, by kind, and how many units its stages have."""
    mesh = build_mesh(ParallelConfig.model_validate(layout), torch.device("cpu"))
    module = TrainModule.build(MODEL, train_config(), mesh=mesh, precision="fp32", micro_batch=micro_batch, seed=0)
    rows = rank_slice(range(ROWS), mesh.coordinate("dp"), mesh.size("dp"))
    with Collectives() as collectives:
        module.train_step(1, batch(1, rows), lr_factor=1.0)
    units = sum(len(stage.model.layers) + (stage.model.embed_tokens is not None or stage.lm_head is not None)
                for stage in module.stages)  # fmt: skip
    return {**collectives.counts, "units": units}


@pytest.mark.parametrize(("schedule", "zero"), [("gpipe", 1), ("1f1b", 3), ("interleaved_zero_bubble", 1), ("zbv", 3)])
def test_a_pipeline_gathers_and_reduces_once_a_step(schedule: str, zero: int) -> None:
    layout = {"pp": 2, "dp_shard": 2, "zero_stage": zero, "schedule": schedule,
              "virtual_stages": 1 if schedule in ("gpipe", "1f1b") else 2}  # fmt: skip
    for counts in run_ranks(4, reductions, layout, 1):
        assert counts["_reduce_scatter_base_"] == counts["units"], counts
        assert counts["_allgather_base_"] == counts["units"] + 1, counts  # one for the ranks' agreement on the shapes


def figures(parallel: ParallelConfig, state: dict[str, Tensor] | None) -> tuple[list[Any], dict[str, Tensor]]:
    """Two steps on from `state`: losses, validation of rows that make no whole micro-batches, under averages too, and
    the state by name, whole."""
    mesh = build_mesh(parallel, torch.device("cpu"))
    config = train_config(averaging={"name": "ema", "every": 1, "decay": 0.5})
    tied = MODEL.model_copy(update={"tie_word_embeddings": True})
    module = TrainModule.build(tied, config, mesh=mesh, precision="fp32", micro_batch=1, seed=3)
    rows = rank_slice(range(ROWS), mesh.coordinate("dp"), mesh.size("dp"))
    if state is not None:
        own = named_parameters(*module.stages)
        module.load_state_tensors({k: t.clone() for k, t in state.items() if any(name in k for name in own)})
    found: list[Any] = []
    for step in (1, 2) if state is None else (3, 4):
        found.append(module.train_step(step, batch(step, rows), lr_factor=1.0).loss)
        for averaged in (False, True):
            with module.evaluation(averaged=averaged):
                found.append(module.evaluate(batch(9, range(5)))[0])
    return found, {name: whole(tensor) for name, tensor in module.state_tensors().items()}


def test_validation_averages_and_state_of_a_pipeline_are_those_of_one_process() -> None:
    torch.set_num_threads(1)
    alone, state = figures(ParallelConfig(), None)
    then, after = figures(ParallelConfig(), state)
    parallel = ParallelConfig.model_validate({"pp": 2, "dp_shard": 2, "schedule": "zbv", "virtual_stages": 2})
    ranks = run_ranks(4, figures, parallel, None)
    merged = {name: tensor for _, tensors in ranks for name, tensor in tensors.items()}
    assert merged.keys() == state.keys()
    for found, _ in ranks:
        assert found == pytest.approx(alone, rel=1e-5)
    # What a pipeline saved, one process goes on from, and the other way round; in another cut as well.
    assert figures(ParallelConfig(), merged)[0] == pytest.approx(then, rel=1e-4)
    for found, tensors in run_ranks(2, figures, ParallelConfig(pp=2), state):
        assert found == pytest.approx(then, rel=1e-5)
        for name, tensor in tensors.items():
            torch.testing.assert_close(tensor, after[name], rtol=1e-3, atol=1e-5, msg=name)


def test_rows_that_make_no_whole_micro_batches_are_refused() -> None:
    with pytest.raises(
        RankError, match="8 samples a step and data-parallel rank do not divide into micro-batches of 3"
    ):
        run_ranks(2, figures_of_uneven_rows, timeout=20)


def figures_of_uneven_rows() -> None:
    mesh = build_mesh(ParallelConfig(pp=2), torch.device("cpu"))
    module = TrainModule.build(MODEL, train_config(), mesh=mesh, precision="fp32", micro_batch=3, seed=3)
    module.train_step(1, batch(1), lr_factor=1.0)


def dry_run(schedule: str) -> tuple[float, int]:
    virtual = 1 if schedule == "1f1b" else 2
    parallel = ParallelConfig.model_validate({"pp": 2, "schedule": schedule, "virtual_stages": virtual})
    module = TrainModule.build(
        MODEL, train_config(), mesh=build_mesh(parallel, torch.device("cpu")), precision="fp32", micro_batch=2, seed=3
    )
    seconds = module.dry_run(SEQ)
    return seconds, sum(p.grad is not None for stage in module.stages for p in stage.parameters())


@pytest.mark.parametrize("schedule", ["1f1b", "zbv"])
def test_a_dry_run_fills_the_pipeline_and_leaves_nothing(schedule: str) -> None:
    for seconds, gradients in run_ranks(2, dry_run, schedule):
        assert seconds > 0
        assert gradients == 0
