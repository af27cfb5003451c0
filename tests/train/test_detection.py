"""Detectors in real runs: they find what is put wrong, keep quiet otherwise, and know after a resume what they knew."""

from __future__ import annotations

import io
import math
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from headwater.core.progress import SILENT, Reporter
from headwater.diagnose.faults import LearningRate
from headwater.diagnose.faults_bits import FlippedGradient
from headwater.diagnose.faults_machine import FullDisk, Hang
from headwater.monitor import MonitorConfig
from headwater.monitor.config import DetectorsConfig
from headwater.monitor.detectors import machine_detectors
from headwater.parallel.config import ParallelConfig
from headwater.train import RunFolder, train
from headwater.train.batch import Batch
from headwater.train.callbacks import Callback
from headwater.train.checkpoint import CheckpointStore
from headwater.train.checkpointing import CheckpointCallback
from headwater.train.non_finite import NonFiniteError
from headwater.train.trainer import Interrupted, Trainer
from tests.parallel.ranks import RankError, run_ranks
from tests.train.conftest import TINY, World

CONFIG: dict[str, Any] = {
    "steps": 60,
    "global_batch": 8,
    "seq_len": 32,
    "optimizer": {"lr": 3e-3},
    "schedule": {"warmup_steps": 5},
    "checkpoint": {"every": 20},
    "validation": {"every": 0, "windows_per_domain": 2},
    "dry_run": False,
    "recovery": {"enabled": False},
}
OF_THE_MACHINE = {detector.name for detector in machine_detectors()}
"""Tests share their machine: steps that are slow here are nobody's fault."""


class PoisonedBatch(Callback):
    """The targets of one step are noise."""

    name = "poison"

    def __init__(self, step: int) -> None:
        self.step = step

    def on_start(self, trainer: Trainer) -> None:
        clean, poisoned = trainer._batches, self.step

        class Source:
            def batches(self, first_step: int, last_step: int) -> Iterator[Batch]:
                for step, batch in enumerate(clean.batches(first_step, last_step), start=first_step):
                    noise = torch.randint(5, 500, batch.targets.shape, generator=torch.Generator().manual_seed(1))
                    yield replace(batch, targets=noise) if step == poisoned else batch

        trainer._batches = Source()


class StopsAfter(Callback):
    """A batch system asks the run to stop."""

    name = "stops"

    def __init__(self, step: int) -> None:
        self.step = step

    def after_step(self, trainer: Trainer, outcome: object) -> None:
        if trainer.step == self.step:
            os.kill(os.getpid(), signal.SIGTERM)


class BrokenWeight(Callback):
    """A weight becomes infinite before a step, as a flipped exponent bit would make it; on the ranks that hold it."""

    name = "broken"

    def __init__(self, step: int, parameter: str) -> None:
        self.step, self.parameter = step, parameter

    def before_step(self, trainer: Trainer, step: int) -> None:
        weight = trainer.module.parameters.get(self.parameter)
        if step == self.step and weight is not None:
            with torch.no_grad():
                (weight.to_local() if hasattr(weight, "to_local") else weight).fill_(math.inf)


def run_of(world: World, path: Path, *callbacks: Callback, reporter: Reporter = SILENT, **changes: Any) -> RunFolder:
    monitor, parallel = changes.pop("monitor", None), changes.pop("parallel", None)
    return train(
        dataset=world.dataset, tokenizer=world.tokenizer, run_dir=path, model=TINY, config={**CONFIG, **changes},
        reporter=reporter, callbacks=callbacks, monitor=monitor, parallel=parallel or ParallelConfig(micro_batch=8),
    )  # fmt: skip


def alerts(run: RunFolder) -> list[dict[str, Any]]:
    """Of training, not of the machine."""
    return [e for e in run.events() if e["event"] == "alert" and e["detector"] not in OF_THE_MACHINE]


def by_detector(folder: Path, *names: str) -> list[dict[str, Any]]:
    """The alerts of these detectors, one each, and no others."""
    found = alerts(RunFolder.open(folder))
    assert sorted(alert["detector"] for alert in found) == sorted(names)
    return [next(alert for alert in found if alert["detector"] == name) for name in names]


def test_a_poisoned_batch_is_an_alert_and_a_warning(world: World, tmp_path: Path) -> None:
    heard = io.StringIO()
    run = run_of(world, tmp_path / "run", PoisonedBatch(50), reporter=Reporter(console=Console(file=heard, width=200)))
    (spike,) = (alert for alert in alerts(run) if alert["detector"] == "loss_spike")
    assert (spike["step"], spike["severity"]) == (50, "critical")
    assert spike["evidence"]["loss"] > spike["evidence"]["level"] + 0.1
    assert "step 50: loss" in heard.getvalue()
    assert {alert["step"] for alert in alerts(run)} == {50}


def test_a_healthy_run_has_no_alert_and_detectors_change_nothing(world: World, tmp_path: Path) -> None:
    on = run_of(world, tmp_path / "on", steps=300)
    assert alerts(on) == []
    off = run_of(world, tmp_path / "off", steps=40, monitor=MonitorConfig(detectors=DetectorsConfig(enabled=False)))
    assert not [event for event in off.events() if event["event"] == "alert"]
    again = run_of(world, tmp_path / "again", steps=40)
    assert [row["loss"] for row in again.metrics()] == [row["loss"] for row in off.metrics()]


def test_a_run_that_goes_on_knows_what_it_knew(world: World, tmp_path: Path) -> None:
    straight = run_of(world, tmp_path / "straight", PoisonedBatch(45))

    class Stops(Callback):
        name = "stops"

        def after_step(self, trainer: Trainer, outcome: object) -> None:
            if trainer.step == 41:
                raise RuntimeError("stopped")

    with pytest.raises(RuntimeError, match="stopped"):
        run_of(world, tmp_path / "resumed", PoisonedBatch(45), Stops())
    resumed = run_of(world, tmp_path / "resumed", PoisonedBatch(45))
    assert [(a["detector"], a["step"], a["evidence"]) for a in alerts(resumed)] == [
        (a["detector"], a["step"], a["evidence"]) for a in alerts(straight)
    ]
    states = []
    for run in (straight, resumed):
        loaded = CheckpointStore(run.checkpoints_dir, run_id=run.run_id).newest_good()
        assert loaded is not None
        states.append(loaded.state["callbacks"]["detection"])
    assert states[0] == states[1]
    assert len(states[0]["detectors"]["loss_spike"]["rises"]) > 16


def test_the_first_tensor_that_is_not_finite_is_named(world: World, tmp_path: Path) -> None:
    with pytest.raises(NonFiniteError, match="first in the gradient of model") as caught:
        run_of(world, tmp_path / "run", BrokenWeight(25, "model.layers.1.mlp.down_proj.weight"))
    changed, alert = by_detector(tmp_path / "run", "changed_weights", "non_finite")
    assert (alert["severity"], alert["step"], alert["onset"]) == ("critical", 25, 25)
    assert (changed["step"], changed["evidence"]["tensors"]) == (25, ["model.layers.1.mlp.down_proj.weight"])
    assert alert["evidence"]["tensor"] == caught.value.tensor
    assert caught.value.tensor in alert["message"]


def test_a_gradient_too_large_for_its_norm_is_named(world: World, tmp_path: Path) -> None:
    fault = FlippedGradient(25, "exponent", bit=-1, seed=4)
    with pytest.raises(NonFiniteError):
        run_of(world, tmp_path / "run", fault)
    (alert,) = by_detector(tmp_path / "run", "non_finite")
    assert alert["evidence"]["tensor"] == fault.flipped.partition("[")[0]


def rank_run(world: World, path: Path, layout: dict[str, Any], broken: bool) -> None:
    faults: list[Callback] = [BrokenWeight(4, "model.layers.1.mlp.down_proj.weight")] if broken else []
    run_of(world, path, PoisonedBatch(48), *faults, steps=48, parallel=ParallelConfig(**layout, micro_batch=2))


@pytest.mark.parametrize("layout", [{"dp_shard": 2}, {"pp": 2}], ids=str)
def test_ranks_agree_on_alerts_and_on_the_tensor(world: World, tmp_path: Path, layout: dict[str, int]) -> None:
    with pytest.raises(RankError, match="first in the gradient of model"):
        run_ranks(2, rank_run, world, tmp_path / "broken", layout, True)
    changed, alert = by_detector(tmp_path / "broken", "changed_weights", "non_finite")
    assert (changed["step"], alert["step"]) == (4, 4)
    ranks = {name.rpartition(" on rank ")[2] for name in changed["evidence"]["tensors"]}
    assert ranks <= {"0", "1"}
    assert len(ranks) == (1 if "pp" in layout else 2)
    assert alert["evidence"]["tensor"].startswith("model.")
    run_ranks(2, rank_run, world, tmp_path / "poisoned", layout, False)
    assert ("loss_spike", 48) in {(a["detector"], a["step"]) for a in alerts(RunFolder.open(tmp_path / "poisoned"))}


def test_a_spike_three_steps_after_a_resume_is_found(world: World, tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        run_of(world, tmp_path / "run", StopsAfter(43))
    run = run_of(world, tmp_path / "run", PoisonedBatch(46))
    assert ("loss_spike", 46) in {(alert["detector"], alert["step"]) for alert in alerts(run)}


class LostDurable(Callback):
    """From a step on no durable checkpoint is made, but for the last."""

    name = "lost_durable"

    def __init__(self, step: int) -> None:
        self.step = step

    def on_start(self, trainer: Trainer) -> None:
        (checkpoints,) = (callback for callback in trainer.callbacks if isinstance(callback, CheckpointCallback))
        save = checkpoints._save

        def lossy(trainer: Trainer, *, asynchronous: bool, ephemeral: bool = False) -> None:
            if ephemeral or not self.step <= trainer.step < trainer.steps:
                save(trainer, asynchronous=asynchronous, ephemeral=ephemeral)

        checkpoints._save = lossy  # type: ignore[method-assign]


def test_updates_that_move_nothing_and_checkpoints_that_do_not_come_are_alerts(world: World, tmp_path: Path) -> None:
    ephemeral = {"ephemeral_every": 4, "ephemeral_dir": str(tmp_path / "ephemeral")}  # those go on
    saves = {"every": 10, "async_save": False, **ephemeral}
    run = run_of(world, tmp_path / "run", LearningRate(20, 0.0), LostDurable(25), checkpoint=saves)
    still = next(alert for alert in alerts(run) if alert["detector"] == "no_updates")
    assert (still["step"], still["onset"]) == (25, 20)
    late = [event for event in run.events() if event.get("detector") == "old_checkpoint"]
    assert [alert["step"] for alert in late] == [46]


def test_a_full_disk_is_said_even_where_it_cannot_be_written(world: World, tmp_path: Path) -> None:
    heard = io.StringIO()
    with pytest.raises(OSError, match="No space left"):
        run_of(world, tmp_path / "run", FullDisk(5), reporter=Reporter(console=Console(file=heard, width=200)))
    (alert,) = by_detector(tmp_path / "run", "disk_full")
    assert (alert["step"], alert["severity"]) == (5, "critical")
    assert "the disk is full" in heard.getvalue()


def test_a_step_that_hangs_is_an_alert_while_it_does(world: World, tmp_path: Path) -> None:
    monitor = MonitorConfig(detectors=DetectorsConfig(hang_seconds=0.5))
    run = run_of(world, tmp_path / "run", Hang(20, seconds=3.0), steps=25, monitor=monitor)
    alert = next(alert for alert in alerts(run) if alert["detector"] == "hang" and alert["step"] == 20)
    assert alert["severity"] == "critical"
    assert "faults_machine.py" in Path(alert["evidence"]["stacks"]).read_text()
    assert list(run.metrics())[-1]["step"] == 25
