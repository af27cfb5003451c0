"""`headwater watch` and `headwater report` on real folders, in real terminals and in none."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.cli.main import run_command
from headwater.monitor.terminal import chart, printable, summary_text
from headwater.monitor.web import RunReader
from tests.conftest import RunCli
from tests.monitor.records import row, write_run

Verb = Callable[..., tuple[str, str]]

VERB = [sys.executable, "-m", "headwater.cli.main"]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "TERM": "xterm-256color", "LC_ALL": "C.UTF-8"}
HOSTILE = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202egnp.exe\r\nrm"


@pytest.fixture
def verb(capfd: pytest.CaptureFixture[str]) -> Verb:
    """A verb in this process: (stdout, stderr)."""

    def run(*arguments: str | Path, code: int = 0) -> tuple[str, str]:
        assert run_command(list(map(str, arguments))) == code
        said = capfd.readouterr()
        return said.out, said.err

    return run


def test_once_says_how_the_run_is_in_plain_lines(tmp_path: Path, verb: Verb) -> None:
    run = write_run(tmp_path / "runs" / "我的 run", 400, spike=200)
    text, _ = verb("watch", run, "--once")
    assert "\x1b" not in text
    for said in ("我的 run", "step 400 of 400  100%", "validation loss", "goodput", "loss spike: loss 6.040",
                 "32 samples of web are left out"):  # fmt: skip
        assert said in text, text
    assert verb("watch", tmp_path, "--once")[0] == text  # the newest run of a workspace
    assert verb("watch", tmp_path / "runs", "--once")[0] == text


def test_json_is_one_object_with_the_newest_figures(tmp_path: Path, run_cli: RunCli) -> None:
    run = write_run(tmp_path / "run", 50, finished=True)
    said = run_cli("watch", run, "--json").json
    assert said["status"]["state"] == "finished"
    assert said["figures"]["val_loss/代码 code"] > 0
    assert said["figures"]["tokens"] == 50 * 65_536
    assert said["events"][-1]["title"] == "finished"


def test_a_place_without_a_run_is_refused_with_the_mend(tmp_path: Path, verb: Verb) -> None:
    for name in ("watch", "report"):
        _, said = verb(name, tmp_path, code=2)
        assert "give the folder of a run, or a workspace" in said


def test_an_empty_run_and_a_hostile_one_are_told_apart_by_nothing_but_words(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "metrics.jsonl").write_bytes(b"")
    reader = RunReader(run)
    reader.refresh()
    assert "nothing recorded yet" in summary_text(reader)
    (run / "metrics.jsonl").write_text(json.dumps({"step": 1, "loss": "NaN", "val_loss": {HOSTILE: 2.0}}) + "\n")
    (run / "events.jsonl").write_text(json.dumps({"event": HOSTILE, "message": HOSTILE, "step": 1}) + "\n")
    reader.refresh()
    text = summary_text(reader)
    assert re.fullmatch(r"[^\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]*", text)
    assert "loss is NaN or infinite at step 1" in text


@given(st.text())
def test_only_what_prints_is_printed(text: str) -> None:
    shown = printable(text)
    assert len(shown) == len(text)
    assert all(char.isprintable() or not char.isascii() for char in shown)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=500), st.integers(4, 60))
def test_a_chart_has_its_size_and_touches_top_and_bottom(values: list[float], width: int) -> None:
    lines = [line.plain.split("  ")[-1] for line in chart(values, width)]
    assert len(lines) == 8
    assert {len(line) for line in lines} == {width}
    if max(values) > min(values):
        assert lines[0].strip("\u2800")
        assert lines[-1].strip("\u2800")


def test_without_a_terminal_a_line_comes_with_every_news_until_the_run_is_finished(tmp_path: Path) -> None:
    import random

    run = write_run(tmp_path / "run", 20)
    process = subprocess.Popen([*VERB, "watch", str(run), "--every", "0.1"], stdout=subprocess.PIPE, text=True,
                               env=ENVIRONMENT)  # fmt: skip
    try:
        assert process.stdout is not None
        assert "step 20 of 20" in process.stdout.readline()
        with open(run / "metrics.jsonl", "ab") as file:
            file.write(json.dumps(row(21, random.Random(1))).encode() + b"\n")
        assert "step 21" in process.stdout.readline()
        (run / "final.json").write_text('{"checkpoint": "step-00000021"}')
        assert "finished" in process.stdout.readline()
        assert process.wait(timeout=30) == 0
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("columns", [100, 40])
def test_on_a_terminal_the_screen_is_alive_and_ctrl_c_ends_it(tmp_path: Path, columns: int) -> None:
    run = write_run(tmp_path / "run", 300, spike=150)
    main, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    process = subprocess.Popen([*VERB, "watch", str(run), "--every", "0.1"], stdin=terminal, stdout=terminal,
                               stderr=subprocess.DEVNULL, env=ENVIRONMENT, start_new_session=True)  # fmt: skip
    os.close(terminal)
    try:
        seen = b""
        deadline = time.monotonic() + 60
        while b"loss spike" not in seen and time.monotonic() < deadline:
            if select.select([main], [], [], 0.2)[0]:
                seen += os.read(main, 1 << 16)
        text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", seen.decode(errors="ignore"))
        assert "step 300 of 300" in text
        assert "━" in text
        assert any(0x2801 <= ord(char) <= 0x28FF for char in text)
        assert max(len(line) for line in text.replace("\r", "\n").split("\n")) <= columns
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == 130
    finally:
        process.kill()
        process.wait()
        os.close(main)


def test_a_report_is_written_where_it_is_looked_for(tmp_path: Path, verb: Verb) -> None:
    first, second = (write_run(tmp_path / "runs" / name, 30) for name in ("a", "b"))
    assert json.loads(verb("report", first, "--json")[0])["report"] == str(first / "report.html")
    both = tmp_path / "both.html"
    verb("report", first, "--compare", second, "--out", both)
    assert '"name":"b"' in both.read_text()
