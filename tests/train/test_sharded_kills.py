"""Training on several ranks that is killed, stopped and moved between layouts ends as one left in peace."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from headwater.parallel.config import ParallelConfig
from headwater.parallel.rank_files import LOST_PEER, RankFolder
from headwater.parallel.watchdog import lost_error
from headwater.train.run_folder import RunFolder
from headwater.train.weights import load_weights
from tests.conftest import clean_environment, cli_command
from tests.train.conftest import World
from tests.train.forked import MODEL, ForkedTraining
from tests.train.test_kills import figures

CONFIG: dict[str, Any] = {
    "steps": 40,
    "global_batch": 8,
    "seq_len": 32,
    "precision": "fp32",
    "optimizer": {"lr": 3e-3},
    "schedule": {"name": "wsd", "warmup_steps": 5},
    "averaging": {"name": "ema", "decay": 0.9, "every": 3},
    "checkpoint": {"every": 2},
    "validation": {"every": 20, "windows_per_domain": 4},
    "dry_run": False,
}

SHARDED = ParallelConfig(dp_shard=4)
LAYOUTS = [
    SHARDED,
    ParallelConfig(dp_replicate=2, tp=2),
    ParallelConfig(pp=2, dp_shard=2, zero_stage=1, micro_batch=2),
    ParallelConfig(),
    ParallelConfig(dp_shard=2, cp=2),
]
"""Four ranks in different ways, and one."""


def finish(world: World, run_dir: Path, layout: ParallelConfig, config: dict[str, Any] = CONFIG) -> RunFolder:
    with ForkedTraining(world, run_dir, layout, config) as training:
        codes = training.wait(600.0)
    assert set(codes.values()) == {0}, run_dir.with_name(f"{run_dir.name}-0.log").read_text()[-3000:]
    return RunFolder.open(run_dir)


def weights_of(run: RunFolder) -> dict[str, torch.Tensor]:
    return load_weights(run.path, averaged=False).tensors | {
        f"average.{name}": tensor for name, tensor in load_weights(run.path, averaged=True).tensors.items()
    }


def assert_identical(run: RunFolder, undisturbed: RunFolder) -> None:
    ours, theirs = weights_of(run), weights_of(undisturbed)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert figures(run) == figures(undisturbed)


@pytest.fixture(scope="module")
def undisturbed(world: World, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return finish(world, tmp_path_factory.mktemp("sharded") / "run", SHARDED)


@pytest.fixture
def kills(request: pytest.FixtureRequest) -> int:
    return request.param


FEW_AND_MANY = pytest.mark.parametrize(
    "kills", [3, pytest.param(50, marks=[pytest.mark.soak, pytest.mark.timeout(3600)])], indirect=True
)


def config_for(kills: int) -> dict[str, Any]:
    """Long enough for as many kills."""
    return CONFIG if kills < 10 else {**CONFIG, "steps": 6 * kills}


def killed_again_and_again(
    world: World, run_dir: Path, layouts: list[ParallelConfig], kills: int, seed: int
) -> list[int]:
    """Train with one random rank, or all, killed at random moments; the steps resumed from."""
    rng = random.Random(seed)
    hits = 0
    for number in range(kills):
        layout = layouts[number % len(layouts)]
        with ForkedTraining(world, run_dir, layout, config_for(kills)) as training:
            time.sleep(rng.uniform(0.3, 2.5))
            if RunFolder(run_dir).final is not None:
                break
            everyone = list(training.pids)
            training.kill(*(everyone if rng.random() < 0.3 else [rng.choice(everyone)]))
            codes = training.wait(60.0)
            hits += -signal.SIGKILL in codes.values()
            # Of those that were not killed none is left waiting: they end by themselves.
            assert set(codes.values()) <= {-signal.SIGKILL, LOST_PEER, -signal.SIGABRT, 0}, codes
    run = finish(world, run_dir, layouts[kills % len(layouts)], config_for(kills))
    steps = [event["step"] for event in run.events() if event["event"] == "resumed"]
    print(f"{hits} kills hit; resumed from {steps}")
    assert hits == kills or kills < 10
    return steps


@FEW_AND_MANY
def test_killed_on_four_ranks_the_weights_are_those_of_a_run_left_in_peace(
    tmp_path: Path, world: World, undisturbed: RunFolder, kills: int
) -> None:
    resumed = killed_again_and_again(world, tmp_path / "run", [SHARDED], kills, seed=kills)
    reference = undisturbed
    if kills > 10:
        reference = finish(world, tmp_path / "peace", SHARDED, config_for(kills))
    assert_identical(RunFolder.open(tmp_path / "run"), reference)
    assert resumed == sorted(resumed)


@FEW_AND_MANY
def test_killed_and_moved_between_layouts_the_curve_goes_on_as_if_nothing_had_happened(
    tmp_path: Path, world: World, undisturbed: RunFolder, kills: int
) -> None:
    killed_again_and_again(world, tmp_path / "run", LAYOUTS, kills, seed=kills + 1)
    run, reference = RunFolder.open(tmp_path / "run"), undisturbed
    if kills > 10:
        reference = finish(world, tmp_path / "peace", SHARDED, config_for(kills))
    ours = {row["step"]: row for row in run.metrics()}
    theirs = {row["step"]: row for row in reference.metrics()}
    assert ours.keys() == theirs.keys()
    for step, row in ours.items():
        assert row["tokens"] == theirs[step]["tokens"]
        assert row["domain_tokens"] == theirs[step]["domain_tokens"]
        assert row["loss"] == pytest.approx(theirs[step]["loss"], rel=1e-4)
    for name, tensor in weights_of(run).items():
        other = weights_of(reference)[name]
        assert (tensor - other).norm() <= 1e-2 * other.norm(), name


def test_after_a_kill_the_newer_ephemeral_checkpoint_is_gone_on_from(
    tmp_path: Path, world: World, undisturbed: RunFolder
) -> None:
    run_dir, fast = tmp_path / "run", tmp_path / "fast"
    tiers = {"every": 1000, "ephemeral_dir": str(fast), "ephemeral_every": 2}
    with ForkedTraining(world, run_dir, SHARDED, {**CONFIG, "checkpoint": tiers}) as training:
        while not list(fast.glob("run-*/step-*/manifest.json")):
            time.sleep(0.01)
        training.kill(3)
        training.wait(60.0)
    assert not RunFolder(run_dir).checkpoints()
    run = finish(world, run_dir, SHARDED, {**CONFIG, "checkpoint": tiers})
    assert next(event["step"] for event in run.events() if event["event"] == "resumed") >= 2
    assert_identical(run, undisturbed)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_signal_on_any_rank_saves_and_ends_all_at_the_same_step(
    tmp_path: Path, world: World, undisturbed: RunFolder, rank: int
) -> None:
    run_dir = tmp_path / "run"
    with ForkedTraining(world, run_dir, SHARDED, {**CONFIG, "checkpoint": {"every": 100}}) as training:
        while not (run_dir / "metrics.jsonl").exists() or len(list(RunFolder(run_dir).metrics())) < 2:
            time.sleep(0.02)
        training.kill(rank, number=signal.SIGTERM)
        assert training.wait(60.0) == dict.fromkeys(range(4), 130)
    run = RunFolder.open(run_dir)
    stopped = [event for event in run.events() if event["event"] == "interrupted"]
    assert stopped[0]["signal"] == "SIGTERM"
    assert run.status().step == stopped[0]["step"] > 0
    assert_identical(finish(world, run_dir, SHARDED, {**CONFIG, "checkpoint": {"every": 100}}), undisturbed)


def test_a_rank_that_cannot_read_its_data_ends_all_with_its_error(tmp_path: Path, world: World) -> None:
    """Rank 2 alone sees damaged shards, while the others wait for it in a collective."""
    damaged = tmp_path / "dataset"
    shutil.copytree(world.dataset, damaged)
    for shard in damaged.glob("train/*.tokens"):
        data = bytearray(shard.read_bytes())
        middle = slice(len(data) // 4, len(data) * 3 // 4)
        data[middle] = bytes(byte ^ 0x55 for byte in data[middle])
        shard.write_bytes(data)
    run_dir = tmp_path / "run"
    with ForkedTraining(world, run_dir, SHARDED, CONFIG, datasets={2: damaged}) as training:
        codes = training.wait(60.0)
    assert codes == {0: LOST_PEER, 1: LOST_PEER, 2: 1, 3: LOST_PEER}
    folder = RankFolder(run_dir / "logs" / "ranks")
    attempt = json.loads(folder.file(2, "").read_bytes())["attempt"]
    error = lost_error(folder, 4, attempt, stalled=0.0)
    assert error.what.startswith("rank 2 of 4 ended")
    assert "ranks 0-1, 3: at step" in error.what


def test_headwater_train_goes_on_by_itself_after_a_killed_rank(
    tmp_path: Path, world: World, undisturbed: RunFolder
) -> None:
    run_dir = tmp_path / "run"
    settings = [f"model.{name}={json.dumps(value)}" for name, value in MODEL.items()]
    settings += [f"train.{name}={json.dumps(value)}" for name, value in CONFIG.items()]
    settings += ["parallel.dp_shard=4", "seed=3"]
    command = [*cli_command(), "train", str(world.dataset), "--tokenizer", str(world.tokenizer), "--out", str(run_dir)]
    process = subprocess.Popen(
        [*command, "--json", *(f"--set={setting}" for setting in settings)],
        env=clean_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        beat = run_dir / "logs" / "ranks" / "00002.json"
        deadline = time.monotonic() + 100
        while time.monotonic() < deadline and not list((run_dir / "checkpoints").glob("step-0000000?/manifest.json")):
            time.sleep(0.02)
        os.kill(json.loads(beat.read_text())["pid"], signal.SIGKILL)
        out, errors = process.communicate(timeout=150)
    finally:
        process.kill()
    assert process.returncode == 0, errors
    assert json.loads(out)["step"] == CONFIG["steps"]
    assert errors.count("rank 2: was ended by SIGKILL") == 1
    assert "starting all ranks again (1 of 3)" in errors
    assert "Traceback" not in errors
    assert_identical(RunFolder.open(run_dir), undisturbed)
