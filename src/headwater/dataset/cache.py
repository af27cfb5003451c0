"""A bounded cache of token shards on a local disk, for datasets on slow or shared storage.

In: a dataset's folder, a cache folder (NVMe), a limit in bytes. Out: shards opened from the cache where they are there.
Reading never waits for a copy: what is not cached is read from the dataset itself, while one thread copies the shards
the coming steps need, in the order they need them. A copy is checked whole against the shard's own checksums before it
gets its name, so a cached shard is complete or not there; one that is damaged later is thrown away when that is
noticed, read from the dataset, and copied again.

    cache = ShardCache(Path("/nvme/shards"), dataset_path, key=fingerprint, limit_bytes=500_000_000_000)
    dataset = TokenDataset.open(dataset_path, cache=cache)

The limit holds for the folder, whatever datasets and processes share it: room is reserved under one lock before a copy
begins. Where room is missing, the least recently used shards make way, but none that was used within `idle_seconds`: a
dataset larger than the cache, read at random, keeps what it has rather than copying without end. Space of a shard
that made way is free once every process has let go of it, which it does when it next opens a shard.
"""

from __future__ import annotations

import errno
import fcntl
import os
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from headwater.core.errors import CorruptArtifactError, InputError, UserError
from headwater.core.files import TEMP_PREFIX, temp_path
from headwater.dataset.shard import TokenShard

CHUNK_BYTES = 8 << 20
TOUCH_SECONDS = 1.0
"""How often a shard in use is marked so, and how often the folder is asked for one that is not there."""

ATTEMPTS = 2
"""Copies of a shard that fail before it is left to be read from the dataset."""

_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class ShardCache:
    """One dataset's part of a cache folder. Safe to use from several threads; several processes may share the folder.

    folder: made if missing; UserError if it cannot be. source: the dataset's folder. key: names the dataset among
    others. limit_bytes: of all files in the folder. idle_seconds: how long a shard must be unused to make way.
    """

    def __init__(self, folder: Path, source: Path, *, key: str, limit_bytes: int, idle_seconds: float = 60.0) -> None:
        self.folder, self.source, self.limit_bytes, self.idle_seconds = Path(folder), source, limit_bytes, idle_seconds
        self.own = self.folder / key
        """Where this dataset's shards lie."""
        try:
            self.own.mkdir(parents=True, exist_ok=True)
            (self.folder / ".lock").touch()
        except OSError as error:
            raise UserError(
                f"cannot write here: {error.strerror}",
                where=str(self.folder),
                mend="choose another dataset.cache_dir, or leave it out",
            ) from error
        self.copied_bytes = 0
        """Copied by this process."""
        self._seen: dict[str, float] = {}
        self._failures: dict[str, int] = {}
        self._wanted: dict[str, None] = {}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._busy = self._closed = False
        self._descriptor = -1  # holds the lock of the file being copied into

    # Reading.

    def open(self, name: str) -> TokenShard | None:
        """A shard from the cache; None if it is not there, or was damaged (it is thrown away then)."""
        now = time.monotonic()
        if now - self._seen.get(name, -TOUCH_SECONDS) < TOUCH_SECONDS:
            return None
        self._seen[name] = now
        try:
            shard = TokenShard(self.own / name)
        except InputError:
            return None
        except CorruptArtifactError:
            self.discard(name)
            return None
        shard.cached_as = name
        self._mark(name)
        return shard

    def still_there(self, name: str) -> bool:
        """Mark an open shard as used; False once it has made way for another."""
        now = time.monotonic()
        if now - self._seen.get(name, 0.0) < TOUCH_SECONDS:
            return True
        self._seen[name] = now
        return self._mark(name)

    def discard(self, name: str) -> None:
        """Throw a damaged shard away and ask for another copy."""
        with suppress(FileNotFoundError):
            (self.own / name).unlink()
        self.request([name])

    def _mark(self, name: str) -> bool:
        try:
            os.utime(self.own / name)
        except OSError:
            return False
        return True

    # Copying.

    def request(self, names: Iterable[str]) -> None:
        """Ask for shards that will be needed, the first of them first. Returns at once."""
        with self._changed:
            if self._closed:
                return
            for name in names:
                if self._failures.get(name, 0) < ATTEMPTS:
                    self._wanted.setdefault(name)
            if self._wanted and self._thread is None:
                self._thread = threading.Thread(target=self._work, name="headwater-shard-cache", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def settle(self, timeout: float = 60.0) -> bool:
        """Wait until everything asked for is copied, or has no room; False if that takes longer."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._wanted and not self._busy, timeout)

    def close(self) -> None:
        """End the copying thread after the part it is in."""
        with self._changed:
            self._closed = True
            self._wanted.clear()
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._busy = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._wanted or self._closed)
                if self._closed:
                    return
                name = next(iter(self._wanted))
                del self._wanted[name]
                self._busy = True
            if self._mark(name):
                continue  # there already: needed soon, so it does not make way
            try:
                self._fetch(name)
            except (OSError, CorruptArtifactError, InputError):
                # Nobody waits for the copy: whoever reads the shard meets the reason at its source.
                self._failures[name] = self._failures.get(name, 0) + 1

    def _fetch(self, name: str) -> None:
        target = self.own / name
        size = (self.source / name).stat().st_size
        target.parent.mkdir(parents=True, exist_ok=True)
        temp = self._reserve(target, size)
        if temp is None:
            return
        try:
            self._copy(self.source / name, temp)
            if self._closed:
                return
            TokenShard(temp).verify()
            os.rename(temp, target)
            self._seen.pop(name, None)
            self.copied_bytes += size
        finally:
            temp.unlink(missing_ok=True)
            os.close(self._descriptor)

    def _copy(self, source: Path, temp: Path) -> None:
        with open(source, "rb") as reader, open(temp, "r+b") as writer:
            while not self._closed and (part := reader.read(CHUNK_BYTES)):
                writer.write(part)

    def _reserve(self, target: Path, size: int) -> Path | None:
        """A locked file of the right size to copy into; None if there is no room, or another process copies it."""
        with self._folder_lock():
            used, there, copying = self._inventory()
            if target.exists() or target in copying or not self._make_room(used + size, there):
                return None
            temp = temp_path(target)
            self._descriptor = os.open(temp, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.posix_fallocate(self._descriptor, 0, size)
            except OSError as error:
                if error.errno not in _NO_ROOM:
                    os.ftruncate(self._descriptor, size)  # a file system that cannot reserve
                    return temp
                temp.unlink()
                os.close(self._descriptor)
                return None
            return temp

    def _inventory(self) -> tuple[int, list[tuple[float, int, Path]], set[Path]]:
        """(bytes in the folder, finished shards as (last use, bytes, path), targets of copies under way). Copies whose
        process is gone are removed."""
        used, there, copying = 0, [], set()
        for path in self.folder.rglob("*"):
            if path.is_dir() or path.name == ".lock":
                continue
            with suppress(FileNotFoundError):
                stat = path.stat()
                if not path.name.startswith(TEMP_PREFIX):
                    there.append((stat.st_mtime, stat.st_size, path))
                elif _abandoned(path):
                    path.unlink()
                    continue
                else:
                    copying.add(path.with_name(path.name.removeprefix(TEMP_PREFIX).partition("-")[2]))
                used += stat.st_size
        return used, sorted(there), copying

    def _make_room(self, needed: int, there: list[tuple[float, int, Path]]) -> bool:
        """Remove idle shards, the least recently used first, until `needed` bytes are within the limit. Removes none
        if they would not suffice."""
        now = time.time()
        leaving: list[Path] = []
        for used, size, path in there:
            if needed <= self.limit_bytes or now - used < self.idle_seconds:
                break
            leaving.append(path)
            needed -= size
        if needed > self.limit_bytes:
            return False
        for path in leaving:
            path.unlink(missing_ok=True)
        return True

    @contextmanager
    def _folder_lock(self) -> Iterator[None]:
        descriptor = os.open(self.folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)  # closing gives the lock back


def _abandoned(path: Path) -> bool:
    """Whether the process that was writing a file is gone: its lock went with it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True
