"""How a table of published runs may be spelled, and what is read from a row's own words."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headwater.plan.coefficients import load
from headwater.plan.evaluate import evaluate, main
from headwater.plan.hardware import accelerator
from headwater.plan.intervals import Source, half_width
from headwater.plan.published import prepare
from headwater.plan.published_software import network, software, stated_network
from headwater.plan.published_table import Row, read_table, spelled
from headwater.plan.rows import build, predict

ROWS = read_table()[::9]  # every family of more than a few rows


def text_of(rows: list[Row], delimiter: str = ",", quoting: int = csv.QUOTE_MINIMAL, end: str = "\n") -> str:
    out = io.StringIO()
    writer = csv.DictWriter(out, list(rows[0]), delimiter=delimiter, quoting=quoting, lineterminator=end)  # type: ignore[arg-type]
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


@pytest.fixture(scope="module")
def score(tmp_path_factory: pytest.TempPathFactory) -> Callable[[bytes, pytest.CaptureFixture[str]], dict[str, Any]]:
    path = tmp_path_factory.mktemp("spelled") / "table.csv"

    def figures(data: bytes, said: pytest.CaptureFixture[str]) -> dict[str, Any]:
        path.write_bytes(data)
        assert main([str(path), "--json"]) == 0
        return json.loads(said.readouterr().out)

    return figures


def changed(column: str, words: dict[str, str]) -> list[Row]:
    return [{**row, column: words.get(row[column], row[column])} for row in ROWS]


GATES = {"1": "yes", "0": "no"}
OTHER = {
    "a mark of UTF-8": lambda: ("\ufeff" + text_of(ROWS)).encode(),
    "lines of Windows": lambda: text_of(ROWS, end="\r\n").encode(),
    "everything quoted": lambda: text_of(ROWS, quoting=csv.QUOTE_ALL).encode(),
    "semicolons": lambda: text_of(ROWS, delimiter=";").encode(),
    "tabs": lambda: text_of(ROWS, delimiter="\t").encode(),
    "columns the other way round": lambda: text_of([dict(reversed(row.items())) for row in ROWS]).encode(),
    "a column of its own": lambda: text_of([{**row, "comment": 'a, "b"'} for row in ROWS]).encode(),
    "lines without a cell": lambda: (text_of(ROWS) + "," * (len(ROWS[0]) - 1) + "\n\n").encode(),
    "capital headings": lambda: text_of([{k.upper(): v for k, v in row.items()} for row in ROWS]).encode(),
    "spaces around cells": lambda: text_of([{k: f" {v} " for k, v in row.items()} for row in ROWS]).encode(),
    "capital answers": lambda: text_of(
        [{k: v.upper() if k not in ("notes", "row_id") else v for k, v in row.items()} for row in ROWS]
    ).encode(),
    "long precisions": lambda: text_of(
        changed("precision", {"bf16": "bfloat16", "fp16": "amp_fp16", "fp8": "FP8-CS", "mxfp8": "FP8-MX"})
    ).encode(),
    "stages in words": lambda: text_of(
        changed("zero_stage", {"0": "none", "1": "ZeRO-1", "2": "stage 2", "3": "FSDP"})
    ).encode(),
    "schedules in words": lambda: text_of(
        changed("schedule", {"1f1b-interleaved": "Interleaved 1F1B", "zb-2p": "ZB_2P", "1f1b": "PipeDream-Flush"})
    ).encode(),
    "yes and no": lambda: text_of(
        [{**row, "gated_mlp": GATES.get(row["gated_mlp"], "")} for row in changed("recompute", {"none": "No"})]
    ).encode(),
    "percent signs": lambda: text_of(
        [{**row, "measured_mfu": f"{float(row['measured_mfu']) * 100}%" if row["measured_mfu"] else ""} for row in ROWS]
    ).encode(),
}  # fmt: skip


@pytest.fixture(scope="module")
def plain(score: Any) -> dict[str, Any]:
    table = build(ROWS, ROWS + read_table())
    return evaluate(table, predict(table, load()))


@pytest.mark.parametrize("name", OTHER)
def test_a_table_in_another_spelling_scores_the_same(
    name: str, score: Any, plain: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    figures = score(OTHER[name](), capsys)
    for key in ("rows_total", "rows_scored", "pooled_median_abs_error", "p90_abs_error", "false_fits"):
        assert figures[key] == pytest.approx(plain[key], rel=1e-6), key
    assert figures["memory_device_median_abs_error"] == pytest.approx(plain["memory_device_median_abs_error"])
    assert figures["interval_coverage"] == pytest.approx(plain["interval_coverage"])


def test_an_answer_that_is_none_of_its_column_is_left_out_and_said() -> None:
    row = {**ROWS[0], "precision": "posit16", "schedule": "spiral"}
    ready = prepare(row, [])
    assert ready.variants
    assert ready.assumed[:2] == [
        "precision: 'posit16' is none that is known",
        "schedule: 'spiral' is none that is known",
    ]


def test_a_table_without_grades_is_scored() -> None:
    table = build([{**row, "grade": ""} for row in ROWS], [])
    assert table.scored.sum() >= build(ROWS, []).scored.sum() > 0


@pytest.mark.parametrize(
    ("words", "rate"),
    [
        ("InternEvo; 4 x 100Gb RoCE a node", 6.25e9),
        ("interconnect 1600 Gbps RoCE/node", 25e9),
        ("400Gb/s RDMA per GPU", 50e9),
        ("3.2 Tbps per node", 50e9),
        ("a100 400gbps per node", 6.25e9),
        ("200 Gb/s per node; 4 GPUs a node", 6.25e9),
        ("intra 150 GB/s per node", None),
        ("batch 5 per GPU", None),
    ],
)
def test_the_network_is_read_where_a_row_states_it(words: str, rate: float | None) -> None:
    row = {**ROWS[0], "notes": words}
    assert stated_network(row) == rate
    part = accelerator("a100-80gb")
    assert network({**row, "family": "bloom-sweep"}, part) == (rate or 3.1e9)


def test_software_that_a_row_names_is_taken_and_else_the_usual_one_is_said() -> None:
    blank = dict.fromkeys(ROWS[0], "")
    part, assumed = accelerator("h100"), list[str]()
    for source, notes, name in (
        ("NVIDIA NeMo 25.02", "", "nemo"),
        ("torchtitan", "eager", "fsdp-eager"),
        ("torchtitan", "torch.compile", "fsdp-compiled"),
        ("a lab's report", "FSDP (no compile)", "fsdp-eager"),
        ("llm-foundry table", "", "llm-foundry"),
    ):
        row = spelled({**blank, "family": "new", "source": source, "notes": notes, "zero_stage": "3"}, [])
        assert software(row, part, assumed).name == name
    assert assumed == []
    assert software(spelled({**blank, "family": "new", "source": "a paper"}, []), part, assumed).name == "megatron-core"
    assert assumed == ["software: megatron-core, the usual one"]


def test_the_interval_is_wider_for_a_source_never_seen_and_widest_for_software_that_is_guessed() -> None:
    known = next(row for row in read_table() if row["family"] == "nemo-2407")
    nameless = {**known, "family": "another", "source": "", "source_ref": "", "notes": ""}
    table = build([known, {**known, "family": "another"}, nameless], [])
    predicted = predict(table, load())
    assert list(predicted.source) == [Source.SEEN, Source.NAMED, Source.GUESSED]
    seen, named, guessed = half_width(predicted.features, predicted.source)
    assert named > 1.1 * seen
    assert guessed > 1.5 * named


def test_a_gate_and_a_second_table_follow_from_the_parameters() -> None:
    llama = next(row for row in read_table() if row["model"] == "LLAMA3_70B" and row["grade"] == "A")
    gpt = next(row for row in read_table() if row["family"] == "megatron-sc21-t1")
    for row, gated, tied in ((llama, 1.0, 0.0), (gpt, 0.0, 1.0)):
        ready = prepare({**row, "gated_mlp": ""}, [])
        assert (ready.variants[0]["gated"], ready.variants[0]["tied"]) == (gated, tied)
        assert f"gated_mlp={gated:.0f} from parameters" in ready.assumed
    nemotron = {**gpt, "layers": "32", "hidden": "6144", "heads": "48", "kv_heads": "8", "ffn": "24576"}
    untied = prepare({**nemotron, "vocab": "256000", "params_b": "15.6", "gated_mlp": "0"}, []).variants[0]
    assert untied["tied"] == 0.0


def test_selective_checkpointing_of_every_second_layer_is_not_searched() -> None:
    row = next(row for row in read_table() if row["family"] == "ibm-fms" and row["recompute"] == "selective")
    assert len({v["recompute"] for v in prepare(row, []).variants}) == 3
    half = prepare({**row, "notes": "selective AC = every second layer"}, []).variants
    assert {v["recompute"] for v in half} == {0.5}


def test_a_row_of_zero_memory_has_none(tmp_path: Path) -> None:
    table = build([{**ROWS[0], "memory_gb": "0"}], [])
    assert np.isfinite(predict(table, load()).throughput).all()
    path = tmp_path / "t.csv"
    path.write_text(text_of([{**ROWS[0], "memory_gb": "0"}]))
    assert main([str(path), "--json"]) == 0
