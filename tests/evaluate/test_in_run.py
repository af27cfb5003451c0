"""Benchmarks during training: the same numbers as afterwards, in every layout, and in the run's record."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from headwater.core.errors import RecipeError
from headwater.core.progress import SILENT
from headwater.evaluate.backends import LocalBackend
from headwater.evaluate.config import DuringTraining
from headwater.evaluate.in_run import BenchmarkCallback
from headwater.evaluate.tasks import find_tasks, run_task
from headwater.monitor import read_metrics
from headwater.parallel.config import ParallelConfig
from headwater.tokenizer import Tokenizer
from headwater.train import RunFolder, train
from tests.parallel.ranks import run_ranks

from .conftest import World

MODEL = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 96,
}
CONFIG: dict[str, Any] = {
    "steps": 4,
    "global_batch": 8,
    "seq_len": 64,
    "precision": "fp32",
    "optimizer": {"lr": 0.01},
    "sampling": {"every": 0, "max_tokens": 1},
    "validation": {"every": 0, "windows_per_domain": 1},
}
ROWS = [
    {"goal": "The river", "sol1": "is wide and slow.", "sol2": "zz", "label": 0},
    {"goal": "水", "sol1": "是河。", "sol2": "山高水长，清风徐来。", "label": 1},
    {"goal": "A long tale " * 60, "sol1": "ends", "sol2": "goes on for ever", "label": 1},
]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("benchmarks")
    (folder / "piqa_valid.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    (folder / "lambada_test.jsonl").write_text(json.dumps({"text": "the water turns the wheel of the mill"}) + "\n")
    return folder


def during(data: Path, **more: Any) -> DuringTraining:
    return DuringTraining.model_validate({"tasks": ["piqa", "lambada"], "data": str(data), "every": 2, **more})


def rank_run(world: World, data: Path, run_dir: Path, parallel: ParallelConfig) -> None:
    callback = BenchmarkCallback(during(data), Tokenizer.load(world.tokenizer))
    train(
        dataset=world.dataset,
        tokenizer=world.tokenizer,
        run_dir=run_dir,
        model=MODEL,
        config=CONFIG,
        parallel=parallel,
        reporter=SILENT,
        callbacks=[callback],
    )


@pytest.fixture(scope="module")
def alone(world: World, data: Path, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    folder = tmp_path_factory.mktemp("alone") / "run"
    rank_run(world, data, folder, ParallelConfig(micro_batch=4))
    return RunFolder.open(folder)


def figures_of(run: RunFolder) -> dict[int, dict[str, float]]:
    return {row["step"]: row["eval"] for row in read_metrics(run.metrics_path) if "eval" in row}


def test_the_record_has_each_figure_at_the_steps_asked_for(alone: RunFolder) -> None:
    found = figures_of(alone)
    assert sorted(found) == [2, 4]
    assert {"piqa/acc", "piqa/acc_norm", "lambada/acc", "lambada/perplexity"} <= set(found[4])


def test_the_last_figures_are_those_of_the_finished_model(alone: RunFolder, data: Path) -> None:
    backend = LocalBackend.open(alone.path, device="cpu")
    for spec in find_tasks(names=["piqa", "lambada"]):
        for name, figure in run_task(spec, backend, folder=data).metrics.items():
            assert figures_of(alone)[4][f"{spec.name}/{name}"] == pytest.approx(figure.value, rel=1e-4)


@pytest.mark.parametrize(
    "layout",
    [{"dp_shard": 2, "tp": 2, "zero_stage": 3}, {"pp": 2, "dp_replicate": 2}],
    ids=lambda layout: "-".join(f"{key}{value}" for key, value in layout.items()),
)
def test_every_layout_finds_the_same(
    world: World, data: Path, alone: RunFolder, tmp_path: Path, layout: dict[str, Any]
) -> None:
    run_ranks(4, rank_run, world, data, tmp_path / "run", ParallelConfig(micro_batch=2, **layout), timeout=240)
    found, wanted = figures_of(RunFolder.open(tmp_path / "run")), figures_of(alone)
    assert found.keys() == wanted.keys()
    for step, figures in wanted.items():
        for name, value in figures.items():
            assert math.isclose(found[step][name], value, rel_tol=2e-3), (step, name)


def test_a_run_with_benchmarks_has_the_weights_of_one_without(world: World, alone: RunFolder, tmp_path: Path) -> None:
    train(
        dataset=world.dataset,
        tokenizer=world.tokenizer,
        run_dir=tmp_path / "run",
        model=MODEL,
        config=CONFIG,
        parallel=ParallelConfig(micro_batch=4),
    )
    losses = [
        [row["loss"] for row in read_metrics(run.metrics_path)] for run in (alone, RunFolder.open(tmp_path / "run"))
    ]
    assert losses[0][-1] == losses[1][-1]


def test_tasks_that_need_generation_are_refused(world: World, data: Path) -> None:
    (data / "gsm8k_test.jsonl").write_text(json.dumps({"question": "1+1?", "answer": "#### 2"}) + "\n")
    with pytest.raises(RecipeError, match="likelihood"):
        BenchmarkCallback(during(data, tasks=["gsm8k"]), Tokenizer.load(world.tokenizer))
