"""The small version of benchmarks/eval_parity.py: ten short items a task, on SmolLM2-135M."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from .smollm import smollm_folder

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "eval_parity.py"


def peer() -> str:
    """A Python that has lm-eval: $HEADWATER_LM_EVAL_PYTHON, or this one."""
    named = os.environ.get("HEADWATER_LM_EVAL_PYTHON")
    if named:
        return named
    if importlib.util.find_spec("lm_eval") is None:
        pytest.skip("lm-eval is not installed; name a Python that has it by HEADWATER_LM_EVAL_PYTHON")
    return sys.executable


@pytest.mark.timeout(600)
def test_ten_items_of_each_task_are_those_of_lm_evaluation_harness(shared_data: Path) -> None:
    python = peer()
    model = smollm_folder()
    if model is None:
        pytest.skip("SmolLM2-135M can neither be found in the cache nor fetched")
    tasks = "piqa,arc_challenge,hellaswag,lambada,wikitext"
    command = [sys.executable, SCRIPT, model, shared_data / "eval", "--peer", python, "--shortest", "--limit", "10"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*command, "--tasks", tasks], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert done.stdout.count("| 10 |") == 5
