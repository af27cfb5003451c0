"""The chaos suite: faults in real runs are found in time, healthy runs are left in peace. Whole as a soak."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import REPOSITORY, clean_environment

SUITE = REPOSITORY / "benchmarks" / "chaos.py"
FEW = (
    "NaN or infinity",
    "poisoned batch$",
    "exponent bit of a weight",
    "sign bit of a weight",
    "sign bit of a gradient",
    "stand still",
    "vanishing",
    "learning rate x 30",
    "slow loader",
    "full disk",
    "killed rank",
)


def suite(out: Path, *arguments: str, timeout: float) -> tuple[list[dict[str, Any]], list[dict[str, Any]], str]:
    """(trials, healthy runs, page)."""
    page = out / "chaos.md"
    command = [sys.executable, str(SUITE), "--out", str(out), "--report", str(page), *arguments]
    done = subprocess.run(
        command, env=clean_environment(), timeout=timeout, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-4_000:]
    records = []
    for name in ("trials.jsonl", "clean.jsonl"):
        path = out / name
        records.append([json.loads(line) for line in path.read_text().splitlines()] if path.exists() else [])
    return records[0], records[1], page.read_text()


@pytest.mark.timeout(600)
def test_a_few_faults_of_each_kind_are_found_and_the_suite_goes_on_where_it_was(tmp_path: Path) -> None:
    trials, _, page = suite(tmp_path, "--seeds", "1", "--clean-steps", "0", "--only", "|".join(FEW), timeout=550)
    assert len(trials) == len(FEW)
    for trial in trials:
        assert (trial["found"] is not None) == (trial["case"] != "sign bit of a gradient"), trial
        assert f"| {trial['case']} |" in page
    again, _, _ = suite(tmp_path, "--seeds", "1", "--clean-steps", "0", "--only", "|".join(FEW), timeout=120)
    assert again == trials


@pytest.mark.soak
@pytest.mark.timeout(7_200)
def test_the_whole_suite_reaches_its_figures(tmp_path: Path) -> None:
    trials, clean, page = suite(tmp_path, timeout=7_000)
    sys.path.insert(0, str(SUITE.parent))
    from chaos_cases import CASES

    for name in {trial["case"] for trial in trials}:
        own = [trial for trial in trials if trial["case"] == name]
        if name in CASES and not CASES[name].possible:
            continue
        found = sum(trial["found"] is not None for trial in own) / len(own)
        assert found >= 0.95, f"{name}: {found:.0%}"
    steps = sum(run["steps"] for run in clean)
    assert steps >= 30_000
    alarms = [alert for run in clean for alert in run["training"]]
    assert len(alarms) / steps <= 1e-4, alarms
    assert "What is not found" in page
