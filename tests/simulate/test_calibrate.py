"""A machine file out of measurements, and runs and layouts held against the planner."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from headwater.cli.main import run_command
from headwater.core.errors import UserError
from headwater.model import ModelConfig
from headwater.parallel.config import ParallelConfig
from headwater.parallel.divisibility import tensor_problems
from headwater.parallel.stages import micro_batch_problem
from headwater.plan import ModelSpec, TrainSpec, make_plan, parse_cluster, search
from headwater.plan.export import recipe_section
from headwater.simulate.calibrate import as_yaml, fit_products, machine_of, predicted_step
from headwater.simulate.measure import PROBES, SHAPES, Rates


def rates(peak: float = 5e10, launch: float = 3e-6) -> Rates:
    products = {(m, n, k): 2.0 * m * n * k * (1 + 32 / k) / peak + launch for m, n, k in SHAPES}
    attention = {(8, 256, 6, 32): 3e-3, (2, 1024, 8, 64): 1.4e-2}
    return Rates(products, launch, attention, 1e10, 1e9, 2e-4, 5e8, 0.1)


def test_a_rate_and_a_prologue_are_found_in_timings() -> None:
    found = rates()
    assert fit_products(found.products, found.launch) == (pytest.approx(5e10, rel=1e-6), 32.0)


def test_a_machine_file_explains_the_steps_it_was_made_from(tmp_path: Path) -> None:
    """Constants that would give certain steps are recovered well enough to give them again."""
    start = machine_of(rates(), dict.fromkeys(PROBES, 0.1), "fp32", torch.device("cpu"))
    start["calibration"] |= {"elementwise_eager": 70.0, "kernel_gap": 2e-5, "host_step": 4e-3}
    steps = {probe: predicted_step(start, probe, "fp32") for probe in PROBES}
    machine = machine_of(rates(), steps, "fp32", torch.device("cpu"))
    for probe, seconds in steps.items():
        assert predicted_step(machine, probe, "fp32") == pytest.approx(seconds, rel=0.05)
    path = tmp_path / "machine.yaml"
    path.write_text(as_yaml(machine))
    cluster = parse_cluster(str(path))
    assert cluster.calibration["gemm_sustained"] == 1.0
    assert cluster.processor is not None
    assert cluster.processor.neighbours == 0.1


def test_an_unknown_constant_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    machine = machine_of(rates(), dict.fromkeys(PROBES, 0.1), "fp32", torch.device("cpu"))
    machine["calibration"]["speed"] = 1.0
    path = tmp_path / "machine.yaml"
    path.write_text(yaml.safe_dump(machine))
    recipe = Path(__file__).resolve().parents[2] / "recipes" / "quickstart.yaml"
    assert run_command(["plan", str(recipe), "--cluster", str(path), "--json"]) == 2
    assert "speed" in json.loads(capsys.readouterr().out)["error"]["what"]


def test_a_place_for_the_file_is_looked_at_before_measuring(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def measured(precision: str, device: torch.device, folder: Path) -> dict[str, Any]:
        assert folder.is_dir()
        raise UserError("measured")

    monkeypatch.setattr("headwater.simulate.calibrate.calibrate", measured)
    for output, said in ((tmp_path, "a folder"), (tmp_path / "new" / "deep" / "machine.yaml", "measured")):
        assert run_command(["plan", "calibrate", "--output", str(output), "--json"]) == 2
        assert said in json.loads(capsys.readouterr().out)["error"]["what"]


def test_a_run_is_put_beside_the_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The files of a run, with steps that take what the machine file says and one that was disturbed."""
    machine = machine_of(rates(), dict.fromkeys(PROBES, 0.05), "fp32", torch.device("cpu"))
    machine["processor"]["process_bytes"] = 500 << 20  # not what the process of these tests holds
    path = tmp_path / "machine.yaml"
    path.write_text(as_yaml(machine))
    probe = PROBES[1]
    model = ModelConfig(
        hidden_size=probe.hidden,
        num_hidden_layers=probe.layers,
        num_attention_heads=probe.heads,
        intermediate_size=probe.ffn,
        vocab_size=probe.vocab,
        max_position_embeddings=probe.seq,
    )
    seconds = predicted_step(machine, probe, "fp32")
    run = tmp_path / "run"
    run.mkdir()
    record = {
        "run": "tiny",
        "model": model.to_dict(),
        "train": {"global_batch": probe.rows, "seq_len": probe.seq, "steps": 20},
    }
    (run / "run.json").write_text(json.dumps(record))
    (run / "events.jsonl").write_text(
        json.dumps(
            {
                "event": "started",
                "precision": "fp32",
                "threads": 1,
                "micro_batch": probe.rows,
                "parallel": ParallelConfig().axes,
            }
        )
        + "\n"
    )
    each = probe.rows * probe.seq
    (run / "metrics.jsonl").write_text(
        "".join(
            json.dumps(
                {
                    "step": step,
                    "tokens": step * each,
                    "step_seconds": seconds * (9 if step == 7 else 1),
                    "mem_allocated": 700 << 20,
                }
            )
            + "\n"
            for step in range(1, 21)
        )
    )
    assert run_command(["plan", "compare", str(run), "--cluster", str(path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["ratio"]["step"] == pytest.approx(1.0, rel=0.02)
    assert 0.5 < found["ratio"]["memory"] < 1.5


@pytest.mark.parametrize("stack", ["headwater", "headwater-compiled"])
def test_what_search_calls_runnable_the_trainer_accepts(stack: str) -> None:
    model = ModelSpec.from_fields(layers=32, hidden=2048, heads=32, kv_heads=4, ffn=5632, vocab=32000)
    config = ModelConfig(
        hidden_size=2048,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=4,
        intermediate_size=5632,
        vocab_size=32000,
        max_position_embeddings=4096,
    )
    cluster = parse_cluster("a100-40gb:8x4")
    work = TrainSpec(tokens=1e11, seq=4096, global_batch=256, stack=stack)
    for knobs in ({}, {"pp": 4}, {"pp": 8, "recompute": 0.5}, {"tp": 4, "pp": 2}):
        for layout in search(model, work, cluster, knobs=knobs).layouts:
            section = recipe_section(make_plan(model, work, cluster, layout))
            parallel = ParallelConfig.model_validate(section["parallel"])
            assert parallel.ranks == 32
            assert list(tensor_problems(config, parallel, {"train.seq_len": 4096})) == []
            assert micro_batch_problem(parallel, 256 // parallel.data_parallel // layout.micro_batch) is None
            assert not (stack == "headwater-compiled" and parallel.schedule == "zbv")


def test_layers_computed_again_in_part_are_searched_and_said_in_the_recipe() -> None:
    model = ModelSpec.from_fields(layers=32, hidden=4096, heads=32, ffn=11008, vocab=32000)
    cluster = parse_cluster("a100-80gb:8x4")
    work = TrainSpec(tokens=1e11, seq=4096, global_batch=256)
    found = search(model, work, cluster, knobs={"recompute": "0.5", "pp": 1})
    plan = make_plan(model, work, cluster, found.layouts[0])
    assert plan.data["runnable"]["runnable"]
    section = recipe_section(plan)
    assert section["train"]["activation_checkpointing"] == "full"
    assert section["train"]["recompute"] == {"num_layers": 16}


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"dp_replicate": 2},
        {"dp_shard": 4, "zero_stage": 3, "dp_replicate": 2},
        {"tp": 2, "pp": 2, "schedule": "interleaved_1f1b", "virtual_stages": 2, "dp_shard": 2, "zero_stage": 1},
        {"pp": 4, "schedule": "zbv", "virtual_stages": 2, "cp": 2},
    ],
)
def test_a_layout_is_read_back_from_a_runs_record(fields: dict[str, object]) -> None:
    parallel = ParallelConfig.model_validate(fields)
    again = ParallelConfig.model_validate(json.loads(json.dumps(parallel.axes)))
    assert again == parallel
