"""A process's own memory and its messages, fitted to finished runs; and machine files that say impossible things."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.cli.main import run_command
from headwater.core.errors import InputError, UserError
from headwater.model import ModelConfig
from headwater.parallel.config import ParallelConfig
from headwater.plan import Layout, ModelSpec, TrainSpec, make_plan
from headwater.plan.cluster import from_config
from headwater.simulate.process import fit_line, with_messages, with_processor
from headwater.simulate.runs import Beside, compare_run, plan_of_run

MIB = float(1 << 20)


def machine(**processor: float) -> dict[str, Any]:
    """Two processors that share 16 GiB."""
    kinds = ("fp32", "bf16")
    return {
        "gpu": {
            "name": "measured",
            "peak": dict.fromkeys(kinds, 0.2),
            "memory_gb": 16.0,
            "memory_tbs": 0.03,
            "intra_gbs": 1.0,
            "units": 1,
            "gemm_ratio": dict.fromkeys(kinds, 1.0),
        },
        "gpus_per_node": 2,
        "nodes": 1,
        "nic_per_gpu": "1GB/s",
        "calibration": {"intra_efficiency": 1.0, "latency": 1e-3, "hop_latency": 1e-3},
        "processor": {"process_bytes": 400 * MIB, "attention_tile": 128, "attention_kept_keys": 1024, **processor},
        "notes": "measured with 1 threads in bf16",
    }


def finished(folder: Path, hidden: int, *, seconds: float = 1.0, held: float = 1e9, **parallel: int) -> Path:
    """The files of a run of ten steps."""
    model = ModelConfig(
        hidden_size=hidden,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=2 * hidden,
        vocab_size=4096,
        max_position_embeddings=256,
    )
    config = ParallelConfig.model_validate(parallel)
    folder.mkdir()
    record = {
        "run": folder.name,
        "model": model.to_dict(),
        "train": {"global_batch": 16, "seq_len": 256, "steps": 10},
    }
    started = {
        "event": "started",
        "precision": "bf16",
        "threads": 1,
        "micro_batch": 16 // config.data_parallel,
        "device": "cpu",
        "layout": config.describe(),
        "parallel": config.model_dump(mode="json"),
    }
    steps = [
        {"step": step, "tokens": step * 4096, "step_seconds": seconds, "mem_allocated": held} for step in range(1, 11)
    ]
    (folder / "run.json").write_text(json.dumps(record))
    (folder / "events.jsonl").write_text(json.dumps(started) + "\n")
    (folder / "metrics.jsonl").write_text("".join(json.dumps(step) + "\n" for step in steps))
    return folder


@given(
    start=st.floats(1e8, 1e9),
    share=st.floats(0.0, 1.0),
    sizes=st.lists(st.floats(1e8, 4e9), min_size=2, max_size=6, unique=True).filter(lambda x: max(x) > 1.1 * min(x)),
)
def test_a_line_of_residents_is_found_again(start: float, share: float, sizes: list[float]) -> None:
    points = [(size, start + (1.0 + share) * size) for size in sizes]
    found, kept = fit_line(points)
    assert found == pytest.approx(start, rel=1e-3, abs=1e5)
    assert kept == pytest.approx(share, abs=1e-3)


def test_tensors_that_take_less_than_their_size_are_noise_and_keep_no_share() -> None:
    start, share = fit_line([(1e8, 5.0e8), (1e9, 1.2e9)])
    assert share == 0.0
    assert 2e8 < start < 4e8


def test_one_size_is_no_line() -> None:
    with pytest.raises(UserError, match="one size"):
        fit_line([(1e8, 5e8), (1e8, 6e8)])


def test_runs_explain_what_a_process_takes(tmp_path: Path) -> None:
    """Residents made of a known start, share and extra of ranks give these back, and the runs are then predicted."""
    true = from_config(machine(allocator_share=0.2, rank_bytes=60 * MIB))
    runs = []
    for name, hidden, parallel in (("a", 64, {}), ("b", 256, {}), ("c", 128, {"dp_replicate": 2})):
        run = finished(tmp_path / name, hidden, **parallel)
        held = plan_of_run(run, true).plan.data["memory"]["device_bytes"]
        runs.append(finished(tmp_path / f"{name}2", hidden, held=held, **parallel))
    found = with_processor(machine(process_bytes=1e6), runs)["processor"]
    assert found["process_bytes"] == pytest.approx(400 * MIB, rel=1e-3)
    assert found["allocator_share"] == pytest.approx(0.2, abs=1e-3)
    assert found["rank_bytes"] == pytest.approx(60 * MIB, rel=1e-2)
    for run in runs:
        assert compare_run(run, from_config({**machine(), "processor": found})).memory_ratio == pytest.approx(
            1, rel=0.01
        )


def test_steps_of_ranks_explain_what_messages_cost(tmp_path: Path) -> None:
    slow = machine()
    slow["calibration"] = {"intra_efficiency": 0.3, "latency": 4e-3, "hop_latency": 4e-3}
    runs = []
    for name, parallel in (("data", {"dp_replicate": 2}), ("tensor", {"tp": 2})):
        run = finished(tmp_path / name, 128, **parallel)
        seconds = plan_of_run(run, from_config(slow)).plan.step_seconds
        runs.append(finished(tmp_path / f"{name}2", 128, seconds=seconds, **parallel))
    bare = [abs(compare_run(run, from_config(machine())).quiet_ratio - 1.0) for run in runs]
    fitted = with_messages(machine(), runs)
    cluster = from_config(fitted)
    assert max(bare) > 0.1
    assert all(abs(compare_run(run, cluster).quiet_ratio - 1.0) < 0.03 for run in runs)
    assert fitted["calibration"]["hop_latency"] == fitted["calibration"]["latency"]
    assert with_messages(machine(), [finished(tmp_path / "one", 64)]) == machine()


def test_ranks_on_one_machine_share_its_memory_and_slow_each_other() -> None:
    model = ModelSpec.from_fields(layers=4, hidden=256, heads=4, vocab=4096)
    work = TrainSpec(tokens=1e6, seq=256, global_batch=16, precision="bf16", stack="headwater")
    cluster = from_config(machine(neighbours=0.2))
    one, two = (make_plan(model, work, cluster, Layout(dp=dp, micro_batch=8)).data for dp in (1, 2))
    assert two["memory"]["capacity_bytes"] == one["memory"]["capacity_bytes"] / 2
    calm = make_plan(model, work, from_config(machine()), Layout(dp=2, micro_batch=8)).step_seconds
    assert two["step"]["seconds"] == pytest.approx(1.2 * calm, rel=1e-3)
    assert one["step"]["seconds"] == pytest.approx(
        make_plan(model, work, from_config(machine()), Layout(micro_batch=8)).step_seconds, rel=1e-9
    )


def test_probabilities_that_are_kept_are_counted_up_to_their_window() -> None:
    """A long window computes them again: beside a machine that never keeps them nothing differs there."""
    model = ModelSpec.from_fields(layers=4, hidden=256, heads=4, ffn=512, vocab=4096)
    held = {}
    for seq in (1024, 2048):
        work = TrainSpec(tokens=1e6, seq=seq, global_batch=1, precision="bf16", stack="headwater")
        keeps, never = (
            make_plan(model, work, from_config(machine(attention_kept_keys=most)), Layout()).data["memory"]
            for most in (1024, 0)
        )
        held[seq] = keeps["components"]["activations"] - never["components"]["activations"]
    tiles = sum(128 * end for end in range(128, 1025, 128))
    assert held[1024] == pytest.approx(4 * 4 * tiles * 2)
    assert held[2048] == 0


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"speed": 1.0}, "unknown field 'speed'"),
        ({"neighbours": -0.1}, "below 0"),
        ({"process_bytes": 0.0}, "process_bytes is not given"),
        ({"allocator_share": "20 %"}, "unit"),
        ({"neighbours": 1e300, "attention_tile": 1e300}, "more than a machine has"),
    ],
)
def test_an_impossible_processor_is_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        from_config(machine(**fields))


def test_a_run_on_a_cpu_is_not_compared_with_a_gpus_cluster(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = finished(tmp_path / "run", 64)
    assert run_command(["plan", "compare", str(run), "--cluster", "a100-80gb:8x1", "--json"]) == 2
    assert "what a process takes" in json.loads(capsys.readouterr().out)["error"]["what"]


@pytest.mark.parametrize(
    ("name", "key", "said"),
    [
        ("run.json", "model", "run.json: model is missing"),
        ("run.json", "train", "run.json: train is missing"),
        ("metrics.jsonl", "mem_allocated", "metrics.jsonl: mem_allocated is missing"),
        ("metrics.jsonl", "tokens", "metrics.jsonl: tokens is missing"),
        ("events.jsonl", "precision", "events.jsonl: precision is missing"),
        ("events.jsonl", "event", "no start is recorded"),
    ],
)
def test_a_damaged_record_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, key: str, said: str
) -> None:
    run = finished(tmp_path / "run", 64)
    path = run / name
    path.write_text(path.read_text().replace(f'"{key}"', '"lost"'))
    (tmp_path / "machine.yaml").write_text(json.dumps(machine()))
    assert run_command(["plan", "compare", str(run), "--cluster", str(tmp_path / "machine.yaml"), "--json"]) == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert said in f"{error['where']}: {error['what']}"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with its parent")
def test_a_killed_calibration_leaves_no_training_behind(tmp_path: Path) -> None:
    code = f"""
from pathlib import Path
from headwater.cli.plan_measured import own_runs
own_runs(Path({str(tmp_path)!r}), "bf16", 1)
"""
    parent = subprocess.Popen([sys.executable, "-c", code])
    children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children")
    wait_until(lambda: children.read_text().split() != [])
    (child,) = children.read_text().split()
    parent.kill()
    parent.wait()
    wait_until(lambda: state_of(child) in ("gone", "Z"), seconds=1.0)  # by itself it would take several


def wait_until(true: Callable[[], bool], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def state_of(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return "gone"


@pytest.mark.soak
def test_this_machines_runs_are_predicted_within_a_tenth_of_their_memory(tmp_path: Path) -> None:
    """The real thing, two minutes: calibrate, train another model, compare. Time is not held: others may be at work."""
    from headwater.cli.plan_measured import LARGE, own_runs

    path = tmp_path / "machine.yaml"
    assert run_command(["plan", "calibrate", "--output", str(path), "--precision", "bf16", "--quiet"]) == 0
    runs = own_runs(tmp_path, "bf16", 1, {"between": ((192, 6, 6, 512), {}), "again": (LARGE, {})})
    import yaml

    cluster = from_config(yaml.safe_load(path.read_text()))
    ratios = [compare_run(run, cluster).memory_ratio for run in runs]
    assert np.abs(np.array(ratios) - 1.0).max() < 0.1, ratios


def test_what_a_person_reads_has_no_exponent() -> None:
    text = Beside("run", 15, 0.2212, 0.3922, 0.3736, 4096, 533.1 * 2**20, 611.8 * 2**20, []).text()
    assert "18,517" in text
    assert "10,444" in text
    assert "e+0" not in text
