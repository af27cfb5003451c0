"""Executors: the same results on every back end; killed workers and killed parents leave neither hangs nor orphans."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from headwater.core.config import identity
from headwater.core.errors import HeadwaterError, InputError
from headwater.core.executor import WINDOW, ProcessExecutor, WorkerDiedError, available_cpus, make_executor
from headwater.core.executor_config import ExecutorConfig
from headwater.core.locks import process_start
from tests.conftest import REPOSITORY, Killer, clean_environment
from tests.core import work


@pytest.mark.parametrize(("kind", "workers"), [("inline", 1), ("process", 1), ("process", 2), ("process", 5)])
def test_results_come_in_the_order_of_the_items(kind: str, workers: int) -> None:
    with make_executor(kind, workers) as executor:  # type: ignore[arg-type]
        assert list(executor.map(work.slow_if_even, range(20))) == list(range(20))
        assert list(executor.map(work.double, [])) == []
        assert list(executor.map(work.double, [4])) == [8]


@settings(max_examples=20)
@given(items=st.lists(st.integers(), max_size=30), workers=st.integers(1, 3))
def test_a_pool_gives_what_inline_gives(items: list[int], workers: int) -> None:
    POOLS.setdefault(workers, ProcessExecutor(workers))
    assert list(POOLS[workers].map(work.double, items)) == [work.double(item) for item in items]


POOLS: dict[int, ProcessExecutor] = {}


@pytest.mark.parametrize(("kind", "workers"), [("inline", 1), ("process", 1), ("process", 3)])
def test_the_first_failing_item_is_raised_whatever_the_number_of_workers(kind: str, workers: int) -> None:
    with make_executor(kind, workers) as executor:  # type: ignore[arg-type]
        results = executor.map(work.fail_at_three_and_seven, range(10))
        assert [next(results) for _ in range(3)] == [0, 1, 2]
        with pytest.raises(ValueError, match="three") as caught:
            next(results)
        if kind == "process":
            assert "fail_at_three_and_seven" in caught.value.__notes__[0], "the worker's traceback travels along"
            assert "on item 3 (3)" in caught.value.__notes__[0]
        assert list(executor.map(work.double, [1, 2])) == [2, 4], "usable afterwards"


def test_our_errors_keep_their_parts_on_the_way_back() -> None:
    with make_executor("process", 1) as executor, pytest.raises(InputError) as caught:
        list(executor.map(raise_input_error, [1]))
    assert (caught.value.what, caught.value.where, caught.value.mend) == ("bad row", "a.jsonl:1", "mend it")


def raise_input_error(number: int) -> None:
    raise InputError("bad row", where=f"a.jsonl:{number}", mend="mend it")


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (work.raise_stubborn, "Stubborn: number 1"),
        (work.raise_crooked, "Crooked: crooked"),
        (work.return_a_lock, "lock"),
    ],
)
def test_what_cannot_travel_back_becomes_a_clear_error(function: object, said: str) -> None:
    with make_executor("process", 1) as executor, pytest.raises((HeadwaterError, TypeError), match=said):
        list(executor.map(function, [1]))  # type: ignore[arg-type]


def test_what_cannot_be_sent_is_an_error_and_the_pool_stays_usable() -> None:
    with make_executor("process", 1) as executor:
        with pytest.raises(Exception, match="pickle"):
            list(executor.map(lambda number: number, [1]))
        assert list(executor.map(work.double, [2])) == [4]


def test_a_killed_worker_is_an_error_that_names_item_and_signal() -> None:
    with make_executor("process", 2) as executor:
        results = executor.map(work.die, range(8))
        assert [next(results), next(results)] == [0, 1]
        with pytest.raises(WorkerDiedError, match=r"killed by SIGKILL while on item 2 of 8") as caught:
            next(results)
        assert "out of memory" in caught.value.mend
        with pytest.raises(WorkerDiedError, match="exited with code 7"):
            list(executor.map(work.leave, [7]))
        assert list(executor.map(work.double, range(5))) == [0, 2, 4, 6, 8]


def test_a_worker_killed_while_idle_is_replaced() -> None:
    with make_executor("process", 1) as executor:
        [first] = executor.map(work.process_number, [0])
        os.kill(first, signal.SIGKILL)
        assert_gone([first], 5)
        time.sleep(0.2)  # its main thread is gone; give the other a moment
        [second] = executor.map(work.process_number, [0])
        assert second != first


def test_workers_stay_for_the_next_map_and_close_lets_them_go() -> None:
    with make_executor("process", 1) as executor:
        assert set(executor.map(work.process_number, [0, 1])) == set(executor.map(work.process_number, [2]))
        [number] = executor.map(work.process_number, [0])
        executor.close()
        assert process_start(number) is None
        assert list(executor.map(work.process_number, [0])) != [number]


def test_little_runs_ahead_of_a_slow_item_or_a_slow_consumer(tmp_path: Path) -> None:
    with make_executor("process", 2) as executor:
        jobs = [(str(tmp_path), number, 1.0 if number == 0 else 0.0) for number in range(40)]
        assert list(executor.map(work.mark_and_wait, jobs)) == list(range(40))
        started = sorted(tmp_path.iterdir(), key=lambda path: path.stat().st_mtime_ns)
        early = [int(path.name.split("-")[0]) for path in started[: WINDOW * 2]]
        assert set(early) == set(range(WINDOW * 2))

        results = executor.map(work.mark_and_wait, [(str(tmp_path), 100 + number, 0.0) for number in range(50)])
        next(results)
        time.sleep(0.1)
        assert len(list(tmp_path.glob("1??-*"))) <= WINDOW * 2 + 2
        results.close()  # type: ignore[attr-defined]


def test_big_items_and_results_do_not_block_each_other() -> None:
    items = [bytes([number]) * 3_000_000 for number in range(6)]
    with make_executor("process", 2) as executor:
        assert list(executor.map(work.echo, items)) == items


def test_a_map_inside_a_map_gets_workers_of_its_own() -> None:
    with make_executor("process", 1) as executor:
        pairs = [
            (outer, inner)
            for outer in executor.map(work.double, range(4))
            for inner in executor.map(work.double, range(outer))
        ]
    assert pairs == [(outer, inner * 2) for outer in (0, 2, 4, 6) for inner in range(outer)]


def test_a_worker_is_a_fresh_interpreter_with_one_thread_and_our_import_path() -> None:
    with make_executor("process", 1) as executor:
        [(threads, torch, pyarrow, path)] = executor.map(work.surroundings, [0])
    assert (threads, torch, pyarrow) == ("1", False, False)
    assert path == [os.path.abspath(place) for place in sys.path]


def run_script(script: str, *arguments: str | Path, **options: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", script, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=REPOSITORY,
        env=clean_environment(),
        **options,  # type: ignore[call-overload]
    )


def test_what_a_worker_prints_stays_out_of_stdout() -> None:
    script = (
        "from headwater.core.executor import make_executor; from tests.core import work\n"
        "with make_executor('process', 2) as executor: print(list(executor.map(work.say, range(3))))"
    )
    out, err = run_script(script).communicate(timeout=30)
    assert out == "[0, 1, 2]\n"
    assert err.count("spoken by a worker") == 3


def test_a_function_of_the_script_itself_is_refused_with_the_way_out() -> None:
    script = (
        "from headwater.core.executor import make_executor\ndef f(x): return x\n"
        "list(make_executor('process', 1).map(f, [1]))"
    )
    err = run_script(script).communicate(timeout=30)[1]
    assert "defined in the script itself" in err
    assert "move it to a module" in err


BUSY = """
import sys
from headwater.core.executor import make_executor
from tests.core import work
with make_executor("process", 3) as executor:
    list(executor.map(work.double, range(3)))
    jobs = [(sys.argv[1], number, 60.0) for number in range(2)]
    list(executor.map(getattr(work, sys.argv[2]), jobs))
"""


def busy_workers(folder: Path) -> list[int]:
    deadline = time.monotonic() + 20
    while len(list(folder.iterdir())) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return [int(path.name.split("-")[1]) for path in folder.iterdir()]


def assert_gone(numbers: list[int], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while alive := [number for number in numbers if process_start(number) is not None]:
        assert time.monotonic() < deadline, f"still alive: {alive}"
        time.sleep(0.01)


def test_ctrl_c_ends_parent_and_workers_at_once_and_without_noise(tmp_path: Path) -> None:
    parent = run_script(BUSY, tmp_path, "mark_and_wait", start_new_session=True)
    workers = busy_workers(tmp_path)
    os.killpg(parent.pid, signal.SIGINT)
    err = parent.communicate(timeout=10)[1]
    assert parent.returncode == -signal.SIGINT
    assert err.count("Traceback") == 1, err
    assert_gone(workers, 1)


@pytest.mark.parametrize("function", ["mark_and_wait", "spin"])
@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_parent_leaves_no_worker_behind(
    sign: signal.Signals, function: str, tmp_path: Path, killer: Killer
) -> None:
    parent = killer.start([sys.executable, "-c", BUSY, tmp_path, function], cwd=REPOSITORY)
    workers = busy_workers(tmp_path)
    children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children")
    everyone = [int(number) for number in children.read_text().split()] if children.exists() else workers
    assert set(workers) <= set(everyone)
    parent.send_signal(sign)
    parent.wait()
    assert_gone(everyone, 2)


def test_a_consumer_that_leaves_early_stops_the_work(tmp_path: Path) -> None:
    with make_executor("process", 2) as executor:
        jobs = [(str(tmp_path), number, 0.0 if number == 0 else 60.0) for number in range(3)]
        results = executor.map(work.mark_and_wait, jobs)
        assert next(results) == 0
        workers = busy_workers(tmp_path)
        results.close()  # type: ignore[attr-defined]
        busy = [int(path.name.split("-")[1]) for path in tmp_path.iterdir() if not path.name.startswith("0-")]
        assert_gone(busy, 1)
        assert workers
        assert list(executor.map(work.double, [1])) == [2]


def test_a_forgotten_executor_lets_its_workers_go() -> None:
    executor = make_executor("process", 1)
    [number] = executor.map(work.process_number, [0])
    del executor
    assert_gone([number], 2)


def test_the_executor_section_is_operational_and_checked() -> None:
    assert identity(ExecutorConfig(kind="inline", workers=7)) == {}
    with pytest.raises(ValidationError):
        ExecutorConfig(workers=-1)
    with pytest.raises(ValidationError):
        ExecutorConfig(kind="threads")  # type: ignore[arg-type]
    assert make_executor("process", 0).workers == available_cpus() >= 1
    with pytest.raises(ValueError, match="workers is -1"):
        make_executor("inline", -1)
    with pytest.raises(ValueError, match="'threads' is not one of"):
        make_executor("threads", 1)  # type: ignore[arg-type]
