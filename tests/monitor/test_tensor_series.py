"""Series of single tensors: what was appended is read back, whatever was killed, joined or trained again."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.core.errors import DiskSpaceError
from headwater.core.files import TEMP_PREFIX
from headwater.monitor.registry import METRICS
from headwater.monitor.tensor_files import FOLDER, JOINED, LARGEST, TensorFiles, list_files
from headwater.monitor.tensor_series import TENSOR_METRICS, TensorSeries, model_order
from tests.monitor.test_sinks import largest_file

NAMES = ["model.embed_tokens.weight", "model.layers.2.mlp.up_proj.weight", "model.layers.10.mlp.up_proj.weight"]


def sample(step: int, shift: float = 0.0) -> dict[str, dict[str, float]]:
    return {
        "grad_norm": {name: step + place + shift for place, name in enumerate(NAMES)},
        "head_entropy": {f"layers.{layer}.head.{head}": 0.5 + shift for layer in (0, 10) for head in (0, 1)},
    }


def test_what_was_appended_is_read_back_in_the_model_s_order(tmp_path: Path) -> None:
    writer = TensorFiles(tmp_path)
    for step in (50, 100):
        writer.append(step, sample(step))
    series = TensorSeries(tmp_path)
    assert series.metrics() == ["grad_norm", "head_entropy"]
    steps, names, values = series.matrix("grad_norm")
    assert steps.tolist() == [50, 100]
    assert names == NAMES
    assert values.tolist() == [[50, 51, 52], [100, 101, 102]]
    assert series.matrix("head_entropy").names[-1] == "layers.10.head.1"
    assert series.matrix("update_ratio").values.shape == (0, 0)


def test_files_have_the_columns_others_read(tmp_path: Path) -> None:
    TensorFiles(tmp_path).append(1, sample(1))
    table = pq.read_table(next((tmp_path / FOLDER).glob("*.parquet")))
    assert [(field.name, str(field.type)) for field in table.schema] == [
        ("step", "int64"),
        ("name", "string"),
        ("metric", "string"),
        ("value", "double"),
    ]


def test_a_run_without_samples_has_no_metrics(tmp_path: Path) -> None:
    assert TensorSeries(tmp_path / "nothing").metrics() == []


def test_many_samples_are_few_files_and_nothing_is_lost(tmp_path: Path) -> None:
    writer, series, count = TensorFiles(tmp_path), TensorSeries(tmp_path), LARGEST + JOINED + 3
    for step in range(count):
        writer.append(step, {"grad_norm": {"a": float(step)}})
        if step % 40 == 0:  # a reader that is there all the time
            assert series.matrix("grad_norm").steps.tolist() == list(range(step + 1))
    assert [file.samples for file in list_files(tmp_path / FOLDER)] == [LARGEST, JOINED, 1, 1, 1]
    assert series.matrix("grad_norm").values[:, 0].tolist() == [float(step) for step in range(count)]


def test_a_step_that_is_trained_again_is_there_once_and_as_it_was_the_last_time(tmp_path: Path) -> None:
    writer = TensorFiles(tmp_path)
    for step in range(40):
        writer.append(step, sample(step))
    for step in range(10, 20):
        TensorFiles(tmp_path).append(step, sample(step, shift=0.25))
    steps, _, values = TensorSeries(tmp_path).matrix("grad_norm")
    assert steps.tolist() == list(range(20))
    assert values[:, 0].tolist() == [float(step) for step in range(10)] + [step + 0.25 for step in range(10, 20)]


def test_going_on_from_an_earlier_checkpoint_drops_what_came_after_it(tmp_path: Path) -> None:
    writer = TensorFiles(tmp_path)
    for step in range(JOINED + 4):
        writer.append(step, sample(step))
    again = TensorFiles(tmp_path)
    again.cut_after(7)
    assert again.last_step == 7
    assert TensorSeries(tmp_path).matrix("grad_norm").steps.tolist() == list(range(8))


def test_what_fails_on_a_full_disk_is_done_the_next_time(tmp_path: Path) -> None:
    writer = TensorFiles(tmp_path)
    for step in range(1, JOINED):
        writer.append(step, sample(step))
    with largest_file(0), pytest.raises(DiskSpaceError):
        writer.append(JOINED, sample(JOINED))
    one = max(path.stat().st_size for path in (tmp_path / FOLDER).iterdir())
    with largest_file(one + 64), pytest.raises(DiskSpaceError):  # room for a sample, not for all of them in one
        writer.append(JOINED, sample(JOINED))
    writer.append(JOINED + 1, sample(JOINED + 1))
    with largest_file(0), pytest.raises(DiskSpaceError):
        writer.cut_after(5)
    writer.cut_after(5)
    assert TensorSeries(tmp_path).matrix("grad_norm").steps.tolist() == [1, 2, 3, 4, 5]
    assert not list((tmp_path / FOLDER).glob(f"{TEMP_PREFIX}*"))


def test_a_file_left_beside_the_one_that_holds_it_counts_for_nothing(tmp_path: Path) -> None:
    writer, folder = TensorFiles(tmp_path), tmp_path / FOLDER
    kept = {}
    for step in range(JOINED):
        kept |= {path.name: path.read_bytes() for path in folder.glob("*.parquet")}
        writer.append(step, {"grad_norm": {"a": float(step)}})
    for name, data in kept.items():  # as after a kill before they were removed
        (folder / name).write_bytes(data)
    (folder / ".tmp-0123-x.parquet").write_bytes(b"half")
    assert TensorSeries(tmp_path).matrix("grad_norm").steps.tolist() == list(range(JOINED))
    TensorFiles(tmp_path)
    assert len(list(folder.iterdir())) == 1


def test_a_file_that_cannot_be_read_is_left_out_and_named(tmp_path: Path) -> None:
    writer = TensorFiles(tmp_path)
    for step in range(3):
        writer.append(step, sample(step))
    bad = sorted((tmp_path / FOLDER).glob("*.parquet"))[1]
    bad.write_bytes(b"")
    series = TensorSeries(tmp_path)
    assert series.matrix("grad_norm").steps.tolist() == [0, 2]
    assert series.broken == [bad.name]


def test_a_file_that_cannot_be_read_stops_neither_joining_nor_going_on(tmp_path: Path) -> None:
    writer, folder = TensorFiles(tmp_path), tmp_path / FOLDER
    for step in range(JOINED - 1):
        writer.append(step, sample(step))
    sorted(folder.glob("*.parquet"))[3].write_bytes(b"PAR1torn")
    writer.append(JOINED - 1, sample(JOINED - 1))
    assert len(list(folder.iterdir())) == 1
    assert TensorSeries(tmp_path).matrix("grad_norm").steps.tolist() == [0, 1, 2, *range(4, JOINED)]
    next(iter(folder.iterdir())).write_bytes(b"")
    again = TensorFiles(tmp_path)
    again.append(7, sample(7))
    assert TensorSeries(tmp_path).matrix("grad_norm").steps.tolist() == [7]


WRITE = """
import sys
from pathlib import Path
from headwater.monitor.tensor_files import TensorFiles
writer = TensorFiles(Path(sys.argv[1]))
for step in range(writer.last_step + 1, 100_000):
    writer.append(step, {"grad_norm": {name: float(step) for name in "abc"}})
    print(step, flush=True)
"""


def test_a_kill_loses_no_sample_that_was_written(tmp_path: Path) -> None:
    for wait in (0.05, 0.11):
        process = subprocess.Popen([sys.executable, "-c", WRITE, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(wait)
        os.kill(process.pid, signal.SIGKILL)
        said = [int(line) for line in process.stdout.read().splitlines() if line]
        process.wait()
        process.stdout.close()
        steps, _, values = TensorSeries(tmp_path).matrix("grad_norm")
        assert steps.tolist() == list(range(len(steps)))
        assert steps[-1] >= (said[-1] if said else 0)
        assert not np.isnan(values).any()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(-1e6, 1e6) | st.just(math.nan), min_size=1, max_size=200), st.integers(1, 50), st.booleans())
def test_thinning_keeps_every_extreme(series: list[float], most: int, largest: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        writer = TensorFiles(Path(folder))
        import pyarrow as pa

        from headwater.monitor.tensor_files import TensorFile

        count = len(series)
        table = pa.table(
            {
                "step": pa.array(range(count), pa.int64()),
                "name": ["a"] * count,
                "metric": ["grad_norm"] * count,
                "value": pa.array(series, pa.float64()),
            }
        )
        writer._write(TensorFile(0, count - 1, 0, count - 1), [table])
        steps, _, values = TensorSeries(folder).matrix("grad_norm", most_steps=most, keep="max" if largest else "min")
    assert len(steps) <= most or len(steps) == len(series)
    assert steps[-1] == len(series) - 1
    finite = [value for value in series if not math.isnan(value)]
    if finite:
        assert (np.nanmax(values) if largest else np.nanmin(values)) == (max(finite) if largest else min(finite))


def test_names_are_in_the_model_s_order() -> None:
    names = ["lm_head.weight", "model.norm.weight", *NAMES[::-1]]
    assert sorted(names, key=model_order) == [*NAMES, "model.norm.weight", "lm_head.weight"]
    assert sorted(["layers.2.head.10", "layers.2.head.9", "layers.10.head.0"], key=model_order)[1] == "layers.2.head.10"


def test_every_series_has_a_metric_of_the_registry() -> None:
    assert set(TENSOR_METRICS.values()) <= set(METRICS)
    assert len(set(TENSOR_METRICS.values())) == len(TENSOR_METRICS)


@pytest.mark.parametrize("name", ["x.parquet", "1-2-3.parquet", "a-b-c-d.parquet", "000-000-000-000.txt"])
def test_other_files_are_left_alone(tmp_path: Path, name: str) -> None:
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / name).write_bytes(b"mine")
    TensorFiles(tmp_path).append(1, sample(1))
    assert (tmp_path / FOLDER / name).exists()
    assert TensorSeries(tmp_path).matrix("grad_norm").steps.tolist() == [1]
