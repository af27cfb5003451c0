"""The console's line."""

from __future__ import annotations

import io
import math

import pytest
from rich.console import Console

from headwater.core.progress import Reporter
from headwater.monitor.console import ConsoleSink, duration

RECORD = {"step": 5, "loss": 2.5, "loss_sma": 2.6, "lr": 3e-4, "grad_norm": 0.7, "throughput": 12345.0}


def sink(*, terminal: bool, quiet: bool = False) -> tuple[ConsoleSink, io.StringIO]:
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=160, soft_wrap=True)
    return ConsoleSink(Reporter(console, quiet=quiet), total_steps=10, every_seconds=60), out


def test_elsewhere_lines_come_now_and_then_and_with_every_validation() -> None:
    one, out = sink(terminal=False)
    with one:
        for step in range(1, 10):
            one.write({**RECORD, "step": step, **({"val_loss": {"all": 2.0}} if step == 4 else {})})
        one.write({**RECORD, "step": 10})
    lines = out.getvalue().splitlines()
    assert [line.split()[1] for line in lines] == ["1/10", "4/10", "10/10"]
    assert "12,345 tok/s" in lines[0]
    assert "val 2.000" in lines[1]
    assert "ETA" not in lines[2]


def test_on_a_terminal_there_is_one_live_line() -> None:
    one, out = sink(terminal=True)
    with one:
        one.write(RECORD)
    assert "loss 2.600" in out.getvalue()


def test_a_first_step_without_a_loss_has_a_line() -> None:
    one, out = sink(terminal=False)
    with one:
        one.write({**RECORD, "step": 1, "loss": math.nan, "loss_sma": None, "grad_norm": math.nan})
    assert "step 1/10  loss nan" in out.getvalue()


def test_quiet_says_nothing() -> None:
    one, out = sink(terminal=True, quiet=True)
    with one:
        one.write(RECORD)
    assert out.getvalue() == ""


@pytest.mark.parametrize(("seconds", "text"), [(12.4, "12s"), (250, "4m 10s"), (11100, "3h 05m"), (59.6, "1m 00s")])
def test_durations_are_written_for_people(seconds: float, text: str) -> None:
    assert duration(seconds) == text
