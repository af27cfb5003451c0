"""Weights & Biases offline, with its real package; without it, the words a person gets."""

from __future__ import annotations

import importlib.util
import io
from pathlib import Path

import pytest
from rich.console import Console

from headwater.core.errors import UserError
from headwater.core.progress import Reporter
from headwater.monitor.config import MonitorConfig
from headwater.monitor.failures import Failures
from headwater.monitor.record import read_metrics
from headwater.monitor.sinks import RECORD, open_sinks

INSTALLED = importlib.util.find_spec("wandb") is not None


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "runs" / "r").mkdir(parents=True)
    (tmp_path / "runs" / "r" / "run.json").write_text('{"steps": 3, "dataset": "4f2a"}')
    return tmp_path / "runs" / "r"


@pytest.mark.skipif(INSTALLED, reason="wandb is installed")
def test_without_the_package_the_recipe_is_refused_with_the_way_to_get_it(run: Path) -> None:
    config = MonitorConfig(console=False, wandb={"enabled": True})
    with pytest.raises(UserError) as caught:
        open_sinks(config, run, "r", Reporter(quiet=True), Failures(print), steps=3, done=0)
    assert "headwater[wandb]" in caught.value.mend


@pytest.mark.skipif(not INSTALLED, reason="the package wandb, with its 20 MB and many dependencies, is not installed")
@pytest.mark.timeout(180)
def test_a_run_is_kept_offline_for_a_later_sync(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_ANONYMOUS", "never")
    said = io.StringIO()
    config = MonitorConfig(console=False, wandb={"enabled": True, "mode": "offline", "project": "tests"})
    for done in (0, 2):  # goes on where a killed process was
        reporter = Reporter(Console(file=said))
        sinks = open_sinks(config, run, "r", reporter, Failures(reporter.warn), steps=4, done=done)
        for step in range(done + 1, done + 3):
            sinks.write({"step": step, "loss": 2.0, "val_loss": {"all": 1.5, "code": None}, "gpu_util": None})
        sinks.close()
    assert "warning" not in said.getvalue()
    files = sorted((run / "wandb").glob("offline-run-*/*.wandb"))
    assert len(files) == 2
    assert len({path.name for path in files}) == 1, "both are one run there"
    kept = b"".join(path.read_bytes() for path in files)
    assert b"val_loss/all" in kept
    assert b"4f2a" in kept
    assert [row["step"] for row in read_metrics(run / RECORD)] == [1, 2, 3, 4]
