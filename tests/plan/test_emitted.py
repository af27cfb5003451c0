"""What the planner writes, the trainer runs: its sections go into a recipe, and real ranks take the steps."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from headwater.cli.main import run_command
from headwater.core.errors import InputError
from headwater.plan import Layout, ModelSpec, TrainSpec, make_plan, parse_cluster
from headwater.plan.export import megatron_flags, torchtitan_flags
from headwater.plan.plan import Plan

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


# Options as these projects name them: torchtitan 0.3.0's TrainingConfig and ParallelismConfig (its parser took what is
# printed), Megatron-LM's arguments (megatron/training/arguments.py, docs/user-guide/features/megatron_fsdp.md).
TORCHTITAN = {
    "training": {"seq_len", "local_batch_size", "global_batch_size", "steps", "mixed_precision_param"},
    "parallelism": {
        "data_parallel_replicate_degree", "data_parallel_shard_degree", "fsdp_reshard_after_forward",
        "tensor_parallel_degree", "context_parallel_degree", "pipeline_parallel_degree", "pipeline_parallel_schedule",
        "pipeline_parallel_microbatch_size", "pipeline_parallel_layers_per_stage", "expert_parallel_degree",
        "pipeline_parallel_first_stage_less_layers", "pipeline_parallel_last_stage_less_layers",
    },
}  # fmt: skip
MEGATRON_MODULES = {"core_attn", "moe_act", "layernorm", "mla_up_proj", "mlp", "moe", "shared_experts"}


def plan_of(precision: str = "bf16", **layout: object) -> Plan:
    model = ModelSpec.from_fields(layers=32, hidden=4096, heads=32, kv_heads=8, ffn=14336, vocab=32000)
    work = TrainSpec(tokens=1e11, seq=4096, global_batch=512, precision=precision)
    return make_plan(model, work, parse_cluster("h100:8x8"), Layout(**layout))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "layout",
    [
        {"dp": 64, "zero": 3, "shard": 8},
        {"tp": 2, "pp": 4, "dp": 8, "schedule": "interleaved_1f1b", "chunks": 4, "recompute_light": True},
        {"tp": 8, "cp": 2, "dp": 4, "zero": 3, "recompute": 1.0},
    ],
)
def test_flags_are_names_that_the_other_trainers_have(layout: dict[str, object]) -> None:
    plan = plan_of(**layout)
    *options, again = torchtitan_flags(plan)
    assert again in {"activation-checkpoint:none", "activation-checkpoint:selective", "activation-checkpoint:full"}
    for option in options:
        name, _, value = option.partition(" ")
        section, _, field = name.removeprefix("--").partition(".")
        assert field in TORCHTITAN[section]
        assert value
    flags = dict(flag.partition(" ")[::2] for flag in megatron_flags(plan))
    assert set(flags.get("--recompute-modules", "").split()) <= MEGATRON_MODULES
    assert ("--use-megatron-fsdp" in flags) == (plan.layout.zero == 3)
    if plan.layout.shard < plan.layout.dp:
        assert flags["--num-distributed-optimizer-instances"] == str(plan.layout.dp // plan.layout.shard)


def test_what_the_other_trainers_cannot_say_is_refused_and_not_left_out() -> None:
    with pytest.raises(InputError, match="all layers or none"):
        torchtitan_flags(plan_of(dp=64, recompute=0.25))
    with pytest.raises(InputError, match="do not say fp8"):
        torchtitan_flags(plan_of("fp8", dp=64))
    with pytest.raises(InputError, match="int8 has no flags"):
        megatron_flags(plan_of("int8", dp=64))
    assert "--fp8-format hybrid" in megatron_flags(plan_of("fp8", dp=64))
