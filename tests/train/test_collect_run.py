"""A run's record of itself: what stands in it, after kills and on several ranks, and that it changes nothing."""

from __future__ import annotations

import os
import shutil
import signal
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from headwater.core.progress import Reporter
from headwater.monitor import METRICS
from headwater.monitor.config import MonitorConfig
from headwater.monitor.tensor_series import TENSOR_METRICS, TensorSeries
from headwater.parallel.config import ParallelConfig
from headwater.train import RunFolder, train
from headwater.train.callbacks import Callback
from headwater.train.collectors.callback import own_seconds
from headwater.train.collectors.tensors import TensorFigures
from headwater.train.outcome import Reading
from headwater.train.recovery_plan import Trouble, rewind_entries
from headwater.train.trainer import Interrupted, Rewind, Trainer
from headwater.train.weights import load_weights
from tests.parallel.ranks import run_ranks
from tests.train.conftest import TINY, World

CONFIG: dict[str, Any] = {
    "steps": 12,
    "global_batch": 4,
    "seq_len": 32,
    "checkpoint": {"every": 4},
    "validation": {"every": 6, "windows_per_domain": 2},
    "dry_run": False,
}
COLLECT = {"collect": {"every": 3}}


def small_run(
    world: World,
    run_dir: Path,
    monitor: dict[str, Any] | None = None,
    callbacks: list[Callback] | None = None,
    parallel: ParallelConfig | None = None,
    **changes: Any,
) -> RunFolder:
    return train(
        dataset=world.dataset,
        tokenizer=world.tokenizer,
        run_dir=run_dir,
        model=TINY,
        config=CONFIG | changes,
        monitor=MonitorConfig.model_validate(COLLECT if monitor is None else monitor),
        parallel=parallel,
        reporter=Reporter(quiet=True),
        callbacks=callbacks or [],
    )


class StopAt(Callback):
    """Asks to stop once a step is done."""

    name = "stop_at"

    def __init__(self, step: int) -> None:
        self.step = step

    def after_step(self, trainer: Trainer, outcome: Any) -> None:
        if trainer.step == self.step:
            os.kill(os.getpid(), signal.SIGTERM)


@pytest.fixture(scope="module")
def finished(world: World, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return small_run(world, tmp_path_factory.mktemp("collected") / "run")


def test_every_parameter_and_head_is_recorded_at_the_first_and_every_third_step(finished: RunFolder) -> None:
    series = TensorSeries(finished.path)
    assert series.metrics() == list(TENSOR_METRICS)
    for metric in series.metrics():
        steps, names, values = series.matrix(metric)
        assert steps.tolist() == [1, 3, 6, 9, 12]
        assert np.isfinite(values).all(), metric
        if metric.startswith("head"):
            assert names == [f"layers.{layer}.head.{head}" for layer in (0, 1) for head in (0, 1)]
        else:
            assert names[0] == "model.embed_tokens.weight"
            assert "model.layers.1.mlp.down_proj.weight" in names


def test_lines_have_the_keys_that_others_count_on_and_each_is_declared(finished: RunFolder) -> None:
    rows = list(finished.metrics())
    asked_for = ["loss", "perplexity", "grad_norm", "lr", "throughput", "gpu_util", "mem_allocated", "loss_sma"]
    for row in rows:
        assert set(asked_for) <= row.keys()
        assert row["gpu_util"] is None
        assert set(row) <= set(METRICS)
        assert 0 < row["goodput"] <= 1
        assert row["domain_loss"]
        assert set(row["domain_loss"]) <= {"web", "code"}
        assert 0 <= row["clip_rate"] <= 1
        assert row["communication_seconds"] == 0
        assert row["ram_used"] > row["mem_allocated"] > 0
        parts = ["forward_backward", "optimizer", "data_wait", "monitor", "communication"]
        assert sum(row.get(f"{part}_seconds", 0) for part in parts) <= row["step_seconds"] * 1.05
    assert [row["productive_seconds"] for row in rows] == sorted(row["productive_seconds"] for row in rows)
    sampled = [row for row in rows if "update_ratio" in row]
    assert [row["step"] for row in sampled] == [1, 3, 6, 9, 12]
    for row in sampled:
        assert set(TENSOR_METRICS.values()) <= row.keys()
        assert sum(row["grad_histogram"].values()) == len(TensorSeries(finished.path).matrix("grad_norm").names)
        assert row["grad_flags"] == {"high": 0, "low": 0}
        assert row["dead_heads"] == 0
        assert len(row["param_grad_norm"]) == 10


def test_what_is_sampled_between_two_lines_has_a_line(world: World, tmp_path: Path) -> None:
    run = small_run(world, tmp_path / "run", {"every": 5, **COLLECT}, validation={"every": 0})
    rows = list(run.metrics())
    assert [row["step"] for row in rows] == [1, 3, 5, 6, 9, 10, 12]
    assert [row["step"] for row in rows if "grad_flags" in row] == [1, 3, 6, 9, 12]


def test_where_not_all_weights_can_be_copied_at_once_each_has_its_turn(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = partial(TensorFigures, copy_bytes=40_000)
    monkeypatch.setattr("headwater.train.collectors.sample.TensorFigures", few)
    series = TensorSeries(small_run(world, tmp_path / "run").path)
    _, names, values = series.matrix("update_ratio")
    measured = (~np.isnan(values)).sum(axis=1)
    assert max(measured) < len(series.matrix("weight_norm").names)  # no sample has all
    assert names == series.matrix("weight_norm").names


def test_what_is_collected_changes_no_weight(world: World, finished: RunFolder, tmp_path: Path) -> None:
    plain = load_weights(small_run(world, tmp_path / "run", {"collect": {"every": 0}}).path)
    assert not (tmp_path / "run" / "tensors").exists()
    for name, tensor in load_weights(finished.path).tensors.items():
        assert torch.equal(tensor, plain.tensors[name]), name


def test_a_run_that_goes_on_has_every_step_once_and_counts_what_it_lost(
    world: World, finished: RunFolder, tmp_path: Path
) -> None:
    with pytest.raises(Interrupted):
        small_run(world, tmp_path / "run", callbacks=[StopAt(7)])
    last = tmp_path / "run" / "checkpoints" / "step-00000007"
    for path in last.iterdir():  # as if the machine had died before it was saved: back to step 4
        path.unlink() if path.is_file() else None
    before = list(RunFolder.open(tmp_path / "run").metrics())[-1]
    time.sleep(1.0)
    run = small_run(world, tmp_path / "run")
    for metric in TENSOR_METRICS:
        mine, theirs = TensorSeries(run.path).matrix(metric), TensorSeries(finished.path).matrix(metric)
        assert mine.steps.tolist() == theirs.steps.tolist()
        assert np.array_equal(mine.values, theirs.values)
    rows = list(run.metrics())
    assert [row["step"] for row in rows] == list(range(1, 13))
    assert [row["clip_rate"] for row in rows] == [row["clip_rate"] for row in finished.metrics()]
    after = rows[7]
    assert after["productive_seconds"] > rows[6]["productive_seconds"]
    wall = after["time"] - next(event["time"] for event in run.events() if event["event"] == "started")
    assert after["goodput"] == pytest.approx(after["productive_seconds"] / wall, rel=0.05)
    assert after["goodput"] < before["goodput"]


def test_a_run_that_goes_on_without_samples_keeps_none_of_steps_it_trains_again(world: World, tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        small_run(world, tmp_path / "run", callbacks=[StopAt(7)])
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "step-00000007")
    run = small_run(world, tmp_path / "run", {"collect": {"every": 0}})
    assert TensorSeries(run.path).matrix("grad_norm").steps.tolist() == [1, 3]


def test_without_heads_or_updates_there_is_only_the_rest(world: World, tmp_path: Path) -> None:
    run = small_run(world, tmp_path / "run", {"collect": {"every": 6, "which": ["gradients"], "extremes": 1}}, steps=6)
    assert TensorSeries(run.path).metrics() == ["grad_norm", "weight_norm"]
    assert len(list(run.metrics())[-1]["param_grad_norm"]) == 2


class GoesBackOnce(Callback):
    """Asks for a rewind in the update of one step, as recovery does, and writes it into the ledger."""

    name = "goes_back"

    def __init__(self, step: int, to: int) -> None:
        self.step, self.to = step, to
        self.steps: list[int] = []

    def before_update(self, trainer: Trainer, reading: Reading) -> bool:
        self.steps.append(reading.step)
        if reading.step == self.step and self.steps.count(self.step) == 1:
            trouble = Trouble(self.step, self.step, ("test",))
            trainer.ledger.append_group(rewind_entries(trainer.ledger, trouble, to=self.to, samples=[], rung="rewind"))
            raise Rewind
        return True


def test_a_rewind_leaves_every_sample_once_and_takes_lost_time_out_of_goodput(world: World, tmp_path: Path) -> None:
    back = GoesBackOnce(11, 4)
    run = small_run(world, tmp_path / "run", callbacks=[back], checkpoint={"every": 4, "async_save": False, "keep": 3})
    assert back.steps == [*range(1, 12), *range(5, 13)]
    assert TensorSeries(run.path).matrix("update_ratio").steps.tolist() == [1, 3, 6, 9, 12]
    rows = list(run.metrics())
    assert [row["step"] for row in rows] == list(range(1, 13))
    spent = sum(row["step_seconds"] - row["data_wait_seconds"] - row.get("monitor_seconds", 0) for row in rows)
    assert rows[-1]["productive_seconds"] == pytest.approx(spent)


class Sleepy(Callback):
    """One rank is late for every step."""

    name = "sleepy"

    def before_step(self, trainer: Trainer, step: int) -> None:
        if trainer.ranks.rank == 1:
            time.sleep(0.6)  # more than a busy machine makes of a step's work


def test_a_late_rank_shows_also_where_waiting_cannot_be_told_from_work() -> None:
    ranks = [(0.01, 0.60), (0.21, 0.40), (0.01, 0.61)]  # the second is late by 0.2 s, and the others wait for it
    assert own_seconds(ranks, told=False) == pytest.approx([0.41, 0.61, 0.41])
    assert own_seconds(ranks, told=True) == pytest.approx([0.61, 0.61, 0.62])


class Details(Callback):
    """Keeps what detectors would see of ranks."""

    name = "details"

    def __init__(self) -> None:
        self.seen: list[dict[str, Any]] = []

    def before_step(self, trainer: Trainer, step: int) -> None:
        if "rank_seconds" in trainer.details:
            self.seen.append(trainer.details)


def sleepy_run(world: World, run_dir: Path) -> dict[str, Any]:
    details = Details()
    layout = ParallelConfig(dp_shard=2, micro_batch=2)
    small_run(world, run_dir, {"every": 4}, [Sleepy(), details], layout, steps=11, validation={"every": 0})
    return details.seen[0]


def test_a_rank_that_is_late_is_told_from_those_who_wait_for_it(world: World, tmp_path: Path) -> None:
    first, second = run_ranks(2, sleepy_run, world, tmp_path / "run")
    assert first["rank_seconds"] == second["rank_seconds"]
    own, late = first["rank_seconds"]
    assert late > own + 0.1
    rows = list(RunFolder.open(tmp_path / "run").metrics())
    assert [row["step"] for row in rows if "straggler_score" in row] == [11], "exchanged at 10, which has no line"
    assert rows[-1]["straggler_score"]["1"] < 1 < rows[-1]["straggler_score"]["0"]
    assert set(rows[-1]["straggler_score"]) == {"0", "1"}
    waits = sorted(row["communication_seconds"] for row in rows)
    assert waits[len(waits) // 2] > 0.1
    for row in rows:
        assert row["forward_backward_seconds"] >= 0
        parts = row["forward_backward_seconds"] + row["communication_seconds"] + row["optimizer_seconds"]
        assert parts <= row["step_seconds"] * 1.02
