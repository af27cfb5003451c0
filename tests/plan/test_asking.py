"""What a reader may ask of a plan: changes, held knobs, limits; what is absurd is refused with its mend."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headwater.cli.main import run_command
from headwater.core.errors import InputError
from headwater.plan import Layout, ModelSpec, TrainSpec, compare, make_plan, parse_cluster, search, what_if
from headwater.plan.cluster import from_config
from headwater.plan.explain import gains
from headwater.plan.plan import Plan

MODEL = ModelSpec.from_fields(layers=32, hidden=4096, heads=32, kv_heads=8, ffn=14336, vocab=32000)
WORK = TrainSpec(tokens=1e11, seq=4096, global_batch=512)
NODES_8 = parse_cluster("a100-80gb:8x8")
RECIPE = str(Path(__file__).resolve().parents[2] / "recipes" / "llama-7b.yaml")


def small(**layout: Any) -> Plan:
    return make_plan(MODEL, WORK, NODES_8, Layout(**{"dp": 64, "zero": 3, "shard": 8, **layout}))


@pytest.mark.parametrize(
    "text",
    ["seq=-4096", "global_batch=-1e9", "price=-5", "mtbf=-1e9", "tokens=-1e30", "nodes=-8", "nic_per_node=-2Tbps",
     "nodes=x0.3", "nodes=1e30", "seq=x0", "price=nan", "nic_per_gpu=50", "storage=+0.5"],
)  # fmt: skip
def test_a_change_to_nothing_or_nonsense_is_refused_with_a_mend(text: str) -> None:
    with pytest.raises(InputError) as error:
        what_if(small(), text)
    assert error.value.mend


def test_a_bandwidth_is_added_and_taken_away_with_its_unit() -> None:
    plan = small()
    before = plan.cluster.nic_per_gpu * 8 * 8 / 1e9
    for text, factor in (("+400Gbps", before + 400), ("-400Gbps", before - 400), ("x2", 2 * before)):
        after = what_if(plan, f"nic_per_node={text}")[0]["after"]["cluster"]
        assert after.endswith(f"{factor:.0f} Gb/s a node")


def test_a_batch_that_a_change_moves_stays_near_and_serves_the_gpus_as_before() -> None:
    plan = make_plan(MODEL, TrainSpec(1e11, 4096, 4096), NODES_8, Layout(dp=64, zero=3, shard=8))
    for text, batch in (("nodes=+4", 4224), ("nodes=+8", 4096), ("seq=5000", 3328), ("seq=32768", 512)):
        entry = what_if(plan, text)[0]
        assert entry["after"]["work"].startswith(f"{batch:,} x"), text
        assert 0.85 < entry["figures"]["tokens_per_second_per_gpu"]["ratio"] < 1.1 or text == "seq=32768"


def test_a_held_number_of_nodes_does_not_undo_a_change_of_nodes() -> None:
    entry = what_if(small(), "nodes=+8", {"nodes": 8})[0]
    assert entry["after"]["cluster"].startswith("128 x")


def test_a_layout_that_is_kept_is_kept_and_the_best_of_each_side_stands_beside() -> None:
    plan = small(zero=1, shard=64, recompute_light=True)
    for entry in what_if(plan, "gpu=h100|nodes=+8|seq=8192", keep_layout=True):
        assert ("dp 128" in entry["after"]["layout"]) == entry["change"].startswith("nodes")
        assert "ZeRO 1, micro-batch 1, recompute selective" in entry["after"]["layout"]
        best = entry["each_at_its_best"]["figures"]["days_p50"]
        assert best["after"] <= entry["figures"]["days_p50"]["after"] * (1 + 1e-9)


def test_the_gain_of_a_knob_is_what_turning_it_gives() -> None:
    """Each knob of the list is turned by hand, and nothing else with it: hybrid sharding stays hybrid."""
    plan = small(tp=2, dp=32, zero=2, shard=4, micro_batch=2)
    held = {"tp": 2, "dp": 32, "zero": 2, "shard": 4, "micro_batch": 2}
    by_hand: dict[str, dict[str, Any]] = {
        "micro-batch 4": {"micro_batch": 4},
        "micro-batch 1": {"micro_batch": 1},
        "tp 1, dp 64": {"tp": 1, "dp": 64},
        "tp 4, dp 16": {"tp": 4, "dp": 16},
        "ZeRO 1 over 4": {"zero": 1},
        "ZeRO 3 over 4": {"zero": 3},
        "ZeRO 2 over 32": {"shard": 32},
        "full recompute": {"recompute": 1.0},
    }
    printed = {gain["knob"]: gain for gain in gains(plan)}
    for knob, change in by_hand.items():
        other = make_plan(MODEL, WORK, NODES_8, Layout(**{**held, **change}))
        assert printed[knob]["gain"] == pytest.approx(plan.step_seconds / other.step_seconds - 1.0), knob
        assert printed[knob]["fits"] == other.fits
    assert printed["train.compile"]["gain"] > 0


@pytest.mark.parametrize(
    ("knobs", "said"),
    [
        ({"zero": 7}, "zero is 7"),
        ({"zero": -1}, "zero is -1"),
        ({"shard": 0}, "shard is 0"),
        ({"dp": -2}, "dp is -2"),
        ({"nodes": 9}, "9 nodes of 8"),
    ],
)
def test_an_absurd_knob_is_refused(knobs: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said) as error:
        search(MODEL, WORK, NODES_8, knobs=knobs)
    assert error.value.mend


def test_held_knobs_are_held_by_every_layout_that_is_found() -> None:
    """Also those that a layout without a pipeline does not have."""
    for knobs in ({"chunks": 2}, {"schedule": "zbv"}, {"shard": 16}, {"zero": 2, "shard": 8}, {"schedule": "1f1b"}):
        found = search(MODEL, WORK, NODES_8, knobs=knobs).layouts
        assert found
        for layout in found:
            assert {name: getattr(layout, name) for name in knobs} == knobs


def test_a_knob_that_does_not_divide_is_named_with_what_it_does_not_divide() -> None:
    assert "tp 3 does not divide 64 GPUs" in search(MODEL, WORK, NODES_8, knobs={"tp": 3}).miss
    assert "micro_batch 1000 does not divide 512" in search(MODEL, WORK, NODES_8, knobs={"micro_batch": 1000}).miss
    assert "pp 64 is more than 32 layers" in search(MODEL, WORK, NODES_8, knobs={"pp": 64}).miss
    seven = search(MODEL, TrainSpec(1e11, 4096, 7), NODES_8)
    assert "a batch of 64 has a sample for each" in seven.miss
    assert search(MODEL, TrainSpec(1e11, 4096, 64), NODES_8).layouts


PART = {"name": "mine", "peak": {"bf16": 100.0}, "memory_gb": 32, "memory_tbs": 1.0, "intra_gbs": 50}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"gpu": {**PART, "peak": {"bf16": float("nan")}}}, "nan is not a number"),
        ({"gpu": {**PART, "peak": {"bf16": 1e30}}}, "not above zero and at most"),
        ({"gpu": {**PART, "peak": 100}}, "100"),
        ({"gpu": {**PART, "peak": {"bf17": 100}}}, "bf17"),
        ({"gpu": {**PART, "memory_gb": 1e30}}, "not above zero and at most"),
        ({"gpu": {**PART, "memory_gb": "much"}}, "not a number"),
        ({"gpu": {**PART, "memory_gb": -80}}, "not above zero"),
        ({"gpu": {**PART, "colour": "red"}}, "unknown field 'colour'"),
        ({"gpu": {**PART, "price": 3}}, "low, middle, high"),
        ({"gpu": {**PART, "gemm_ratio": {"bf16": 2}}}, "at most 1"),
        ({"gpu": {**PART, "units": 0}}, "not above zero"),
        ({"all_in": 3}, "not low and high"),
        ({"all_in": [3]}, "not low and high"),
        ({"all_in": [5, 3]}, "rising order"),
        ({"pue": 0.5}, "below 1"),
        ({"gpu_mtbf_hours": 1e30}, "between failures"),
        ({"gpu_mtbf_hours": 1e-9}, "between failures"),
        ({"nvlink_domain": 1e9}, "share fast links"),
        ({"calibration": {"straggler": "much"}}, "not a number"),
        ({"calibration": {"straggler": float("nan")}}, "not a number"),
    ],
)
def test_absurd_machines_are_refused_with_a_mend(fields: dict[str, object], said: str) -> None:
    with pytest.raises(InputError, match=said) as error:
        from_config({"gpu": "a100", "gpus_per_node": 8, "nodes": 4, **fields})
    assert error.value.mend


@pytest.mark.parametrize(
    "broken",
    [[], {"step": 3}, {"step": {"seconds": "soon"}}, {"step": {"seconds": None}}, "plan"],
)
def test_what_is_no_plan_is_not_compared(broken: Any) -> None:
    with pytest.raises(InputError, match="not a plan"):
        compare(small().data, broken)


@pytest.mark.parametrize("gone", ["train", "model", "cluster", "layout"])
def test_a_plan_that_lacks_a_part_is_not_compared(gone: str) -> None:
    whole = small().data
    with pytest.raises(InputError, match="not a plan"):
        compare(whole, {name: part for name, part in whole.items() if name != gone})


def test_plans_of_different_work_say_so_when_they_are_compared(
    tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    paths = []
    for seq in (2048, 4096):
        plan = make_plan(MODEL, TrainSpec(1e11, seq, 512), NODES_8, Layout(dp=64))
        paths.append(tmp_path / f"{seq}.json")
        paths[-1].write_text(json.dumps(plan.data))
    assert run_command(["plan", "diff", *map(str, paths)]) == 0
    said = capsysbinary.readouterr().out.decode()
    assert "512 x 2,048 tokens a step" in said
    assert "512 x 4,096 tokens a step" in said


def test_an_empty_option_is_a_mistake_and_not_the_recipe_s_own(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    for option in (["--cluster", ""], ["--stack", ""], ["--deadline", "inf"], ["--budget", "nan"]):
        assert run_command(["plan", RECIPE, *option]) == 2, option
        assert b"mend:" in capsysbinary.readouterr().err


def test_a_report_is_written_into_new_folders_and_not_over_one(
    tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    page = tmp_path / "new" / "page.html"
    assert run_command(["plan", RECIPE, "--report", str(page), "--quiet"]) == 0
    assert page.read_text().startswith("<!doctype html>")
    capsysbinary.readouterr()
    assert run_command(["plan", RECIPE, "--report", str(tmp_path), "--quiet"]) != 0
    said = capsysbinary.readouterr().err
    assert str(tmp_path).encode() in said
    assert b"a fault in Headwater" not in said
