"""A run that is interrupted or killed goes on where it was, and ends in the same files as one left in peace."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.conftest import Killer, RunCli, clean_environment, cli_command
from tests.pipeline.conftest import RECIPE, make_corpus


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    make_corpus(tmp_path / "corpus")
    path = tmp_path / "small.yaml"
    path.write_text(RECIPE.format(root=tmp_path / "corpus"))
    return path


def artifacts(workspace: Path) -> dict[str, bytes]:
    """Content of every committed artifact but provenance, which tells when and where."""
    return {
        path.relative_to(workspace).as_posix(): path.read_bytes()
        for path in sorted(workspace.rglob("*"))
        if path.is_file()
        and path.name != "provenance.json"
        and not any(part.startswith(".") for part in path.relative_to(workspace).parts)
    }


def start(*arguments: str | Path, cwd: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*cli_command(), *map(str, arguments)],
        cwd=cwd, env=clean_environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def test_an_interrupted_training_exits_with_130_keeps_its_steps_and_goes_on(recipe: Path, run_cli: RunCli) -> None:
    # A million steps: it cannot end before the signal comes.
    process = start("train", recipe, "--workspace", "w", "--set", "train.steps=1e6", "--json", cwd=recipe.parent)
    deadline = time.monotonic() + 90
    while not any(path.stat().st_size for path in recipe.parent.glob("w/runs/*/metrics.jsonl")):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    assert "interrupted" in stderr
    assert "run the same command again to go on" in stderr
    assert '"exit_code": 130' in stdout
    facts = run_cli("status", recipe, "--workspace", "w", "--set", "train.steps=1e6", "--json").json
    stage = next(stage for stage in facts["stages"] if stage["stage"] == "train")
    assert stage["state"] == "partial"
    assert "of 1,000,000; running again goes on" in stage["note"]
    assert stage["note"].startswith("step ")
    assert not stage["note"].startswith("step 0 ")


def test_killed_at_random_moments_the_corpus_is_the_same_as_undisturbed(
    recipe: Path, run_cli: RunCli, killer: Killer
) -> None:
    run_cli("tokenize", recipe, "--workspace", "calm")
    command = [*cli_command(), "tokenize", recipe, "--workspace", "killed"]
    killer.kill_until_done(command, kills=5, shortest=0.3, longest=2.0, cwd=recipe.parent)
    assert artifacts(recipe.parent / "killed") == artifacts(recipe.parent / "calm")


def test_two_at_once_do_the_work_once(recipe: Path) -> None:
    """Both end well, or one is told that the other works on it; what is there is whole."""
    both = [start("tokenize", recipe, "--workspace", "w", cwd=recipe.parent) for _ in range(2)]
    said = [process.communicate(timeout=120)[1] for process in both]
    codes = sorted(process.returncode for process in both)
    assert codes in ([0, 0], [0, 2]), said
    assert all("Traceback" not in text for text in said)
    assert not list(recipe.parent.glob("w/*/*.partial"))


@pytest.mark.soak
def test_a_whole_run_killed_again_and_again_ends_in_the_same_model(
    recipe: Path, run_cli: RunCli, killer: Killer
) -> None:
    """Twenty kills from collecting to exporting: corpus, weights and export are those of an undisturbed run."""
    settings = ["--set", "train.steps=60", "--set", "train.checkpoint.every=5"]
    run_cli("run", recipe, "--workspace", "calm", *settings, timeout=300)
    command = [*cli_command(), "run", recipe, "--workspace", "killed", *settings]
    hits = killer.kill_until_done(command, kills=20, shortest=0.5, longest=9.0, cwd=recipe.parent)
    assert hits >= 5
    for stage in ("collect", "curate", "tokenizer", "dataset"):
        assert artifacts(recipe.parent / "killed" / stage) == artifacts(recipe.parent / "calm" / stage)
    weights = [
        path.read_bytes()
        for workspace in ("calm", "killed")
        for path in recipe.parent.glob(f"{workspace}/export/*/model/model.safetensors")
    ]
    assert len(weights) == 2
    assert weights[0] == weights[1]
