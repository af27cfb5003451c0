"""A training killed at random moments ends in the same weights and the same record as one left in peace."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from headwater.train.run_folder import RunFolder
from headwater.train.weights import load_weights
from tests.train.conftest import World

ROOT = Path(__file__).parents[2]
TIMES = ("time", "throughput", "mem_allocated", "cpu_util", "ram_used", "goodput", "straggler_score")

CONFIG = {
    "steps": 60,
    "global_batch": 4,
    "seq_len": 32,
    "mixture": {"web": 0.7, "code": 0.3},
    "optimizer": {"name": "muon", "lr": 0.02},
    "schedule": {"name": "wsd", "warmup_steps": 5},
    "averaging": {"name": "ema", "decay": 0.9, "every": 3},
    "z_loss": 1e-4,
    "phases": [
        {"name": "stable", "share": 0.7},
        {"name": "long", "share": 0.3, "seq_len": 64, "mixture": {"web": 1.0}, "rope_theta": 50000.0},
    ],
    "batch_ramp": {"start": 2, "increment": 1, "steps": 8},
    "checkpoint": {"every": 3},
    "validation": {"every": 10, "windows_per_domain": 4},
}


def start(world: World, run_dir: Path, config: dict[str, Any] = CONFIG, **options: Any) -> subprocess.Popen[str]:
    arguments = [str(world.tokenizer), str(world.dataset), str(run_dir), json.dumps({"config": config, **options})]
    return subprocess.Popen(
        [sys.executable, "-m", "tests.train.kill_target", *arguments],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(world: World, run_dir: Path, config: dict[str, Any] = CONFIG, **options: Any) -> RunFolder:
    process = start(world, run_dir, config, **options)
    _, errors = process.communicate(timeout=200)
    assert process.returncode == 0, errors
    return RunFolder.open(run_dir)


def figures(run: RunFolder) -> list[dict[str, Any]]:
    """The record without what a clock or an allocator says."""
    return [{k: v for k, v in row.items() if k not in TIMES and not k.endswith("_seconds")} for row in run.metrics()]


def assert_same_run(killed: RunFolder, undisturbed: RunFolder) -> None:
    assert figures(killed) == figures(undisturbed)
    for averaged in (False, True):
        ours, theirs = load_weights(killed.path, averaged=averaged), load_weights(undisturbed.path, averaged=averaged)
        assert ours.tensors.keys() == theirs.tensors.keys()
        for name in ours.tensors:
            assert torch.equal(ours.tensors[name], theirs.tensors[name]), name
    assert killed.final is not None
    assert undisturbed.final is not None
    same = [folder.final.manifest()["files"] for folder in (killed, undisturbed) if folder.final]
    assert same[0] == same[1]


@pytest.fixture(scope="module")
def undisturbed(world: World, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return finish(world, tmp_path_factory.mktemp("runs") / "run")


def wait_for(condition: Any, process: subprocess.Popen[str], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)


def last_step(run_dir: Path) -> int:
    return max((row["step"] for row in RunFolder(run_dir).metrics()), default=0)


@pytest.mark.parametrize(
    ("kills", "steps"), [(4, 60), pytest.param(50, 300, marks=[pytest.mark.soak, pytest.mark.timeout(7200)])]
)
def test_random_kills_change_nothing(
    world: World, undisturbed: RunFolder, tmp_path: Path, kills: int, steps: int
) -> None:
    """Each process dies anywhere: in a step, in a save, in a validation; most get some steps further before."""
    config = {**CONFIG, "steps": steps}
    if steps != CONFIG["steps"]:
        undisturbed = finish(world, tmp_path / "undisturbed", config)
    rng = random.Random(kills)
    run_dir = tmp_path / "run"
    survived = 0
    while survived < kills:
        checkpoint = RunFolder(run_dir).newest_checkpoint()
        target = (checkpoint.step if checkpoint else 0) + rng.randint(1, 3 * steps // (2 * kills))
        before = (run_dir / "events.jsonl").stat().st_size if run_dir.exists() else 0
        process = start(world, run_dir, config)
        wait_for(lambda: (run_dir / "events.jsonl").exists(), process)
        wait_for(lambda: (run_dir / "events.jsonl").stat().st_size > before, process)  # noqa: B023 - it has resumed
        wait_for(lambda: last_step(run_dir) >= target, process)  # noqa: B023
        time.sleep(rng.uniform(0, 0.05))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        if process.returncode != -signal.SIGKILL:
            break  # it reached the end before the kill
        survived += 1
    run = finish(world, run_dir, config)
    resumed = [event["step"] for event in run.events() if event["event"] == "resumed"]
    print(f"{survived} kills survived, resumed from steps {resumed}")
    assert survived >= kills // 2
    assert len(set(resumed)) >= 2
    assert_same_run(run, undisturbed)
    assert [row["step"] for row in run.metrics()] == list(range(1, steps + 1))


def test_a_kill_before_the_first_checkpoint_starts_again(world: World, undisturbed: RunFolder, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    process = start(world, run_dir)
    wait_for(lambda: (run_dir / "ledger.jsonl").exists(), process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert RunFolder.open(run_dir).status().state == "partial"
    assert_same_run(finish(world, run_dir), undisturbed)


@pytest.mark.parametrize("signal_name", ["SIGTERM", "SIGINT"])
def test_a_signal_saves_and_stops_and_the_run_goes_on_from_there(
    world: World, undisturbed: RunFolder, tmp_path: Path, signal_name: str
) -> None:
    run_dir = tmp_path / "run"
    config = {**CONFIG, "checkpoint": {"every": 1000}}
    process = start(world, run_dir, config)
    wait_for(
        lambda: (run_dir / "metrics.jsonl").exists() and len((run_dir / "metrics.jsonl").read_bytes()) > 3000, process
    )
    process.send_signal(getattr(signal, signal_name))
    _, errors = process.communicate(timeout=200)
    assert process.returncode != 0
    assert "Interrupted" in errors
    run = RunFolder.open(run_dir)
    status = run.status()
    assert status.state == "partial"
    assert status.step == [row["step"] for row in run.metrics()][-1] > 0
    if signal_name == "SIGTERM":  # going on is the same for both
        assert_same_run(finish(world, run_dir), undisturbed)
    assert [e["signal"] for e in run.events() if e["event"] == "interrupted"] == [signal_name]


def unfinished_copy(run: RunFolder, target: Path) -> Path:
    """The run as it was just before its end: two checkpoints, the last one of the last step."""
    shutil.copytree(run.path, target)
    (target / "final.json").unlink()
    return target


def test_a_damaged_checkpoint_costs_steps_but_not_the_result(
    world: World, undisturbed: RunFolder, tmp_path: Path
) -> None:
    run_dir = unfinished_copy(undisturbed, tmp_path / "run")
    newest = RunFolder(run_dir).newest_checkpoint()
    assert newest is not None
    data = next(newest.path.glob("*.distcp"))
    damaged = bytearray(data.read_bytes())
    damaged[len(damaged) // 3] ^= 16
    data.write_bytes(damaged)
    process = start(world, run_dir)
    _, errors = process.communicate(timeout=200)
    assert process.returncode == 0, errors
    assert "IS DAMAGED" in errors
    run = RunFolder(run_dir)
    assert any(event["event"] == "warning" for event in run.events())
    assert [event["step"] for event in run.events() if event["event"] == "resumed"] == [57]
    assert_same_run(run, undisturbed)


def test_a_disk_that_fills_up_in_the_middle_loses_nothing(world: World, undisturbed: RunFolder, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    process = start(world, run_dir, disk_full_at=31)
    _, errors = process.communicate(timeout=200)
    assert process.returncode != 0
    assert "does not fit" in errors
    newest = RunFolder(run_dir).newest_checkpoint()
    assert newest is not None
    assert newest.step in (27, 30)  # that of step 30 may still have been on its way
    run = finish(world, run_dir)
    assert [row["step"] for row in run.metrics()] == list(range(1, 61))
    ours, theirs = load_weights(run.path), load_weights(undisturbed.path)
    assert all(torch.equal(ours.tensors[name], theirs.tensors[name]) for name in ours.tensors)


def test_a_synchronous_save_and_another_cadence_give_the_same_run(
    world: World, undisturbed: RunFolder, tmp_path: Path
) -> None:
    config = {**CONFIG, "checkpoint": {"every": 25, "async_save": False, "keep": 1}}
    assert_same_run(finish(world, tmp_path / "run", config), undisturbed)


def test_another_micro_batch_may_take_over(world: World, undisturbed: RunFolder, tmp_path: Path) -> None:
    run_dir = unfinished_copy(undisturbed, tmp_path / "run")
    shutil.rmtree(run_dir / "checkpoints" / "step-00000060")
    run = finish(world, run_dir, micro_batch=1)
    ours, theirs = figures(run), figures(undisturbed)
    assert [row["step"] for row in ours] == [row["step"] for row in theirs]
    for a, b in zip(ours, theirs, strict=True):
        assert a["loss"] == pytest.approx(b["loss"], rel=2e-3)
        assert a["domain_tokens"] == b["domain_tokens"]
