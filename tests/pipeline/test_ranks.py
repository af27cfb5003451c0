"""A recipe in a layout of two ranks: under torchrun all processes join, alone the command starts them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.conftest import RunCli, clean_environment, cli_command

LAYOUT = ("--set", "parallel.dp_shard=2", "--set", "train.dry_run=false")


def test_under_torchrun_the_first_rank_does_the_whole_way_and_the_others_train(recipe: Path, run_cli: RunCli) -> None:
    workspace = recipe.parent / "workspace"
    torchrun = [str(Path(sys.executable).with_name("torchrun")), "--standalone", "--nproc-per-node=2", "--no-python"]
    command = [*torchrun, *cli_command(), "run", str(recipe), "--workspace", str(workspace), *LAYOUT, "--quiet"]
    done = subprocess.run(
        command, env=clean_environment(), cwd=recipe.parent, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("export") == run_cli("run", recipe, "--workspace", workspace).stdout.count("export")
    again = run_cli("run", recipe, "--workspace", workspace, *LAYOUT, "--json").json
    assert again["up_to_date"] is True
    checkpoint = next((workspace / "runs").glob("*/checkpoints/step-00000006"))
    assert len(list(checkpoint.glob("*.distcp"))) == 2


def test_the_command_starts_the_ranks_itself(recipe: Path, run_cli: RunCli) -> None:
    workspace = recipe.parent / "workspace"
    done = run_cli("train", recipe, "--workspace", workspace, *LAYOUT, "--json", timeout=200)
    assert [stage["action"] for stage in done.json["stages"]] == ["built"] * 5
    assert "starting 2 ranks on this machine" in done.stderr
    run = next((workspace / "runs").glob("*/logs")).parent
    assert (run / "logs" / "rank-00001.log").exists()
    models = run_cli("generate", run, "the river", "--json", "--max-tokens", "3", code=None)
    assert models.code == 0, models.stderr
