"""What the planner writes, the trainer runs: its sections go into a recipe, and real ranks take the steps."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from headwater.cli.main import run_command

RECIPE = """schema: 1
name: tiny
cluster: a100-80gb:4x1
collect: {root: corpus, sources: [{name: a, paths: [a.txt]}]}
tokenizer: {vocab_size: 512}
model: {hidden_size: 64, num_hidden_layers: 8, num_attention_heads: 4, intermediate_size: 128,
        max_position_embeddings: 128}
train: {steps: 10, global_batch: 64, seq_len: 64, precision: bf16}
"""


@pytest.mark.parametrize(
    ("knobs", "axes"),
    [
        (("tp=2", "pp=2"), {"tp": 2, "pp": 2}),
        (("pp=2", "dp=2", "chunks=2", "schedule=interleaved_1f1b"), {"pp": 2, "virtual_stages": 2}),
        (("dp=4", "zero=3", "recompute=selective"), {"dp_shard": 4, "zero_stage": 3}),
    ],
)
def test_a_recipe_the_planner_wrote_trains_on_real_ranks_as_one_process_does(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], knobs: tuple[str, ...], axes: dict[str, int]
) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(RECIPE)
    fixed = [word for knob in knobs for word in ("--fix", knob)]
    assert run_command(["plan", str(path), *fixed, "--emit", "recipe"]) == 0
    written = yaml.safe_load(capfd.readouterr().out)
    assert written["parallel"].items() >= axes.items()
    recipe = yaml.safe_load(RECIPE)
    recipe["parallel"] = written["parallel"]
    recipe["train"] |= written["train"]
    path.write_text(yaml.safe_dump(recipe))
    assert run_command(["check", str(path), "--json"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert found["agrees"] is True
