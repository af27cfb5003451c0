"""Accuracy on published runs: the figures the planner promises, by the script anyone can run."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.core.errors import InputError
from headwater.plan.cases import DEFAULTS, NAMES
from headwater.plan.coefficients import load, raw
from headwater.plan.evaluate import COLUMNS, evaluate, main, spearman
from headwater.plan.hardware import accelerator
from headwater.plan.published import measured_throughput, prepare
from headwater.plan.published_table import NEEDED, read_table
from headwater.plan.rows import build, predict


@pytest.fixture(scope="module")
def figures() -> dict[str, Any]:
    rows = read_table()
    table = build(rows, rows)
    return evaluate(table, predict(table, load()))


def test_throughput_of_dense_runs_is_met(figures: dict[str, Any]) -> None:
    assert figures["rows_scored"] >= 540
    assert figures["pooled_median_abs_error"] <= 0.06
    assert figures["mean_of_family_medians"] <= 0.10
    assert figures["p90_abs_error"] <= 0.25
    assert figures["korthikanti_zb_median_abs_error"] <= 0.04
    assert figures["sc21_median_abs_error"] <= 0.08
    assert figures["moe_median_abs_error"] <= 0.20


def test_memory_is_met_and_nothing_that_ran_out_is_said_to_fit(figures: dict[str, Any]) -> None:
    assert figures["memory_allocated_median_abs_error"] <= 0.03
    assert figures["memory_device_median_abs_error"] <= 0.10
    assert figures["false_fits"] == 0
    assert figures["false_oom"] <= 0.05 * figures["rows_total"]


def test_the_interval_holds_about_eighty_percent(figures: dict[str, Any]) -> None:
    assert 0.70 <= figures["interval_coverage"] <= 0.90


def test_faster_layouts_are_ranked_faster(figures: dict[str, Any]) -> None:
    assert figures["spearman_median"] >= 0.85


def test_no_dense_row_with_a_layout_is_left_out() -> None:
    rows = read_table()
    for row in rows:
        layout = all(row[key] for key in ("tp", "pp", "dp", "n_gpus", "hidden", "seq", "global_batch"))
        if layout and row["grade"] in ("A", "B") and not row["moe_experts"]:
            assert prepare(row, rows).skipped == "", row["row_id"]


def test_constants_are_few_and_none_belongs_to_a_family() -> None:
    table = raw()["coefficients"]
    assert len(table) <= 40
    families = {row["family"] for row in read_table()}
    assert not any(family in name for family in families for name in table)
    for entry in table.values():
        assert entry["meaning"]
        assert entry["source"]
        assert entry["value"] <= entry.get("limit", np.inf)


def test_reported_tflops_and_tokens_agree_where_both_are_given() -> None:
    """Where a source gives tokens/s and TFLOPS, converting by its convention gives back its tokens/s."""
    rows = read_table()
    ratios: dict[str, list[float]] = {}
    for row in rows:
        if row["tokens_per_s_per_gpu"] and row["measured_tflops_per_gpu"] and not row["moe_experts"]:
            ready = prepare(row, rows)
            if not ready.variants or row["grade"] == "C":
                continue
            blind = {**row, "tokens_per_s_per_gpu": "", "step_time_s": ""}
            from_tflops = measured_throughput(blind, ready.variants[0])
            assert from_tflops is not None
            ratios.setdefault(row["family"], []).append(from_tflops / float(row["tokens_per_s_per_gpu"]))
    medians = {family: float(np.median(values)) for family, values in ratios.items()}
    for family in ("llm-foundry", "nemo-2407", "megascale", "megatron-bridge", "bloom-sweep", "megatron-2020"):
        assert medians[family] == pytest.approx(1.0, abs=0.06), medians


def test_a_row_gives_every_field_the_formulas_need() -> None:
    rows = read_table()
    ready = prepare(rows[0], rows)
    assert set(ready.variants[0]) == set(NAMES) - set(DEFAULTS)


def test_a_mangled_row_is_left_out_with_its_reason_and_the_rest_is_scored(tmp_path: Path) -> None:
    rows = read_table()[:40]
    broken = [{**rows[0], "gpu_type": "Abacus-9"}, {**rows[1], "hidden": ""}, {**rows[2], "tp": "two"}]
    path, out = tmp_path / "t.csv", tmp_path / "o.csv"
    with path.open("w", newline="") as handle:
        writer = csv.DictWriter(handle, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows([*broken, *rows[3:]])
    assert main([str(path), "--rows", str(out)]) == 0
    lines = list(csv.DictReader(out.open()))
    assert len(lines) == 40
    skipped = {line["row_id"]: line["skipped"] for line in lines if line["skipped"]}
    assert len(skipped) == 3
    assert "Abacus-9" in skipped[rows[0]["row_id"]]


def test_parameters_too_few_for_a_layer_give_a_reason_and_no_negative_time() -> None:
    row = dict(read_table()[0]) | {"model": "", "layers": "", "hidden": "4096", "params_b": "0.05"}
    assert prepare(row, []).skipped == "0.05 billion parameters are too few for layers of 4096"


def test_the_command_prints_the_promised_keys_and_columns(tmp_path: Path) -> None:
    rows = read_table()[:30]
    path, out = tmp_path / "t.csv", tmp_path / "o.csv"
    with path.open("w", newline="") as handle:
        writer = csv.DictWriter(handle, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    done = subprocess.run(
        [sys.executable, "-m", "headwater.plan.evaluate", str(path), "--json", "--rows", str(out)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    said = json.loads(done.stdout)
    for key in (
        "rows_scored", "pooled_median_abs_error", "mean_of_family_medians", "p90_abs_error",
        "memory_allocated_median_abs_error", "memory_device_median_abs_error", "false_fits", "interval_coverage",
        "korthikanti_zb_median_abs_error", "sc21_median_abs_error", "spearman_median", "families",
    ):  # fmt: skip
        assert key in said
    line = next(csv.DictReader(out.open()))
    assert tuple(line) == COLUMNS
    low, high = float(line["low_tokens_per_s_per_gpu"]), float(line["high_tokens_per_s_per_gpu"])
    assert low < float(line["predicted_tokens_per_s_per_gpu"]) < high


def test_a_missing_table_is_the_user_s_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["/nowhere/at/all.csv"]) == 2
    assert "no such table" in capsys.readouterr().err


def test_spearman_knows_order_and_ties() -> None:
    assert spearman([1, 2, 3], [10, 20, 30]) == pytest.approx(1.0)
    assert spearman([1, 2, 3], [3, 2, 1]) == pytest.approx(-1.0)
    assert spearman([1, 1, 2], [5, 5, 9]) == pytest.approx(1.0)
    assert spearman([1, 1], [2, 3]) == 0.0


def test_blanks_in_any_column_leave_a_finite_prediction_or_a_reason() -> None:
    rows = read_table()
    draw = np.random.default_rng(3)
    columns = [
        "layers", "heads", "kv_heads", "ffn", "vocab", "micro_batch", "global_batch", "zero_stage", "recompute",
        "precision", "vpp", "cp", "ep", "gated_mlp", "schedule", "tflops_kind", "moe_topk", "seq", "dp", "notes",
    ]  # fmt: skip
    mangled = []
    for index in draw.choice(len(rows), 150, replace=False):
        change = {key: str(draw.choice(["", "nan", "1", "7", "abc"])) for key in draw.choice(columns, 3)}
        mangled.append({**rows[index], **change})
    table = build(mangled, rows)
    throughput = predict(table, load()).throughput
    assert np.isfinite(throughput).all()
    assert (throughput > 0).all()
    assert all(row.skipped for row in table.skipped)
    assert len(table.rows) + len(table.skipped) == 150


ODD = ("", "0", "-1", "nan", "inf", "abc", "1e99", "2.5", "None", "N/A", "1,024", "8x", "full", "TPUv4", "T4", "bf16")


@given(
    changes=st.lists(
        st.tuples(st.integers(0, 11), st.sampled_from(sorted(read_table()[0])), st.sampled_from(ODD)), max_size=25
    ),
    dropped=st.sets(st.sampled_from(sorted(set(read_table()[0]) - NEEDED)), max_size=12),
)
@settings(max_examples=25, deadline=None)
@pytest.mark.filterwarnings("error")
def test_odd_cells_and_missing_columns_are_predicted_or_skipped_with_a_reason(
    changes: list[tuple[int, str, str]], dropped: set[str]
) -> None:
    rows = [dict(row) for row in read_table()[::60][:12]]
    for place, column, value in changes:
        rows[place][column] = value
    kept = [name for name in rows[0] if name not in dropped]
    with tempfile.TemporaryDirectory() as folder:
        path, out = Path(folder) / "odd.csv", Path(folder) / "rows.csv"
        with path.open("w", newline="") as handle:
            writer = csv.DictWriter(handle, [*kept, "comment"], extrasaction="ignore", restval="x")
            writer.writeheader()
            writer.writerows(rows)
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as said:
            code = main([str(path), "--json", "--rows", str(out)])
        if code:
            assert (code, "none of 12 rows can be predicted" in said.getvalue()) == (2, True)
            return
        with out.open() as handle:
            lines = list(csv.DictReader(handle))
    assert len(lines) == 12
    assert all(line["skipped"] or float(line["predicted_tokens_per_s_per_gpu"]) > 0 for line in lines)


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("NVIDIA H100 80GB HBM3", "h100-80gb"),
        ("NVIDIA A100-SXM4-40GB", "a100-40gb"),
        ("A100 80GB PCIe", "a100-pcie-80gb"),
        ("Tesla V100-SXM2-32GB", "v100-32gb"),
        ("NVIDIA H20", "h20-96gb"),
        ("GB200 NVL72", "gb200-186gb"),
        ("AMD Instinct MI250X", "mi250x-64gb"),
        ("MI300X-192GB", "mi300x-192gb"),
        ("TPU v4", "tpu-v4"),
        ("Ascend 910B", "ascend-910b"),
        ("Ascend910C", "ascend-910c"),
        ("RTX 4090", "rtx4090-24gb"),
        ("Gaudi 3", "gaudi3-128gb"),
        ("8 x A100-80G", "a100-80gb"),
        ("DGX A100 (40GB)", "a100-40gb"),
        ("HGX H100", "h100-80gb"),
        ("A100-PCIE-40GB", "a100-pcie-40gb"),
        ("RTX A6000", "a6000-48gb"),
    ],
)
def test_a_part_is_found_however_its_name_is_spelt(name: str, part: str) -> None:
    assert accelerator(name).name == part


def test_a_part_of_another_size_is_not_taken_for_it() -> None:
    with pytest.raises(InputError, match="unknown accelerator"):
        accelerator("H100 64GB")
