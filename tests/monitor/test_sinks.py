"""Places for figures that fail: the run goes on, with one warning and a count."""

from __future__ import annotations

import io
import json
import resource
import signal
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from headwater.core.errors import UserError
from headwater.core.progress import Reporter
from headwater.monitor.config import MonitorConfig
from headwater.monitor.failures import Failures
from headwater.monitor.record import read_metrics
from headwater.monitor.sinks import RECORD, Sinks, open_sinks
from tests.monitor.test_prometheus import free_port


class Broken:
    """A sink whose other side is down."""

    name = "broken"

    def write(self, record: Mapping[str, Any]) -> None:
        raise ConnectionError("the server is down")

    def close(self, *, failed: bool = False) -> None:
        raise TimeoutError


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "runs" / "r").mkdir(parents=True)
    return tmp_path / "runs" / "r"


def opened(run: Path, **monitor: Any) -> tuple[Sinks, io.StringIO]:
    said = io.StringIO()
    reporter = Reporter(Console(file=said, width=500))
    return open_sinks(MonitorConfig(**monitor), run, "r", reporter, Failures(reporter.warn), steps=10, done=0), said


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """No file of this process may grow beyond `size` bytes, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)


def test_a_sink_that_is_down_is_warned_of_once_and_counted(run: Path) -> None:
    sinks, said = opened(run, console=False, prometheus={"enabled": True, "port": free_port()})
    url = json.loads((run / "endpoints.json").read_text())["metrics"]
    sinks.add(Broken, "broken")
    for step in range(1, 6):
        sinks.write({"step": step, "loss": 2.0})
    with urllib.request.urlopen(url, timeout=5) as answer:
        text = answer.read().decode()
    sinks.close()
    assert 'llm_sink_failures_total{run="r",sink="broken"} 5.0' in text
    assert 'llm_sink_failures_total{run="r",sink="prometheus"} 0.0' in text
    assert said.getvalue().count("warning") == 1
    assert "broken cannot take what this run tells: the server is down" in said.getvalue()
    assert [row["step"] for row in read_metrics(run / RECORD)] == [1, 2, 3, 4, 5]


def test_a_full_disk_costs_lines_of_the_record_but_not_the_run(run: Path) -> None:
    sinks, said = opened(run, console=False)
    with largest_file(40):
        for step in range(1, 6):
            sinks.write({"step": step, "loss": 2.0})
    sinks.write({"step": 6, "loss": 2.0})
    sinks.close()
    assert [row["step"] for row in read_metrics(run / RECORD)] == [1, 6]
    assert sinks.failures.counts[RECORD] == 4
    assert said.getvalue().count("warning") == 1


def test_a_sink_that_cannot_begin_is_done_without(run: Path) -> None:
    def fails() -> Broken:
        raise OSError("no such device")

    sinks, said = opened(run)
    assert sinks.add(fails, "broken") is None
    sinks.write({"step": 1, "loss": 2.0, "loss_sma": 2.0, "lr": 1.0, "grad_norm": 1.0, "throughput": 1.0})
    sinks.close()
    assert sinks.failures.counts == {RECORD: 0, "console": 0, "broken": 1}
    assert "no such device" in said.getvalue()


def test_a_mistake_in_the_recipe_is_said_before_training(run: Path) -> None:
    with pytest.raises(UserError) as caught:
        opened(run, prometheus={"enabled": True, "host": "203.0.113.1"})
    assert caught.value.where == "monitor.prometheus"
    sinks, _ = opened(run)  # the record is free again
    sinks.close()
