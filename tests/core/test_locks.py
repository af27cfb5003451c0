"""One writer a folder: living owners are respected, dead ones replaced, and a race for a dead one has one winner."""

from __future__ import annotations

import fcntl
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from headwater.core import locks
from headwater.core.errors import LockedError, UserError
from headwater.core.locks import STALE_SECONDS, FolderLock, lock_owner, machine_id, process_start
from tests.conftest import REPOSITORY, Killer


def dead_pid() -> int:
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def plant(folder: Path, **changes: Any) -> Path:
    """A lock file as another process would have left it."""
    record = {"host": "here", "machine": machine_id(), "pid": os.getpid(), "start": process_start(os.getpid())}
    path = FolderLock(folder).path
    path.write_text(json.dumps({**record, "since": "yesterday", "token": "planted", **changes}))
    return path


def age(path: Path, seconds: float) -> None:
    os.utime(path, (time.time() - seconds,) * 2)


def test_a_lock_is_beside_its_folder_and_gone_afterwards(tmp_path: Path) -> None:
    with FolderLock(tmp_path / "deep" / "run") as lock:
        assert lock.held
        assert lock.path == tmp_path / "deep" / ".run.lock"
        owner = lock_owner(tmp_path / "deep" / "run")
        assert owner is not None
        assert owner["pid"] == os.getpid()
        lock.check()
    assert not lock.path.exists()
    assert lock_owner(tmp_path / "deep" / "run") is None
    lock.release()  # a second release does nothing


def test_a_living_owner_is_respected_also_within_one_process(tmp_path: Path) -> None:
    with FolderLock(tmp_path / "run") as lock:
        with pytest.raises(LockedError, match=f"process {os.getpid()} on .* writes here since") as caught:
            FolderLock(tmp_path / "run").acquire()
        assert str(lock.path) in caught.value.mend
        with pytest.raises(LockedError, match="already holds"):
            lock.acquire()
        with FolderLock(tmp_path / "other"):
            pass
    with FolderLock(tmp_path / "run"):
        pass


def test_the_lock_of_a_killed_process_is_taken_over(tmp_path: Path, killer: Killer) -> None:
    script = "import sys, time; from pathlib import Path; from headwater.core.locks import FolderLock\n"
    script += "with FolderLock(Path(sys.argv[1])): time.sleep(60)"
    process = killer.start([sys.executable, "-c", script, tmp_path / "run"])
    while not FolderLock(tmp_path / "run").path.exists():
        time.sleep(0.01)
    with pytest.raises(LockedError, match=f"process {process.pid}"):
        FolderLock(tmp_path / "run").acquire()
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # a zombie now, as under a parent that does not wait
    assert process_start(process.pid) is None
    with FolderLock(tmp_path / "run") as lock:
        lock.check()


def test_a_process_number_used_again_does_not_keep_a_lock(tmp_path: Path) -> None:
    plant(tmp_path / "run", start="1")  # our own number, but another process's start
    with FolderLock(tmp_path / "run"):
        pass
    plant(tmp_path / "run")
    with pytest.raises(LockedError):
        FolderLock(tmp_path / "run").acquire()


def test_another_machine_is_judged_by_its_heartbeat(tmp_path: Path) -> None:
    lock = plant(tmp_path / "run", host="node7", machine="node7/boot/pid", pid=dead_pid())
    with pytest.raises(LockedError, match="on node7 writes here") as caught:
        FolderLock(tmp_path / "run").acquire()
    assert "taken over" in caught.value.mend
    age(lock, STALE_SECONDS - 20)
    assert lock_owner(tmp_path / "run") is not None
    with pytest.raises(LockedError, match=r"last sign of life 2[78]\d s ago"):
        FolderLock(tmp_path / "run").acquire()
    age(lock, STALE_SECONDS + 1)
    assert lock_owner(tmp_path / "run") is None
    with FolderLock(tmp_path / "run"):
        pass


def test_the_same_host_name_after_a_reboot_or_in_another_container_is_another_machine(tmp_path: Path) -> None:
    host, boot, namespace = machine_id().split("/")
    for machine in (f"{host}/other-boot/{namespace}", f"{host}/{boot}/pid:[1]"):
        plant(tmp_path / "run", machine=machine, pid=dead_pid())
        with pytest.raises(LockedError):
            FolderLock(tmp_path / "run").acquire()


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"\x00\x00"])
def test_an_unreadable_lock_is_respected_until_it_is_old(data: bytes, tmp_path: Path) -> None:
    path = FolderLock(tmp_path / "run").path
    path.write_bytes(data)
    with pytest.raises(LockedError, match="an unknown host"):
        FolderLock(tmp_path / "run").acquire()
    age(path, STALE_SECONDS + 1)
    with FolderLock(tmp_path / "run"):
        pass


def test_the_heartbeat_keeps_a_lock_fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "HEARTBEAT_SECONDS", 0.02)
    with FolderLock(tmp_path / "run") as lock:
        age(lock.path, 1000)
        deadline = time.monotonic() + 10
        while time.time() - lock.path.stat().st_mtime > 500:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_a_lost_lock_is_noticed_and_the_new_owner_left_alone(tmp_path: Path) -> None:
    with FolderLock(tmp_path / "run") as lock:
        plant(tmp_path / "run", pid=1, host="node7")
        with pytest.raises(LockedError, match="lost, now held by process 1 on node7"):
            lock.check()
    assert lock.path.exists()


def test_a_forked_child_does_not_own_or_release_the_lock(tmp_path: Path) -> None:
    def child() -> None:
        lock.release()
        os._exit(3 if lock.held else 4)

    with FolderLock(tmp_path / "run") as lock:
        process = multiprocessing.get_context("fork").Process(target=child)
        process.start()
        process.join()
        assert process.exitcode == 4
        lock.check()


RACE = """
import sys, time
from pathlib import Path
from headwater.core.errors import LockedError
from headwater.core.locks import FolderLock
folder, start = Path(sys.argv[1]), float(sys.argv[2])
held, got = [], []
while time.time() < start: pass
for number in range(40):
    lock = FolderLock(folder / f"run{number}")
    try:
        lock.acquire()
        held.append(lock)
        got.append(number)
    except LockedError:
        pass
print(*got, flush=True)
sys.stdin.read()
"""


def test_of_many_processes_that_see_the_same_stale_locks_each_lock_goes_to_one(tmp_path: Path) -> None:
    gone = dead_pid()
    for number in range(40):
        plant(tmp_path / f"run{number}", pid=gone, start="1")
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", RACE, str(tmp_path), str(time.time() + 1.0)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=REPOSITORY,
        )
        for _ in range(5)
    ]
    won = [int(number) for racer in racers for number in racer.stdout.readline().split()]  # type: ignore[union-attr]
    assert sorted(won) == list(range(40))
    assert sum(1 for racer in racers if racer.poll() is None) == 5
    for racer in racers:
        racer.communicate("", timeout=20)


def test_a_stopped_process_inside_the_guard_gives_an_error_instead_of_a_hang(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "GUARD_SECONDS", 0.1)
    descriptor = os.open(tmp_path / ".lock-guard", os.O_RDWR | os.O_CREAT)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    with pytest.raises(LockedError, match="taking a lock for over"):
        FolderLock(tmp_path / "run").acquire()
    os.close(descriptor)
    with FolderLock(tmp_path / "run"):
        pass
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock-guard"]


def test_without_flock_a_new_lock_works_and_a_stale_one_is_left_to_the_person(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "_flock", lambda descriptor, folder: False)  # as on some parallel file systems
    with FolderLock(tmp_path / "run"), pytest.raises(LockedError):
        FolderLock(tmp_path / "run").acquire()
    path = plant(tmp_path / "run", pid=dead_pid())
    with pytest.raises(LockedError) as caught:
        FolderLock(tmp_path / "run").acquire()
    assert caught.value.mend.endswith(f"remove {path}")


def test_starts_are_known_without_proc_too(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = dead_pid()
    monkeypatch.setattr(sys, "platform", "darwin")
    assert process_start(os.getpid()) == process_start(os.getpid()) not in (None, "") or shutil.which("ps") is None
    assert process_start(gone) is None


def test_a_place_one_may_not_write_to_is_the_users_error() -> None:
    with pytest.raises(UserError, match="cannot write here"):
        FolderLock(Path("/proc/self/run")).acquire()


def test_releasing_ends_the_heartbeat_thread(tmp_path: Path) -> None:
    before = threading.active_count()
    for _ in range(5):
        with FolderLock(tmp_path / "run"):
            pass
    deadline = time.monotonic() + 5
    while threading.active_count() > before:
        assert time.monotonic() < deadline
        time.sleep(0.01)
