"""Files that are either there and whole, or not there.

`atomic_write` goes through a temporary name, fsync and rename. A full disk becomes a `DiskSpaceError` that names
the file. Temporary names start with `TEMP_PREFIX`, so whoever resumes can remove what a kill left behind.

    atomic_write(folder / "manifest.json", data)
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from headwater.core.errors import DiskSpaceError

TEMP_PREFIX = ".tmp-"
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def temp_path(path: Path) -> Path:
    """A fresh temporary name beside `path`, with the same suffix (some writers look at it)."""
    return path.with_name(f"{TEMP_PREFIX}{uuid.uuid4().hex[:12]}-{path.name}")


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn 'no space', 'quota' and 'file too large' into a DiskSpaceError about `path`."""
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL:
            raise
        raise DiskSpaceError(
            f"cannot write: {error.strerror}",
            where=str(path),
            mend="free some space (`df -h` shows it) or choose a folder on another disk, then run again: "
            "finished parts are kept",
        ) from error


def fsync_file(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fsync_dir(path: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network file systems cannot sync a folder
            raise
    finally:
        os.close(descriptor)


def atomic_write(path: Path, data: bytes) -> None:
    """Replace `path` by `data` at once and durably; readers see the old bytes or the new. Raises DiskSpaceError."""
    path = Path(path)
    temp = temp_path(path)
    with disk_errors(path):
        try:
            with open(temp, "xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temp, path)
        except BaseException:
            with suppress(OSError):
                temp.unlink()
            raise
        fsync_dir(path.parent)


def sha256_file(path: Path) -> str:
    """Hex SHA-256 of a file's content, streamed."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256_bytes(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def free_bytes(path: Path) -> int:
    """Free bytes for this user on the file system that holds `path`, or would hold it once made."""
    place = Path(path).absolute()
    while not place.exists():
        place = place.parent
    return shutil.disk_usage(place).free


def space(count: float) -> str:
    """Bytes in words, as disks are sold: 1.25 GB, 8.5 MB, 812 bytes; three digits, and more only of TB."""
    for limit, name in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if (value := count / limit) >= 0.9995:
            return f"{value:,.0f} {name}" if value >= 999.5 else f"{value:.3g} {name}"
    return f"{count:.0f} bytes"


def gib(count: float) -> str:
    """Bytes in words, as memory is built: 1.25 GiB, 79.2 GiB."""
    value = count / 2**30
    return f"{value:,.2f} GiB" if value < 10 else f"{value:,.1f} GiB"


def free_bytes_check(path: Path, needed_bytes: int, what: str) -> None:
    """Refuse to begin what cannot fit. Raises DiskSpaceError."""
    free = free_bytes(path)
    if needed_bytes > free:
        raise DiskSpaceError(
            f"{what} needs about {space(needed_bytes)}, but only {space(free)} are free",
            where=str(path),
            mend="free some space or choose a folder on another disk",
        )
