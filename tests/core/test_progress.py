"""What a run says: all on its console, warnings even when quiet, and plain lines where there is no terminal."""

from __future__ import annotations

import io
import sys

import pytest
from rich.console import Console

from headwater.core import progress
from headwater.core.progress import Reporter


def reporter(*, quiet: bool = False, terminal: bool = False) -> tuple[Reporter, io.StringIO]:
    out = io.StringIO()
    console = Console(file=out, width=200, force_terminal=terminal, highlight=False, soft_wrap=True)
    return Reporter(console, quiet=quiet), out


def test_decisions_come_with_their_reason_and_brackets_stay_text() -> None:
    speaker, out = reporter()
    speaker.stage("pack", "[web] 3 shards")
    speaker.decide("uint16 tokens [x]", why="4,096 tokens")
    speaker.info("done")
    assert out.getvalue() == "pack  [web] 3 shards\n  uint16 tokens [x]  (4,096 tokens)\n  done\n"


@pytest.mark.parametrize("terminal", [False, True])
def test_quiet_keeps_warnings_and_nothing_else(terminal: bool) -> None:
    speaker, out = reporter(quiet=True, terminal=terminal)
    speaker.stage("pack")
    speaker.info("done")
    with speaker.progress("pack", total=2) as bar:
        bar.advance(2)
    assert out.getvalue() == ""
    speaker.warn("2 rows are in quarantine")
    assert "warning: 2 rows are in quarantine" in out.getvalue()


def test_without_a_terminal_long_work_prints_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    speaker, out = reporter()
    with speaker.progress("pack", total=10, unit="shards") as bar:
        for _ in range(10):
            clock[0] += 7.0
            bar.describe("web")
            bar.advance()
    assert out.getvalue().splitlines() == ["  pack 3/10 shards web", "  pack 6/10 shards web", "  pack 9/10 shards web"]


def test_a_terminal_gets_a_bar_that_goes_when_the_work_is_done() -> None:
    speaker, out = reporter(terminal=True)
    with speaker.progress("pack", total=2, unit="shards") as bar:
        bar.advance(2)
    assert "2/2 shards" in out.getvalue()


def test_it_speaks_on_stderr() -> None:
    assert Reporter().console.file is sys.stderr
