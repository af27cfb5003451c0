"""The record of a run: complete after a kill, cut back exactly on a resume, readable whatever happened to it."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.monitor import METRICS, MetricsRecord, cut_after, read_metrics
from headwater.monitor.averages import MovingAverage


def write(path: Path, steps: range) -> None:
    with MetricsRecord(path) as record:
        for step in steps:
            record.append({"step": step, "loss": 1.0 / step})


def test_a_line_is_there_as_soon_as_it_is_appended_even_after_a_kill(tmp_path: Path) -> None:
    code = f"""
import os
from pathlib import Path
from headwater.monitor import MetricsRecord
record = MetricsRecord(Path({str(tmp_path / "m.jsonl")!r}))
for step in range(1, 501):
    record.append({{"step": step, "loss": 2.5}})
os.kill(os.getpid(), 9)
"""
    done = subprocess.run([sys.executable, "-c", code], check=False)
    assert done.returncode == -9
    assert [row["step"] for row in read_metrics(tmp_path / "m.jsonl")] == list(range(1, 501))


def test_values_that_json_does_not_know_are_written_as_words(tmp_path: Path) -> None:
    with MetricsRecord(tmp_path / "m.jsonl") as record:
        record.append({"step": 1, "loss": math.nan, "grad_norm": math.inf, "val_loss": {"all": -math.inf}})
    row = next(read_metrics(tmp_path / "m.jsonl"))
    assert (row["loss"], row["grad_norm"], row["val_loss"]["all"]) == ("NaN", "Infinity", "-Infinity")


@pytest.mark.parametrize("every", [1, 5])
def test_a_cut_leaves_exactly_the_lines_up_to_the_step(tmp_path: Path, every: int) -> None:
    path = tmp_path / "m.jsonl"
    write(path, range(every, 101, every))
    whole = path.read_bytes()
    assert cut_after(path, 42) == len([s for s in range(every, 101, every) if s > 42])
    assert [row["step"] for row in read_metrics(path)] == [s for s in range(every, 101, every) if s <= 42]
    assert whole.startswith(path.read_bytes())
    assert cut_after(path, 42) == 0


def test_a_cut_removes_a_torn_line_and_what_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    write(path, range(1, 11))
    with open(path, "ab") as file:
        file.write(b'{"step": 11, "lo')
    assert cut_after(path, 20) == 1
    assert [row["step"] for row in read_metrics(path)] == list(range(1, 11))
    with open(path, "ab") as file:
        file.write(b"garbage\n" + b'{"step": 11}\n')
    assert cut_after(path, 20) == 2
    assert cut_after(tmp_path / "missing.jsonl", 3) == 0


def test_a_new_writer_goes_on_after_a_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    write(path, range(1, 4))
    with open(path, "ab") as file:
        file.write(b'{"step": 4, "lo')
    write(path, range(4, 6))
    assert [row["step"] for row in read_metrics(path)] == [1, 2, 3, 4, 5]


def test_broken_lines_in_the_middle_do_not_hide_the_others(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_bytes(b'{"step":1}\nnot json\n[1,2]\n\xff\xfe\n{"step":2}\n')
    assert [row["step"] for row in read_metrics(path)] == [1, 2]
    assert list(read_metrics(tmp_path / "missing.jsonl")) == []


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=40), st.integers(1, 10), st.data())
def test_a_moving_average_resumed_anywhere_goes_on_exactly(
    values: list[float], window: int, data: st.DataObject
) -> None:
    cut = data.draw(st.integers(0, len(values)))
    straight, first = MovingAverage(window), MovingAverage(window)
    for value in values[:cut]:
        straight.add(value)
        first.add(value)
    second = MovingAverage(window)
    second.load_state_dict(first.state_dict())
    for value in values[cut:]:
        straight.add(value)
        second.add(value)
        assert straight.value == second.value
    assert straight.value == sum(values[-window:]) / len(values[-window:])


def test_the_registry_holds_the_keys_others_rely_on() -> None:
    needed = (
        "loss",
        "perplexity",
        "bits_per_byte",
        "grad_norm",
        "lr",
        "throughput",
        "gpu_util",
        "mem_allocated",
        "loss_sma",
    )
    assert set(needed) <= set(METRICS)
    names = [metric.prometheus for metric in METRICS.values() if metric.prometheus]
    assert len(set(names)) == len(names)
    for key, metric in METRICS.items():
        assert metric.key == key
        assert metric.help
        assert metric.unit
        assert (metric.kind == "counter") == metric.prometheus.endswith("_total")
