"""One writer a folder.

The lock of `runs/a` is the file `runs/.a.lock`, beside the folder, so that the folder can be renamed while it is held.
It names host, boot, process, the process's start time and a random token. On the owner's machine a lock is stale
when that very process is gone (a new process with the same number does not count); seen from another machine, when
its heartbeat is older than `STALE_SECONDS`. Stale locks are taken over by themselves.

    with FolderLock(folder): ...           # LockedError while another living process holds it

Taking over happens under a short `flock` on `.lock-guard` in the parent folder, so of two processes that see the same
stale lock one wins. On a file system without flock a stale lock is never taken over; the error says what to remove.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from headwater.core.errors import LockedError, UserError
from headwater.core.files import disk_errors, temp_path
from headwater.core.jsonl import canonical_json, parse_json

HEARTBEAT_SECONDS = 15.0
STALE_SECONDS = 300.0
"""Twenty missed heartbeats: long enough for a process stuck in a call that keeps Python's lock."""

GUARD_SECONDS = 10.0
"""The guard is held for about a millisecond; longer means its holder is stopped."""

_NO_FLOCK = {errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL}
_NO_LINK = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}


def process_start(pid: int) -> str | None:
    """When a process of this machine started, in a form that only equality is asked of; None if it is gone.

    A zombie counts as gone: it writes nothing any more. "" if it lives but the system hides when it started.
    """
    if sys.platform == "linux":
        try:
            stat = Path(f"/proc/{pid}/stat").read_bytes()
        except OSError:  # gone, or /proc is mounted so that it hides the processes of other users
            return "" if _exists(pid) else None
        fields = stat[stat.rindex(b")") + 2 :].split()  # the name before it may hold spaces and brackets
        return None if fields[0] in (b"Z", b"X") else fields[19].decode()
    try:
        answer = subprocess.run(
            ["ps", "-o", "lstart=", "-p", str(pid)],
            env={**os.environ, "LC_ALL": "C", "TZ": "UTC"},  # two processes must read the same start alike
            capture_output=True,
            text=True,
            check=False,
        )
    except FileNotFoundError:
        return "" if _exists(pid) else None
    return answer.stdout.strip() or None


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def machine_id() -> str:
    """Names one running kernel and one process-number space: equal exactly where process numbers can be compared."""
    boot = namespace = ""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    with suppress(OSError):
        namespace = os.readlink("/proc/self/ns/pid")
    return "/".join((socket.gethostname(), boot, namespace))


class FolderLock:
    """Exclusive right to write to `folder`, as a context manager or by `acquire` and `release`.

    Never waits. Raises LockedError when a living process (this one included) holds it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)
        self.path = self.folder.with_name(f".{self.folder.name}.lock")
        self._token = ""
        self._pid = 0
        self._stop = threading.Event()

    @property
    def held(self) -> bool:
        """Whether this process holds it; a forked child does not."""
        return bool(self._token) and self._pid == os.getpid()

    def acquire(self) -> None:
        if self.held:
            raise LockedError("this process already holds the lock", where=str(self.folder))
        token = uuid.uuid4().hex
        record = {
            "host": socket.gethostname(),
            "machine": machine_id(),
            "pid": os.getpid(),
            "start": process_start(os.getpid()),
            "since": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "token": token,
        }
        temp = temp_path(self.path)
        try:
            with disk_errors(self.path):
                self.path.parent.mkdir(parents=True, exist_ok=True)
                temp.write_bytes(canonical_json(record))
            with guard(self.path.parent) as guarded:
                self._take(temp, guarded)
        except OSError as error:
            raise UserError(
                f"cannot write here: {error.strerror}",
                where=str(self.path.parent),
                mend="choose a workspace this user may write to (--workspace)",
            ) from error
        finally:
            with suppress(OSError):
                temp.unlink()
        self._token, self._pid = token, os.getpid()
        self._stop = threading.Event()
        threading.Thread(target=self._beat, args=(self._stop, token), name="folder-lock", daemon=True).start()

    def _take(self, temp: Path, guarded: bool) -> None:
        owner = _read(self.path)
        if owner is not None:
            now = temp.stat().st_mtime  # the file system's clock, not ours: hosts differ
            if not guarded or _alive(owner, now):
                raise self._locked(owner, now, guarded)
            with suppress(FileNotFoundError):
                self.path.unlink()
        try:
            os.link(temp, self.path)  # fails if it exists, on every file system with links, and is never half-written
        except FileExistsError:
            again = _read(self.path) or {}
            raise self._locked(again, temp.stat().st_mtime, guarded) from None
        except OSError as error:
            if error.errno not in _NO_LINK or not guarded:
                raise
            os.rename(temp, self.path)

    def _locked(self, owner: dict[str, Any], now: float, guarded: bool) -> LockedError:
        age = max(0.0, now - owner.get("mtime", now))
        who = f"process {owner.get('pid', '?')} on {owner.get('host', 'an unknown host')}"
        mend = f"wait for it or stop it; if you are sure it is gone, remove {self.path}"
        if owner.get("machine") != machine_id() and guarded:
            mend += f" (or wait: without a sign of life for {STALE_SECONDS:.0f} s the lock is taken over)"
        return LockedError(
            f"{who} writes here since {owner.get('since', 'some time')}, last sign of life {age:.0f} s ago",
            where=str(self.folder),
            mend=mend,
        )

    def _beat(self, stop: threading.Event, token: str) -> None:
        while not stop.wait(HEARTBEAT_SECONDS):
            if (_read(self.path) or {}).get("token") != token:
                return  # taken over: do not keep another's lock alive
            with suppress(OSError):
                os.utime(self.path)

    def check(self) -> None:
        """Raises LockedError if the lock was lost, as after a suspension longer than `STALE_SECONDS`.

        Call it before what must not be done twice, such as a commit.
        """
        owner = _read(self.path) or {}
        if not self.held or owner.get("token") != self._token:
            raise LockedError(
                f"the lock was lost, now held by process {owner.get('pid', '?')} on {owner.get('host', '?')}",
                where=str(self.folder),
                mend="run again; finished parts are kept",
            )

    def release(self) -> None:
        """Give it back; does nothing if it is not held, or was taken over."""
        if not self.held:
            return
        token, self._token = self._token, ""
        self._stop.set()
        with guard(self.path.parent):
            if (_read(self.path) or {}).get("token") == token:
                with suppress(FileNotFoundError):
                    self.path.unlink()

    def __enter__(self) -> FolderLock:
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def lock_owner(folder: Path) -> dict[str, Any] | None:
    """Who writes to `folder` now (`pid`, `host`, `since`), or None; a stale lock counts as none."""
    owner = _read(FolderLock(folder).path)
    return owner if owner is not None and _alive(owner, time.time()) else None


def _read(path: Path) -> dict[str, Any] | None:
    """The lock's record with its mtime; an unreadable record keeps only the mtime; None if there is no lock."""
    try:
        with open(path, "rb") as file:
            data, mtime = file.read(), os.fstat(file.fileno()).st_mtime
    except FileNotFoundError:
        return None
    try:
        record = parse_json(data)
    except ValueError:
        record = {}
    return {**(record if isinstance(record, dict) else {}), "mtime": mtime}


def _alive(owner: dict[str, Any], now: float) -> bool:
    if owner.get("machine") == machine_id():
        started = process_start(int(owner["pid"]))
        if started != "" and owner["start"] != "":
            return started == owner["start"]
    return now - float(owner["mtime"]) < STALE_SECONDS


@contextmanager
def guard(folder: Path) -> Iterator[bool]:
    """Hold `folder/.lock-guard` by flock for a moment; False where the file system has no flock. LockedError after
    `GUARD_SECONDS`."""
    descriptor = os.open(folder / ".lock-guard", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        yield _flock(descriptor, folder)
    finally:
        os.close(descriptor)  # closing gives the flock back


def _flock(descriptor: int, folder: Path) -> bool:
    deadline = time.monotonic() + GUARD_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise LockedError(
                    f"another process has been taking a lock for over {GUARD_SECONDS:.0f} s",
                    where=str(folder / ".lock-guard"),
                    mend="a process is stopped in the middle of it (Ctrl-Z, a debugger): continue or end it",
                ) from None
            time.sleep(0.005)
        except OSError as error:
            if error.errno not in _NO_FLOCK:
                raise
            return False
