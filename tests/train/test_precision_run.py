"""A whole run in fp16: its record, a stop and a going on, and what it says."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from headwater.core.errors import RecipeError
from headwater.core.progress import Reporter
from headwater.monitor import MonitorConfig
from headwater.monitor.record import read_metrics
from headwater.train import RunFolder
from headwater.train.checkpoint_format import empty_tensors, read_tensors
from headwater.train.run import train
from tests.train.conftest import TINY, World


def config(steps: int = 8) -> dict[str, Any]:
    return {
        "steps": steps,
        "global_batch": 2,
        "seq_len": 16,
        "precision": "fp16",
        "scaler": {"init_scale": 2.0**36, "growth_interval": 2},
        "checkpoint": {"every": 3, "permanent_every": 1, "async_save": False},
        "validation": {"every": 0, "windows_per_domain": 1},
        "dry_run": False,
    }


def run(world: World, folder: Path, **options: Any) -> RunFolder:
    return train(
        dataset=world.dataset, tokenizer=world.tokenizer, run_dir=folder, model=TINY, config=config(),
        monitor=MonitorConfig(every=1, console=False), **options,
    )  # fmt: skip


def weights(folder: RunFolder) -> dict[str, torch.Tensor]:
    checkpoint = folder.newest_checkpoint()
    assert checkpoint is not None
    tensors = empty_tensors(checkpoint.path)
    read_tensors(checkpoint.path, tensors)
    return tensors


def test_scale_and_skipped_steps_are_in_the_record_and_go_on(world: World, tmp_path: Path) -> None:
    whole = run(world, tmp_path / "whole")
    lines = list(read_metrics(whole.metrics_path))
    scales, skipped = [line["loss_scale"] for line in lines], [line["skipped_steps"] for line in lines]
    assert scales[0] == 2.0**36
    assert skipped[0] == 1
    assert skipped[-1] >= 2
    assert skipped == sorted(skipped)
    for before, after, lost, lost_then in zip(scales, scales[1:], [0, *skipped], skipped, strict=False):
        assert after in ((before / 2,) if lost_then > lost else (before, before * 2))
    assert [line["grad_norm"] == "Infinity" for line in lines] == [
        a > b for a, b in zip(skipped, [0, *skipped], strict=False)
    ]


def test_the_record_of_a_run_that_was_stopped_is_that_of_one_that_was_not(world: World, tmp_path: Path) -> None:
    whole = run(world, tmp_path / "whole")
    parts = run(world, tmp_path / "parts")
    # Back to step 3: what a kill after the checkpoint of step 3 leaves.
    (parts.path / "final.json").unlink()
    for checkpoint in parts.checkpoints():
        if checkpoint.step > 3:
            shutil.rmtree(checkpoint.path)
    again = run(world, tmp_path / "parts")
    keys = ("step", "loss", "grad_norm", "loss_scale", "skipped_steps", "lr")
    records = [[{key: line[key] for key in keys} for line in read_metrics(r.metrics_path)] for r in (whole, again)]
    assert records[0] == records[1]
    first, second = weights(whole), weights(again)
    assert {"scaler.scale", "scaler.growth_tracker", "scaler.skipped"} <= first.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


class Said(Reporter):
    """Remembers decisions."""

    def __init__(self) -> None:
        super().__init__(quiet=True)
        self.decisions: list[tuple[str, str]] = []

    def decide(self, what: str, why: str = "") -> None:
        self.decisions.append((what, why))


def test_a_slow_precision_says_so_and_what_is_not_there_is_refused(world: World, tmp_path: Path) -> None:
    said = Said()
    run(world, tmp_path / "run", reporter=said)
    assert any("fp16" in what and "200 times slower" in why for what, why in said.decisions)
    with pytest.raises(RecipeError, match="tf32 is an arithmetic of NVIDIA"):
        train(
            dataset=world.dataset, tokenizer=world.tokenizer, run_dir=tmp_path / "other", model=TINY,
            config={**config(), "precision": "tf32"},
        )  # fmt: skip
