"""What a flight is asked: ranks and numbers that exist, encoders, phases; and the planner's view of the same thing."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from headwater.cli.main import run_command
from headwater.model import EncoderConfig, ModelConfig
from headwater.plan import Layout, TrainSpec, make_plan, parse_cluster, search
from headwater.plan.build import one_case, scalars
from headwater.plan.traffic import wire_bytes
from headwater.simulate.compare import compare
from headwater.simulate.flight import fly
from headwater.simulate.layouts import layout_of, model_of
from tests.simulate.test_flight import MODEL, flight, wire

RECIPE = """schema: 1
name: tiny
cluster: a100-80gb:4x1
collect: {root: corpus, sources: [{name: a, paths: [a.txt]}]}
tokenizer: {vocab_size: 512}
model: {hidden_size: 64, num_hidden_layers: 4, num_attention_heads: 4, intermediate_size: 128,
        max_position_embeddings: 256}
train: {steps: 10, global_batch: 16, seq_len: 64, precision: bf16}
parallel: {dp_shard: 4, zero_stage: 1, micro_batch: 2}
"""


def fly_recipe(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, *more: str) -> tuple[int, str, str]:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(text)
    code = run_command(["simulate", str(recipe), "--json", *more])
    said = capsys.readouterr()
    return code, said.out, said.err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--rank", "-1"], "there is no rank -1"),
        (["--rank", "4"], "there is no rank 4"),
        (["--jobs", "-1"], "-1 is not above zero"),
        (["--jobs", "0"], "0 is not above zero"),
        (["--micro-batches", "0"], "0 is not above zero"),
        (["--cluster", "zx81:4x1"], "unknown accelerator"),
        (["--cluster", ""], "neither a cluster file"),
    ],
)
def test_numbers_that_mean_nothing_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], said: str
) -> None:
    code, _, error = fly_recipe(tmp_path, capsys, RECIPE, *options)
    assert code == 2
    assert said in error
    assert "mend:" in error


def test_the_planner_is_asked_for_the_phase_that_is_flown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The flight takes the longest sequences; so does the planner, and not the phase with the most tokens."""
    alone = RECIPE.replace("steps: 10, global_batch: 16, seq_len: 64", "tokens: 1e6, global_batch: 16, seq_len: 256")
    phases = "[{name: short, share: 0.9, seq_len: 64, global_batch: 64}, {name: long, share: 0.1}]"
    planned = []
    for text in (alone, alone.replace("precision: bf16}", f"precision: bf16, phases: {phases}}}")):
        code, out, error = fly_recipe(tmp_path, capsys, text)
        assert code == 0, error
        assert "is planned for all tokens" not in error
        planned.append([(row["figure"], row["planned_bytes"]) for row in json.loads(out)["compared"]])
    assert planned[0] == planned[1]


def test_an_encoder_flies_with_the_logits_of_its_masked_tokens(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    encoder = RECIPE.replace("model: {", "model: {architecture: encoder, tie_word_embeddings: true, ")
    losses = []
    for rate in (0.15, 0.6):
        text = encoder.replace("train: {", f"train: {{objective: mlm, mask_rate: {rate}, ")
        code, out, error = fly_recipe(tmp_path, capsys, text)
        assert code == 0, error
        losses.append(json.loads(out)["simulated"][0])
    assert losses[0]["allocated_bytes"] < losses[1]["allocated_bytes"]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"attention_bias": True},
        {"attention_bias": "qkv", "num_key_value_heads": 2},
        {"qk_norm": True, "tie_word_embeddings": True},
        {"architecture": "encoder", "tie_word_embeddings": True},
        {"architecture": "encoder", "tie_word_embeddings": True,
         "encoder": EncoderConfig(norm_bias=True, mlp_bias=True, classifier_bias=True, decoder_bias=False)},
    ],
)  # fmt: skip
def test_the_planner_s_model_has_exactly_the_trainer_s_parameters(changes: dict[str, object]) -> None:
    config = ModelConfig.model_validate({**MODEL.model_dump(exclude={"encoder"}), **changes})
    assert model_of(config, "m").parameters == config.parameter_count().total


def test_hybrid_sharding_sends_what_the_planner_says() -> None:
    """Scatters and gathers stay in groups of 4; each share is summed over the 4 groups once a step."""
    report = fly(flight(rows=4, dp_shard=4, dp_replicate=4, zero_stage=2), jobs=1)
    work = TrainSpec(1e6, 64, 64)
    layout = Layout(dp=16, shard=4, zero=2)
    planned = scalars(wire_bytes(one_case(model_of(MODEL, "m"), work, parse_cluster("a100:8x2"), layout))["middle"])
    sent = sum(flow["wire_bytes"] for flow in report.flows[0] if flow["axis"] in ("dp_shard", "dp_replicate"))
    assert sent == pytest.approx(planned["dp"], rel=0.08)
    assert wire(report, "dp_replicate", "all_reduce") > 0


def test_fp8_flies_with_as_many_products_as_bf16() -> None:
    half, eighth = (fly(replace(flight(rows=4, dp_shard=2), precision=kind), jobs=1) for kind in ("bf16", "fp8"))
    assert eighth.ranks[0].flops == pytest.approx(half.ranks[0].flops, rel=0.01)


@pytest.mark.parametrize("schedule", ["zbv", "dualpipev"])
def test_the_planner_knows_what_a_folded_model_holds_and_sends(schedule: str) -> None:
    """Rank 0 has embedding and head, and rank 1 neither; recompute saves little where the backward pass is split."""
    deep = MODEL.model_copy(update={"num_hidden_layers": 8, "vocab_size": 4096})
    selective = flight().config.model_copy(update={"activation_checkpointing": "selective"})
    flown = replace(flight(rows=8, dp_shard=2, pp=2, schedule=schedule, virtual_stages=2), model=deep, config=selective)
    report = fly(flown, jobs=1)
    layout = layout_of(flown.parallel, selective, 8, 1)
    plan = make_plan(model_of(deep, "m"), TrainSpec(1e6, 64, 16), parse_cluster("a100:4x1"), layout)
    rows = {(row.stage, row.figure): row for row in compare(report, plan)}
    for stage in ("first", "last"):
        assert rows[stage, "traffic pp"].ratio == pytest.approx(1.0, abs=0.05)
        assert rows[stage, "traffic dp"].ratio == pytest.approx(1.0, abs=0.2)
    assert "recompute_split" in {warning["name"] for warning in plan.data["warnings"]}
    found = search(model_of(deep, "m"), TrainSpec(1e6, 64, 64), parse_cluster("a100:4x1"), knobs={"schedule": schedule})
    assert all(not layout.recompute_light and layout.recompute == 0 for layout in found.layouts)
