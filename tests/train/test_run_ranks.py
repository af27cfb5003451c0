"""A run on several ranks writes what one process writes, once, and learns the same."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from headwater.core.errors import RecipeError
from headwater.core.progress import Reporter
from headwater.model import Decoder
from headwater.parallel.config import ParallelConfig
from headwater.train import RunFolder, train
from headwater.train.config import SamplingConfig
from headwater.train.sampling import SamplingCallback
from headwater.train.weights import load_weights
from tests.parallel.ranks import RankError, run_ranks
from tests.train.conftest import TINY, World

CONFIG: dict[str, Any] = {
    "steps": 6,
    "global_batch": 8,
    "seq_len": 32,
    "precision": "fp32",
    "optimizer": {"lr": 1e-3, "eps": 1e-6},
    "averaging": {"name": "ema", "every": 1, "decay": 0.5},
    "checkpoint": {"every": 3},
    "validation": {"every": 3, "windows_per_domain": 3},
    "sampling": {"every": 3, "prompts": ["river", "水"], "max_tokens": 4},
}
MODEL = TINY | {"num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 64, "qk_norm": True}


def greedy(model: nn.Module, prompts: Sequence[str], max_tokens: int, seed: int) -> list[str]:
    """Token numbers after a fixed beginning: enough to see the weights behind them."""
    assert isinstance(model, Decoder)
    tokens = torch.tensor([[1, 2, 3]])
    for _ in range(max_tokens):
        tokens = torch.cat((tokens, model.logits(model(tokens))[:, -1:].argmax(-1)), 1)
    return [f"{prompt} {tokens[0].tolist()}" for prompt in prompts]


def rank_run(world: World, run_dir: Path, parallel: ParallelConfig, changes: dict[str, Any]) -> None:
    train(
        dataset=world.dataset,
        tokenizer=world.tokenizer,
        run_dir=run_dir,
        model=MODEL,
        config=CONFIG | changes,
        parallel=parallel,
        reporter=Reporter(quiet=True),
        callbacks=[SamplingCallback(SamplingConfig.model_validate((CONFIG | changes)["sampling"]), greedy)],
    )


@pytest.fixture(scope="module")
def alone(world: World, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    path = tmp_path_factory.mktemp("alone") / "run"
    rank_run(world, path, ParallelConfig(micro_batch=4), {})
    return RunFolder.open(path)


@pytest.mark.parametrize(
    "layout", [{"dp_shard": 2}, {"tp": 2}, {"dp_replicate": 2, "tp": 2}, {"cp": 2}, {"cp": 2, "tp": 2}], ids=str
)
def test_a_run_on_several_ranks_is_the_run_of_one_process(
    world: World, alone: RunFolder, tmp_path: Path, layout: dict[str, Any]
) -> None:
    path = tmp_path / "run"
    parallel = ParallelConfig.model_validate(layout | {"micro_batch": 2})
    run_ranks(parallel.ranks, rank_run, world, path, parallel, {})
    run = RunFolder.open(path)
    assert run.status().state == "finished"
    mine, theirs = list(run.metrics()), list(alone.metrics())
    assert [row["step"] for row in mine] == list(range(1, 7))
    for row, other in zip(mine, theirs, strict=True):
        assert row.keys() == other.keys()
        for key in ("loss", "loss_sma", "grad_norm", "bits_per_byte"):
            assert row[key] == pytest.approx(other[key], rel=2e-5), key
        assert row["domain_loss"] == pytest.approx(other["domain_loss"], rel=2e-5)
        for key in ("tokens", "lr", "domain_tokens"):
            assert row[key] == other[key], key
        if "val_loss" in other:
            assert row["val_loss"] == pytest.approx(other["val_loss"], rel=2e-5)
            assert row["val_loss_averaged"] == pytest.approx(other["val_loss_averaged"], rel=2e-5)
    assert list(run.samples()) == list(alone.samples())
    assert [event["event"] for event in run.events()] == [event["event"] for event in alone.events()]
    assert run.ledger().head == alone.ledger().head
    for averaged in (False, True):
        weights, expected = load_weights(path, averaged=averaged), load_weights(alone.path, averaged=averaged)
        for name, tensor in expected.tensors.items():
            torch.testing.assert_close(weights.tensors[name], tensor, rtol=0, atol=2e-5, msg=name)


def test_ranks_that_are_not_as_many_as_the_layout_needs_are_told(world: World, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"4 ranks .* 1 process runs"):
        rank_run(world, tmp_path / "run", ParallelConfig(dp_shard=4), {})
    with pytest.raises(RankError, match="does not divide over 2 data-parallel ranks"):
        run_ranks(2, rank_run, world, tmp_path / "run", ParallelConfig(dp_shard=2), {"global_batch": 7})


@pytest.mark.parametrize("layout", [{"dp_shard": 2}, {"cp": 2, "cp_method": "all_gather"}], ids=str)
def test_a_batch_that_grows_and_phases_go_over_ranks(world: World, tmp_path: Path, layout: dict[str, Any]) -> None:
    changes = {
        "steps": 6,
        "phases": [{"name": "short", "steps": 3}, {"name": "long", "steps": 3, "seq_len": 64, "global_batch": 4}],
        "batch_ramp": {"start": 4, "increment": 2, "steps": 2},
        "averaging": {"name": "lawa", "last": 2, "every": 2},
        "optimizer": {"name": "muon", "lr": 0.02},
        "sampling": {"every": 0},
    }
    rank_run(world, tmp_path / "one", ParallelConfig(), changes)
    run_ranks(2, rank_run, world, tmp_path / "two", ParallelConfig.model_validate(layout), changes)
    one, two = (list(RunFolder.open(tmp_path / name).metrics()) for name in ("one", "two"))
    assert [row["tokens"] for row in two] == [row["tokens"] for row in one]
    for row, other in zip(two, one, strict=True):
        assert row["loss"] == pytest.approx(other["loss"], rel=5e-4), row["step"]
