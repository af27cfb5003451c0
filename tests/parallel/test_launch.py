"""Ranks started on this machine: what is lost is started again, what cannot be mended is said once, nothing is left."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from rich.console import Console

from headwater.core.errors import UserError
from headwater.core.progress import Reporter
from headwater.parallel.launch import RanksInterrupted, launch_local
from headwater.parallel.rank_files import Heartbeat, RankFolder, culprits, describe, spans, this_attempt
from headwater.parallel.watchdog import RanksLostError, is_consequence
from tests.conftest import REPOSITORY, clean_environment

TIMEOUT = 2.0


def launch(logs: Path, *arguments: object, ranks: int = 2, max_restarts: int = 1) -> str:
    """What the launcher said; raises what it raises."""
    said = io.StringIO()
    launch_local(
        [sys.executable, "-m", "tests.parallel.launched", str(logs), str(TIMEOUT), *map(str, arguments)],
        ranks=ranks,
        logs=logs,
        max_restarts=max_restarts,
        reporter=Reporter(Console(file=said, width=200)),
        environment={"PYTHONPATH": str(REPOSITORY)},
    )
    return said.getvalue()


def test_rank_0_has_the_console_and_the_others_a_log(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert launch(tmp_path, 3) == ""
    assert "rank 0 is done" in capfd.readouterr().err
    assert "rank 1 is done" in (tmp_path / "rank-00001.log").read_text()


def test_a_killed_rank_is_named_and_all_start_again(tmp_path: Path) -> None:
    said = launch(tmp_path, 5, "killed")
    assert "rank 1: was ended by SIGKILL at step 3, work (process" in said
    assert "rank 0: at step 3, work, in launched.py:" in said
    assert "calling all_reduce" in said
    assert "starting all ranks again (1 of 1)" in said
    assert "rank 1 is done" in (tmp_path / "rank-00001.restart-1.log").read_text()


def test_without_a_restart_left_one_error_says_who_is_where(tmp_path: Path) -> None:
    with pytest.raises(RanksLostError) as caught:
        launch(tmp_path, 5, "killed", max_restarts=0)
    assert caught.value.what.startswith("rank 1 of 2 ended")
    assert "takes too much memory" in caught.value.mend


def test_a_users_error_comes_through_once_and_is_not_tried_again(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        launch(tmp_path, 5, "user_error", max_restarts=3)
    assert (caught.value.what, caught.value.where, caught.value.mend) == ("no such disk", "rank 1, x", "buy one")
    assert not (tmp_path / "rank-00001.restart-1.log").exists()


def test_a_fault_of_one_rank_is_told_with_its_place(tmp_path: Path) -> None:
    with pytest.raises(RanksLostError, match=r"rank 1: failed at step 3, work: ZeroDivisionError: in this rank alone"):
        launch(tmp_path, 5, "fault", max_restarts=3)
    assert "ZeroDivisionError" in (tmp_path / "ranks" / "00001.stacks.txt").read_text()


@pytest.mark.parametrize("how", ["stands_still", "other_collective"])
def test_standing_still_ends_in_one_message_within_the_time_set(tmp_path: Path, how: str) -> None:
    """A slow rank and one in another collective; the second start gets no further, so there is no third."""
    started = time.monotonic()
    with pytest.raises(RanksLostError) as caught:
        launch(tmp_path, 5, how, "always", max_restarts=3)
    assert caught.value.what.splitlines()[0] == "no rank has made progress for 2 s"
    assert "rank 0: at step 3, work, in launched.py" in caught.value.what
    assert "rank 1: at step 3, work, in launched.py" in caught.value.what
    assert ("all_gather" in caught.value.what) == (how == "other_collective")
    assert not list(tmp_path.glob("*restart-2*"))
    assert "all_reduce" in (tmp_path / "ranks" / "00000.stacks.txt").read_text()
    assert time.monotonic() - started < 60


def test_a_rank_that_cannot_answer_is_told_from_those_that_wait(tmp_path: Path) -> None:
    with pytest.raises(RanksLostError, match=r"rank 1: gives no answer, last seen at step 3, work \(process"):
        launch(tmp_path, 5, "stopped", max_restarts=0)


def test_a_signal_is_passed_on_and_ends_all_ranks(tmp_path: Path) -> None:
    def interrupt() -> None:
        folder = RankFolder(tmp_path / "ranks")
        while not (folder.file(0, "").exists() and b'"step":2' in folder.file(0, "").read_bytes()):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(RanksInterrupted, match="SIGTERM"):
        launch(tmp_path, 10_000, max_restarts=3)
    thread.join()


def test_when_the_launcher_is_killed_no_rank_is_left(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from tests.parallel.test_launch import launch; "
        "launch(Path(sys.argv[1]), 100_000)"
    )
    launcher = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        cwd=REPOSITORY,
        env=clean_environment(),
        stdin=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    pids = []
    deadline = time.monotonic() + 60
    while len(pids) < 2 and time.monotonic() < deadline:
        time.sleep(0.1)
        pids = [
            int(text.split('"pid":')[1].split(",")[0])
            for path in (tmp_path / "ranks").glob("0000[01].json")
            if '"pid":' in (text := path.read_text())
        ]
    launcher.kill()
    launcher.wait()
    deadline = time.monotonic() + 5
    while any(Path(f"/proc/{pid}").exists() for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(pids) == 2
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_ranks_of_the_same_state_are_told_together(tmp_path: Path) -> None:
    folder = RankFolder(tmp_path)
    attempt = this_attempt({"TORCHELASTIC_RUN_ID": "r", "TORCHELASTIC_RESTART_COUNT": "2"})
    for rank in (0, 1, 2, 4):
        heart = Heartbeat(folder, rank, attempt)
        heart.beat(7, "data", 1)
        heart.close()
    for rank in (0, 1, 4):
        folder.write(folder.file(rank, "where"), {"attempt": attempt, "at": "a.py:1 in f"})
    folder.write(folder.file(2, "error"), {"attempt": attempt, "what": "no disk", "at": "b.py:2 in g"})
    lines = describe(folder, 5, attempt).splitlines()
    assert lines == [
        "  rank 2: failed at step 7, data: no disk [b.py:2 in g]",
        "  rank 3: has given no sign of life",
        "  ranks 0-1, 4: at step 7, data, in a.py:1 in f",
    ]
    assert culprits(folder, 5, attempt) == [2]
    assert describe(folder, 2, "another start").count("no sign of life") == 1


def test_spans_are_short() -> None:
    assert spans([5, 0, 1, 2]) == "0-2, 5"
    assert spans([3]) == "3"


def test_what_only_tells_of_a_lost_peer_is_known_through_what_wraps_it() -> None:
    def wrapped(inner: Exception) -> Exception:
        try:
            try:
                raise inner
            except Exception as error:
                raise RuntimeError("\n  [Stage 0] failed to run forward:") from error
        except RuntimeError as error:
            return error

    def closing(inner: Exception) -> Exception:
        try:
            try:
                raise inner
            finally:
                raise RuntimeError("Connection closed by peer [127.0.0.1]:7")
        except RuntimeError as error:
            return error

    assert is_consequence(wrapped(RuntimeError("[pair.cc] Connection closed by peer [127.0.0.1]:7")))
    assert not is_consequence(wrapped(RuntimeError("shapes differ")))
    assert not is_consequence(closing(UserError("no such disk")))
    assert not is_consequence(closing(KeyError("x")))
