"""A whole run in a pipeline: figures, validation, checkpoints and their resumption in other cuts, as in one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from headwater.parallel.config import ParallelConfig
from headwater.train import RunFolder
from headwater.train.weights import load_weights
from tests.parallel.ranks import RankError, run_ranks
from tests.train.conftest import World
from tests.train.test_run_ranks import rank_run

NO_SAMPLES: dict[str, Any] = {"sampling": {"every": 0}}


def layout(**fields: Any) -> ParallelConfig:
    return ParallelConfig.model_validate(fields)


def interrupted(world: World, run_dir: Path, parallel: ParallelConfig, after: int) -> None:
    """A run that breaks off in the step after its checkpoint."""
    from headwater.train.train_module import TrainModule

    step = TrainModule.train_step

    def failing(self: TrainModule, number: int, *args: Any, **kwargs: Any) -> Any:
        if number > after:
            raise KeyboardInterrupt
        return step(self, number, *args, **kwargs)

    TrainModule.train_step = failing  # type: ignore[method-assign]
    try:
        rank_run(world, run_dir, parallel, NO_SAMPLES)
    except KeyboardInterrupt:
        pass
    finally:
        TrainModule.train_step = step  # type: ignore[method-assign]


@pytest.fixture(scope="module")
def alone(world: World, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    torch.set_num_threads(1)
    path = tmp_path_factory.mktemp("alone") / "run"
    rank_run(world, path, layout(micro_batch=4), NO_SAMPLES)
    return RunFolder.open(path)


def assert_same(run: RunFolder, alone: RunFolder) -> None:
    assert run.status().state == "finished"
    mine, theirs = list(run.metrics()), list(alone.metrics())
    assert [row["step"] for row in mine] == [row["step"] for row in theirs]
    for row, other in zip(mine, theirs, strict=True):
        assert row.keys() == other.keys()
        for key in ("loss", "loss_sma", "grad_norm", "bits_per_byte", "val_loss", "val_loss_averaged"):
            if key in other:
                assert row[key] == pytest.approx(other[key], rel=2e-5), key
        for key in ("tokens", "lr", "domain_tokens"):
            assert row[key] == other[key], key
    for averaged in (False, True):
        weights, expected = load_weights(run.path, averaged=averaged), load_weights(alone.path, averaged=averaged)
        assert weights.tensors.keys() == expected.tensors.keys()
        for name, tensor in expected.tensors.items():
            torch.testing.assert_close(weights.tensors[name], tensor, rtol=0, atol=2e-5, msg=name)


def test_a_run_in_a_pipeline_is_the_run_of_one_process(world: World, alone: RunFolder, tmp_path: Path) -> None:
    parallel = layout(pp=2, micro_batch=2)
    run_ranks(2, rank_run, world, tmp_path / "run", parallel, NO_SAMPLES)
    assert_same(RunFolder.open(tmp_path / "run"), alone)


def test_a_run_goes_on_in_another_cut(world: World, alone: RunFolder, tmp_path: Path) -> None:
    """From a pipeline with sharded state to one process, and from one process to a pipeline."""
    there, back = tmp_path / "there", tmp_path / "back"
    sharded = layout(pp=2, dp_shard=2, micro_batch=1)
    run_ranks(4, interrupted, world, there, sharded, 4)
    assert RunFolder.open(there).final is None
    rank_run(world, there, layout(micro_batch=4), NO_SAMPLES)
    assert_same(RunFolder.open(there), alone)
    interrupted(world, back, layout(micro_batch=4), 4)
    run_ranks(2, rank_run, world, back, layout(pp=2, micro_batch=4), NO_SAMPLES)
    assert_same(RunFolder.open(back), alone)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"pp": 2, "micro_batch": 8}, "needs at least 2 micro-batches a step and rank, not 1"),
        ({"pp": 2, "micro_batch": 3}, "do not divide into micro-batches of 3"),
    ],
)
def test_a_pipeline_that_cannot_run_is_refused_before_it_starts(
    world: World, tmp_path: Path, fields: dict[str, int], message: str
) -> None:
    with pytest.raises(RankError, match=message):
        run_ranks(2, rank_run, world, tmp_path / "run", layout(**fields), NO_SAMPLES, timeout=30)
