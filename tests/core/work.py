"""Functions that tests send to worker processes."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

from headwater.core.errors import InputError


def double(number: int) -> int:
    return number * 2


def slow_if_even(number: int) -> int:
    time.sleep(0.02 if number % 2 == 0 else 0)
    return number


def fail_at_three_and_seven(number: int) -> int:
    if number == 3:
        time.sleep(0.1)  # so that 7 fails first when there is more than one worker
        raise ValueError("three")
    if number == 7:
        raise KeyError("seven")
    return number


class Stubborn(Exception):
    """Cannot be pickled."""

    def __init__(self, number: int) -> None:
        super().__init__(f"number {number}")
        self.lock = threading.Lock()


class Crooked(Exception):
    """Pickles, but cannot be rebuilt from its arguments."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__("crooked")


def raise_stubborn(number: int) -> None:
    raise Stubborn(number)


def raise_crooked(number: int) -> None:
    raise Crooked(number, number)


def return_a_lock(number: int) -> object:
    return threading.Lock()


def die(number: int) -> int:
    if number == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def leave(number: int) -> None:
    os._exit(number)


def mark_and_wait(job: tuple[str, int, float]) -> int:
    """Leave a file named by this process, then be busy."""
    folder, number, seconds = job
    Path(folder, f"{number}-{os.getpid()}").touch()
    time.sleep(seconds)
    return number


def spin(job: tuple[str, int, float]) -> int:
    """Like `mark_and_wait`, but burning the processor in one thread."""
    folder, number, seconds = job
    Path(folder, f"{number}-{os.getpid()}").touch()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass
    return number


def echo(data: bytes) -> bytes:
    return data


def say(number: int) -> int:
    print("spoken by a worker")
    sys.stdout.flush()
    return number


def surroundings(number: int) -> tuple[str, bool, bool, list[str]]:
    """(thread limit, torch imported, pyarrow imported, sys.path) of a worker."""
    return os.environ["OMP_NUM_THREADS"], "torch" in sys.modules, "pyarrow" in sys.modules, sys.path


def process_number(number: int) -> int:
    return os.getpid()


def raise_input_error(number: int) -> None:
    raise InputError("bad row", where=f"a.jsonl:{number}", mend="mend it")


def wait_for_a_file(item: tuple[str, int]) -> tuple[int, int]:
    """Leave this process's number in `N.pid`, wait for the file `go`, give (N, process)."""
    folder, number = Path(item[0]), item[1]
    (folder / f"{number}.tmp").write_text(str(os.getpid()))
    (folder / f"{number}.tmp").rename(folder / f"{number}.pid")
    while not (folder / "go").exists():
        time.sleep(0.02)
    return number, os.getpid()
