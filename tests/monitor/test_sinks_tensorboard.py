"""Event files, read by TensorBoard itself."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headwater.core.errors import DiskSpaceError
from headwater.monitor.sinks_tensorboard import TensorBoardSink
from tests.monitor.test_sinks import largest_file


def read(folder: Path) -> Any:
    """What TensorBoard makes of a folder."""
    module = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason="TensorBoard is not installed"
    )
    found = module.EventAccumulator(str(folder), size_guidance={"scalars": 0})
    found.Reload()
    return found


def curve(found: Any, tag: str) -> list[tuple[int, float]]:
    return [(one.step, one.value) for one in found.Scalars(tag)]


def test_tensorboard_reads_every_figure(tmp_path: Path) -> None:
    sink = TensorBoardSink(tmp_path / "tensorboard", done=0)
    for step in range(1, 301):
        domains = {"all": 2.0, "代码": 1.5, "bad \ud800": 1.0, "gone": None}
        sink.write({"step": step, "time": 1000.0 + step, "loss": 1 / step, "val_loss": domains, "gpu_util": None})
    sink.write({"step": 301, "loss": math.nan, "grad_norm": 1e300, "lr": -math.inf, "flag": True, "word": "NaN"})
    sink.close()
    found = read(tmp_path / "tensorboard")
    assert set(found.Tags()["scalars"]) == {
        *("loss", "grad_norm", "lr", "val_loss/all", "val_loss/代码", "val_loss/bad ?"),
    }
    assert curve(found, "loss")[:300] == [(step, pytest.approx(1 / step)) for step in range(1, 301)]
    assert math.isnan(curve(found, "loss")[300][1])
    assert curve(found, "grad_norm") == [(301, math.inf)]
    assert curve(found, "lr") == [(301, -math.inf)]
    assert found.Scalars("loss")[4].wall_time == 1005.0


def test_steps_that_are_trained_again_are_shown_once(tmp_path: Path) -> None:
    for done, last, loss in ((0, 10, 9.0), (6, 12, 3.0)):
        sink = TensorBoardSink(tmp_path, done=done)
        for step in range(done + 1, last + 1):
            sink.write({"step": step, "loss": loss})
        sink.close()
    assert curve(read(tmp_path), "loss") == [(s, 9.0 if s <= 6 else 3.0) for s in range(1, 13)]


def test_a_run_that_goes_back_is_shown_as_it_went_on(tmp_path: Path) -> None:
    sink = TensorBoardSink(tmp_path, done=0)
    for step, loss in ((1, 9.0), (2, 9.0), (3, 9.0), (4, 9.0), (2, 3.0), (3, 3.0), (5, 3.0)):
        sink.write({"step": step, "loss": loss})
    sink.close()
    assert curve(read(tmp_path), "loss") == [(1, 9.0), (2, 3.0), (3, 3.0), (5, 3.0)]


def test_a_killed_process_loses_no_event(tmp_path: Path) -> None:
    code = f"""
import os
from pathlib import Path
from headwater.monitor.sinks_tensorboard import TensorBoardSink
sink = TensorBoardSink(Path({str(tmp_path)!r}), done=0)
for step in range(1, 201):
    sink.write({{"step": step, "loss": 2.5}})
os.kill(os.getpid(), 9)
"""
    subprocess.run([sys.executable, "-c", code], check=False)
    assert [step for step, _ in curve(read(tmp_path), "loss")] == list(range(1, 201))


def test_a_full_disk_tears_no_event(tmp_path: Path) -> None:
    sink = TensorBoardSink(tmp_path, done=0)
    (file,) = tmp_path.iterdir()
    sink.write({"step": 1, "loss": 1.0})
    with largest_file(os.path.getsize(file) + 10), pytest.raises(DiskSpaceError):
        sink.write({"step": 2, "loss": 1.0})
    sink.write({"step": 3, "loss": 1.0})
    sink.close()
    assert [step for step, _ in curve(read(tmp_path), "loss")] == [1, 3]
