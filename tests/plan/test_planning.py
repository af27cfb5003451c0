"""Plans and search: identities, monotony, limits, explanations, exports, and the command line."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.cli.main import run_command
from headwater.core.errors import InputError
from headwater.plan import Layout, ModelSpec, TrainSpec, compare, make_plan, parse_cluster, search, what_if, why
from headwater.plan.build import missing_fields
from headwater.plan.cluster import ClusterSpec, from_config
from headwater.plan.export import megatron_flags, recipe_section, torchtitan_flags
from headwater.plan.hardware import accelerator, catalogue
from headwater.plan.quantities import bandwidth, count, size
from headwater.plan.report import html

GPT3 = ModelSpec.from_fields(layers=96, hidden=12288, heads=96, ffn=32768, vocab=51200, name="175b")
WORK = TrainSpec(tokens=300e9, seq=2048, global_batch=1536)
A100S = parse_cluster("a100-80gb:8x512")
SMALL = ModelSpec.from_fields(layers=32, hidden=4096, heads=32, kv_heads=8, ffn=14336, vocab=32000)
WORK_64 = TrainSpec(tokens=1e11, seq=4096, global_batch=512)
RECIPES = Path(__file__).resolve().parents[2] / "recipes"
CLUSTERS = Path(__file__).resolve().parents[2] / "clusters"


def test_4096_gpus_are_searched_in_five_seconds_and_always_alike() -> None:
    start = time.process_time()
    first = search(GPT3, WORK, A100S)
    assert time.process_time() - start < 5.0
    second = search(GPT3, WORK, A100S)
    assert first.layouts == second.layouts
    assert all(layout.gpus == 4096 for layout in first.layouts)
    assert list(first.days) == sorted(first.days)


def test_a_mixture_of_experts_is_searched_with_expert_parallelism() -> None:
    moe = ModelSpec.from_fields(
        layers=48, hidden=2048, heads=32, kv_heads=4, head_dim=128, ffn=0, vocab=151936, experts=128, topk=8,
        expert_ffn=768,
    )  # fmt: skip
    start = time.process_time()
    found = search(moe, TrainSpec(1e12, 4096, 4096), parse_cluster("h100:8x512"))
    assert time.process_time() - start < 5.0
    plan = make_plan(moe, TrainSpec(1e12, 4096, 4096), parse_cluster("h100:8x512"), found.layouts[0])
    assert found.layouts[0].ep > 1
    assert not plan.data["runnable"]["runnable"]
    assert "mixture" in plan.data["runnable"]["reason"]


def test_held_knobs_are_held() -> None:
    found = search(GPT3, WORK, A100S, knobs={"tp": 8, "pp": 8, "schedule": "1f1b", "recompute": "full"})
    assert {(x.tp, x.pp, x.dp, x.schedule, x.recompute) for x in found.layouts} == {(8, 8, 64, "1f1b", 1.0)}


def test_a_held_knob_that_fits_no_schedule_is_not_dropped() -> None:
    assert search(GPT3, WORK, A100S, knobs={"schedule": "1f1b", "pp": 8, "chunks": 3}).layouts == []
    with pytest.raises(InputError, match="unknown knob"):
        search(GPT3, WORK, A100S, knobs={"mood": 1})


def test_a_deadline_and_a_budget_choose_the_cluster_s_size() -> None:
    soon = search(GPT3, WORK, A100S, goal="cheapest", deadline_days=20)
    assert soon.days[0] <= 20
    cheap = search(GPT3, WORK, A100S, goal="cheapest")
    assert cheap.nodes[0] < 512
    assert cheap.dollars[0] <= soon.dollars[0]
    bounded = search(GPT3, WORK, A100S, budget_dollars=1e6)
    assert bounded.dollars[0] <= 1e6
    impossible = search(GPT3, WORK, A100S, deadline_days=0.5)
    assert impossible.layouts == []
    assert "nearest" in impossible.miss


def test_nothing_fits_names_the_nearest_miss_and_what_binds() -> None:
    found = search(GPT3, WORK, parse_cluster("a100-40gb:8x2"))
    assert found.layouts == []
    assert "nothing fits" in found.miss
    assert "binds" in found.miss
    assert found.nearest is not None


def test_components_add_up_to_the_step_and_shares_to_one() -> None:
    for layout in (
        Layout(tp=8, pp=8, dp=64, schedule="interleaved_1f1b", chunks=4),
        Layout(tp=8, pp=16, dp=32, zero=2),
    ):
        step = make_plan(GPT3, WORK, A100S, layout).data["step"]
        assert sum(step["components"].values()) == pytest.approx(step["seconds"], rel=1e-9)
        assert sum(step["shares"].values()) == pytest.approx(1.0)
        assert all(value >= -1e-9 for value in step["components"].values())


def test_time_is_linear_in_micro_batches_beyond_the_ramp() -> None:
    layout = Layout(tp=8, pp=8, dp=64)
    steps = [make_plan(GPT3, replace(WORK, global_batch=64 * m), A100S, layout).step_seconds for m in (16, 32, 48)]
    assert steps[2] - steps[1] == pytest.approx(steps[1] - steps[0], rel=1e-6)


@given(
    factor=st.floats(1.0, 8.0), layout=st.sampled_from([Layout(tp=8, pp=8, dp=64), Layout(tp=8, pp=1, dp=512, zero=3)])
)
@settings(max_examples=20, deadline=None)
def test_better_hardware_is_never_slower(factor: float, layout: Layout) -> None:
    base = make_plan(GPT3, WORK, A100S, layout).step_seconds
    gpu = A100S.gpu
    better: list[ClusterSpec] = [
        replace(A100S, nic_per_gpu=A100S.nic_per_gpu * factor),
        replace(A100S, gpu=replace(gpu, memory_bandwidth=gpu.memory_bandwidth * factor)),
        replace(A100S, gpu=replace(gpu, intra_bandwidth=gpu.intra_bandwidth * factor)),
    ]
    for cluster in better:
        assert make_plan(GPT3, WORK, cluster, layout).step_seconds <= base * (1 + 1e-9)


def test_a_dearer_price_costs_more_and_changes_no_time() -> None:
    layout = Layout(tp=8, pp=8, dp=64)
    a, b = (make_plan(GPT3, WORK, replace(A100S, price_per_gpu_hour=p), layout).data for p in (1.0, 1.5))
    assert b["cost"]["p50"]["rented"] == pytest.approx(1.5 * a["cost"]["p50"]["rented"])
    assert a["days"] == b["days"]
    assert a["days"]["p10"] < a["days"]["p50"] < a["days"]["p90"]


def test_100_against_400_gigabit_comes_out_in_numbers() -> None:
    plan = make_plan(GPT3, WORK, A100S, Layout(tp=8, pp=8, dp=64))
    entry = what_if(plan, "nic_per_node=400Gbps->100Gbps")[0]
    days = entry["figures"]["days_p50"]
    assert days["after"] > days["before"]
    assert entry["components_seconds"]["dp"] > 0
    assert entry["each_at_its_best"]["figures"]["days_p50"]["after"] <= days["after"] * (1 + 1e-9)


def test_every_change_of_the_command_s_help_is_understood() -> None:
    plan = make_plan(GPT3, WORK, A100S, Layout(tp=8, pp=8, dp=64))
    text = "gpu=h100|seq=32768|nodes=+8|price=x1.5|mtbf=x0.5|storage=1GB/s|tokens=1e12|global_batch=3072|precision=fp16"
    entries = what_if(plan, text)
    assert [entry["change"].split("=")[0] for entry in entries] == [
        "gpu", "seq", "nodes", "price", "mtbf", "storage", "tokens", "global_batch", "precision",
    ]  # fmt: skip
    figures = {entry["change"].split("=")[0]: entry["figures"] for entry in entries}
    assert figures["gpu"]["days_p50"]["ratio"] < 0.8
    assert figures["price"]["rented_dollars"]["ratio"] == pytest.approx(1.5)
    assert figures["mtbf"]["goodput"]["ratio"] < 1.0
    with pytest.raises(InputError, match="leaves nothing"):
        what_if(plan, "nodes=-600")
    with pytest.raises(InputError, match="unknown change"):
        what_if(plan, "mood=better")
    with pytest.raises(InputError, match="no change"):
        what_if(plan, " | ")


def test_why_orders_what_binds_and_says_how_the_runner_up_lost() -> None:
    a = make_plan(GPT3, WORK, A100S, Layout(tp=8, pp=8, dp=64, schedule="interleaved_1f1b", chunks=4))
    b = make_plan(GPT3, WORK, A100S, Layout(tp=8, pp=8, dp=64))
    reasons = why(a, b)
    assert reasons["time_binds"] == "gemm"
    assert reasons["runner_up"]["slower_by"] > 0
    assert next(iter(reasons["runner_up"]["components"])) == "bubble"
    assert [g["gain"] for g in reasons["gains"]] == sorted((g["gain"] for g in reasons["gains"]), reverse=True)


def test_the_4096_gpu_recipe_is_warned_of_its_bubble_and_offered_interleaving() -> None:
    plan = make_plan(GPT3, WORK, A100S, Layout(tp=8, pp=8, dp=64))
    bubble = next(w for w in plan.data["warnings"] if w["name"] == "bubble")
    assert 0.15 < bubble["value"] < 0.30
    assert "interleaved_1f1b" in bubble["mend"]


def test_each_trap_has_its_warning() -> None:
    def names(model: ModelSpec, work: TrainSpec, layout: Layout, cluster: ClusterSpec = A100S) -> set[str]:
        return {w["name"] for w in make_plan(model, work, cluster, layout).data["warnings"]}

    odd = ModelSpec.from_fields(layers=40, hidden=5000, heads=50, ffn=13000, vocab=50257)
    assert {"head_dim", "ffn", "vocab"} <= names(odd, TrainSpec(1e12, 2048, 1024), Layout(tp=2, dp=64))
    assert "tp_across_nodes" in names(GPT3, WORK, Layout(tp=16, pp=8, dp=32))
    assert "memory" in names(GPT3, WORK, Layout(tp=8, pp=1, dp=8))
    assert "kv_heads" in names(SMALL, WORK, Layout(tp=16, dp=16))
    assert "stages" in names(SMALL, WORK, Layout(pp=5, dp=64))
    assert "epochs" in names(SMALL, replace(WORK, unique_tokens=3e10), Layout(dp=64))
    assert "batch" in names(SMALL, replace(WORK, global_batch=16384), Layout(dp=64))
    assert "micro_batches" in names(SMALL, replace(WORK, global_batch=64), Layout(pp=4, dp=32))
    assert "zero3_small" in names(GPT3, replace(WORK, global_batch=2048), Layout(dp=2048, zero=3, recompute=1.0))
    slow = replace(A100S, storage_bandwidth=1e8)
    assert "storage" in names(GPT3, WORK, Layout(tp=8, pp=8, dp=64), slow)
    every = make_plan(odd, TrainSpec(1e12, 2048, 1024), A100S, Layout(tp=2, dp=64)).data["warnings"]
    assert all(w["what"] and w["mend"] for w in every)


@pytest.mark.parametrize(
    "layout",
    [
        Layout(tp=7, dp=8),
        Layout(tp=8, pp=8, dp=1024),
        Layout(pp=97, dp=1),
        Layout(dp=7),
        Layout(dp=8, ep=2),
        Layout(tp=8, pp=8, dp=96, schedule="zbv", chunks=2, micro_batch=16),
    ],
)
def test_layouts_that_cannot_exist_are_refused(layout: Layout) -> None:
    with pytest.raises(InputError):
        make_plan(GPT3, WORK, A100S, layout)


@pytest.mark.parametrize("name", ["1f1b", "interleaved_1f1b", "zbv", "gpipe"])
def test_the_emitted_recipe_loads_in_the_trainer_s_schema(name: str) -> None:
    from headwater.parallel.config import ParallelConfig
    from headwater.train.config import TrainConfig

    found = search(GPT3, WORK, A100S, knobs={"schedule": name})
    section = recipe_section(make_plan(GPT3, WORK, A100S, found.layouts[0]))
    loaded = ParallelConfig(**section["parallel"])
    assert loaded.ranks == 4096
    assert loaded.accumulation(WORK.global_batch) == WORK.global_batch // loaded.data_parallel // loaded.micro_batch
    TrainConfig(tokens=1000, **section["train"])
    assert yaml.safe_load(yaml.safe_dump(section)) == section


def test_a_share_of_layers_and_the_precision_are_in_the_emitted_recipe() -> None:
    from headwater.train.config import TrainConfig

    layout = Layout(tp=8, pp=8, dp=64, schedule="1f1b", recompute=0.25)
    section = recipe_section(make_plan(GPT3, WORK, A100S, layout))["train"]
    assert section == {"precision": WORK.precision, "activation_checkpointing": "full", "recompute": {"num_layers": 3}}
    loaded = TrainConfig(**section)
    assert loaded.recompute.share(GPT3.layers // 8) == 0.25
    assert TrainConfig(activation_checkpointing="full", recompute={"every": 4}).recompute.share(12) == 0.25
    assert TrainConfig(activation_checkpointing="full").recompute.share(12) == 1.0


def test_flags_of_other_trainers_say_the_same_layout() -> None:
    plan = make_plan(GPT3, WORK, A100S, Layout(tp=8, pp=8, dp=64, schedule="interleaved_1f1b", chunks=4))
    flags = megatron_flags(plan)
    assert "--tensor-model-parallel-size 8" in flags
    assert "--num-layers-per-virtual-pipeline-stage 3" in flags
    titan = torchtitan_flags(plan)
    assert "--parallelism.pipeline_parallel_schedule Interleaved1F1B" in titan
    assert "--parallelism.data_parallel_shard_degree 64" in titan
    with pytest.raises(InputError, match="zbv"):
        megatron_flags(make_plan(GPT3, WORK, A100S, Layout(tp=8, pp=8, dp=64, schedule="zbv", chunks=2)))


def test_a_report_is_one_page_with_its_charts() -> None:
    found = search(GPT3, WORK, A100S, goal="cheapest")
    plan = make_plan(GPT3, WORK, A100S.with_nodes(found.nodes[0]), found.layouts[0])
    page = html(plan, found, why(plan))
    assert page.count("<svg") >= 4
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert "<script" not in page


def test_every_shipped_cluster_loads() -> None:
    files = sorted(CLUSTERS.glob("*.yaml"))
    assert CLUSTERS / "dgx-a100-8x8-ib400.yaml" in files
    for path in files:
        assert parse_cluster(path).gpus >= 1
    ib = parse_cluster(CLUSTERS / "dgx-a100-8x8-ib400.yaml")
    assert ib.nic_per_gpu == pytest.approx(400e9 / 8 / 8)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"nic_per_node": "400Gbps", "nic_per_gpu": "50Gbps"}, "both"),
        ({"gpu": "h100x"}, "unknown accelerator"),
        ({"nodes": 0}, "not above zero"),
        ({"nodes": 2.5}, "whole number"),
        ({"nic_per_node": 400}, "no unit"),
        ({"nic_per_node": "-4Gbps"}, "not a bandwidth"),
        ({"price_per_gpu_hour": 0}, "not above zero"),
        ({"gpus_per_node": 100000}, "GPUs a node"),
        ({"colour": "red"}, "unknown field"),
        ({"nvlink_domain": 7}, "divide"),
        ({"gpu": {"peak": {"bf16": 100}}}, "lacks"),
        ({"gpu_mtbf_hours": [3, 2, 1]}, "rising"),
        ({1: 2, "colour": "red"}, "unknown field '1'"),
        ({"calibration": {1: 2, "colour": 3}}, "unknown constant '1'"),
        ({"calibration": {"latency": -1}}, "not 0 or more"),
        ({"calibration": {"gemm_sustained": 0}}, "not above 0"),
        ({"gpu": {1: 2, "colour": 3}}, "unknown field '1'"),
    ],
)
def test_impossible_clusters_are_refused(fields: dict[Any, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        from_config({"gpu": "a100", "gpus_per_node": 8, "nodes": 4, **fields})


@pytest.mark.parametrize(
    "data", [b"gpu: a100\xff\xfe", "gpu: a100".encode("utf-16"), b"name: 2026-99-99", b"gpu: [a100"]
)
def test_a_damaged_cluster_file_is_named(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "mine.yaml").write_bytes(data)
    with pytest.raises(InputError, match="not YAML") as caught:
        parse_cluster(tmp_path / "mine.yaml")
    assert caught.value.where == str(tmp_path / "mine.yaml")


def test_short_clusters_and_nonsense() -> None:
    assert parse_cluster("a100-80gb:8x512").gpus == 4096
    assert parse_cluster("H100:8").gpus == 8
    for text in ("a100", "a100:0x4", "a100:8x", "zx81:8x8", ""):
        with pytest.raises(InputError):
            parse_cluster(text)


def test_a_part_of_one_s_own_can_be_described() -> None:
    mine = {"name": "mine", "peak": {"bf16": 100.0}, "memory_gb": 32, "memory_tbs": 1.0, "intra_gbs": 50}
    cluster = from_config({"gpu": mine, "gpus_per_node": 4, "nodes": 2, "nic_per_gpu": "100Gbps"})
    work = TrainSpec(1e10, 2048, 64)
    assert make_plan(SMALL, work, cluster, Layout(tp=4, dp=2, recompute=1.0)).step_seconds > 0
    with pytest.raises(InputError, match="no fp8"):
        make_plan(SMALL, replace(work, precision="fp8"), cluster, Layout(tp=4, dp=2))


def test_every_part_has_sources_and_sane_figures() -> None:
    for name, part in catalogue().items():
        assert part.sources, name
        assert part.memory_bytes > 1e9
        assert part.price[0] <= part.price[1] <= part.price[2]
        assert all(0.2 < ratio <= 1.0 for ratio in part.gemm_ratio.values())
        assert accelerator(name) is part
    assert accelerator("A100_80GB").name == "a100-80gb"


@pytest.mark.parametrize(
    "work", [{"tokens": 0}, {"seq": 0}, {"global_batch": -1}, {"precision": "bf8"}, {"tokens": 1e30}]
)
def test_absurd_work_is_refused(work: dict[str, object]) -> None:
    with pytest.raises(InputError):
        TrainSpec(**{"tokens": 1e9, "seq": 1024, "global_batch": 8, **work})  # type: ignore[arg-type]


def test_quantities_with_units() -> None:
    assert bandwidth("400Gbps") == bandwidth("50GB/s") == 50e9
    assert bandwidth("3.2Tbps") == 400e9
    assert size("80GiB") == 80 * 2**30
    assert count("2e12", "tokens") == 2 * 10**12
    for bad in ("fast", "400", "1e400Gbps"):
        with pytest.raises(InputError):
            bandwidth(bad)


def test_nothing_the_formulas_need_is_missing() -> None:
    assert missing_fields() == []


def test_diff_compares_saved_plans() -> None:
    a, b = (make_plan(GPT3, WORK, A100S, Layout(tp=t, pp=8, dp=512 // t)).data for t in (8, 4))
    entry = compare(json.loads(json.dumps(a)), json.loads(json.dumps(b)))
    assert entry["figures"]["step_seconds"]["before"] == pytest.approx(a["step"]["seconds"])
    with pytest.raises(InputError, match="not a plan"):
        compare({"a": 1}, b)


def test_the_command_plans_a_recipe_and_diffs(tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    recipe = str(RECIPES / "gpt3-175b-3d.yaml")
    saved = []
    for name, cluster in (("a", "a100-80gb:8x512"), ("b", str(CLUSTERS / "superpod-a100-8x512-ib1600.yaml"))):
        assert run_command(["plan", recipe, "--cluster", cluster, "--why", "--json"]) == 0
        out = capsysbinary.readouterr().out
        said = json.loads(out)
        assert said["layout"]["gpus"] == 4096
        assert said["why"]["gains"]
        saved.append(tmp_path / f"{name}.json")
        saved[-1].write_bytes(out)
    assert run_command(["plan", "diff", str(saved[0]), str(saved[1])]) == 0
    assert b"days_p50" in capsysbinary.readouterr().out
    page = tmp_path / "plan.html"
    assert run_command(["plan", recipe, "--report", str(page), "--emit", "recipe"]) == 0
    assert b"parallel:" in capsysbinary.readouterr().out
    assert run_command(["plan", recipe, "--emit", "recipe", "--json"]) == 0
    assert "parallel:" in json.loads(capsysbinary.readouterr().out)["text"]
    assert run_command(["plan", recipe, "--report", str(page)]) == 0
    assert page.read_text().startswith("<!doctype html>")


def test_the_command_plans_a_model_configuration(tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    config = {
        "model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32,
        "intermediate_size": 11008, "vocab_size": 32000,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    common = ["plan", str(tmp_path), "--cluster", "a100:8x8", "--json"]
    assert run_command([*common, "--tokens", "1e12", "--seq", "4096", "--batch", "1024"]) == 0
    assert json.loads(capsysbinary.readouterr().out)["model"]["parameters"] == 6_738_415_616
    assert run_command(common) == 2
    assert (
        run_command(["plan", str(tmp_path), "--cluster", "a100:8x0", "--tokens", "1", "--seq", "1", "--batch", "1"])
        == 2
    )
    assert run_command(["plan", str(RECIPES / "llama-7b.yaml"), "--cluster", "rtx4090:1x1"]) == 2
    assert b"nothing fits" in capsysbinary.readouterr().err


def test_hybrid_sharding_pays_for_the_sum_over_its_copies() -> None:
    inside = Layout(dp=64, zero=3, shard=8)
    fast, slow = (
        make_plan(SMALL, WORK_64, replace(A100S, nic_per_gpu=rate), inside).step_seconds for rate in (25e9, 1e9)
    )
    assert slow > fast * 1.05
    alone = make_plan(SMALL, replace(WORK_64, global_batch=64), A100S, Layout(dp=8, zero=3))
    assert alone.data["step"]["components"]["dp"] < 0.2 * alone.step_seconds


def test_compiling_is_faster_than_eager() -> None:
    layout = Layout(dp=64, zero=1)
    eager, compiled = (
        make_plan(SMALL, replace(WORK_64, stack=stack), A100S, layout).step_seconds
        for stack in ("headwater", "headwater-compiled")
    )
    assert compiled < eager
    with pytest.raises(InputError, match="unknown software stack"):
        make_plan(SMALL, replace(WORK_64, stack="abacus"), A100S, layout)


def test_the_plan_is_plain_json() -> None:
    data = make_plan(SMALL, WORK_64, A100S, Layout(dp=64)).data
    assert json.loads(json.dumps(data)) == json.loads(json.dumps(json.loads(json.dumps(data))))
    for key in ("model", "cluster", "memory", "step", "throughput", "days", "failures", "storage", "cost", "scaling"):
        assert key in data
    assert data["train"]["steps"] == WORK_64.steps


def test_context_parallelism_is_tried_for_long_sequences() -> None:
    work = TrainSpec(tokens=1e11, seq=131072, global_batch=64)
    found = search(SMALL, work, parse_cluster("h100:8x16"))
    assert found.layouts[0].cp > 1
    assert all(x.cp == 1 for x in search(SMALL, WORK_64, parse_cluster("h100:8x8")).layouts)


def test_gpus_whose_factors_the_batch_lacks_are_answered_with_a_batch_that_has_them() -> None:
    nvl72 = parse_cluster(CLUSTERS / "gb200-nvl72-4x72.yaml")
    thirteen = ModelSpec.from_fields(layers=40, hidden=5120, heads=40, ffn=13824, vocab=32000)
    none = search(thirteen, TrainSpec(1e12, 4096, 4096), nvl72)
    assert "a batch of 4,104 shares their factor 9" in none.miss
    assert search(thirteen, TrainSpec(1e12, 4096, 4104), nvl72).layouts
