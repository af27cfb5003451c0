"""A folder for temporary files inside the output folder: gone at the end, and after a kill gone with the next run.

with workplace(out, key) as place: ...
"""

from __future__ import annotations

import fcntl
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from headwater.core.errors import InputError
from headwater.core.files import TEMP_PREFIX, disk_errors

_PREFIX = f"{TEMP_PREFIX}dedup-"
_OWNER = "owner"


def begun(out: Path, key: str) -> bool:
    """Whether a run of this fingerprint was killed in `out`."""
    for owner in out.glob(f"{_PREFIX}*/{_OWNER}"):
        with suppress(OSError):
            if owner.read_text("utf-8") == key:
                return True
    return False


@contextmanager
def workplace(out: Path, key: str) -> Iterator[Path]:
    """Makes `out` and yields a fresh folder in it for a run of fingerprint `key`. What a killed run left in `out` is
    removed: its owner file is no longer locked. Raises InputError if `out` cannot be made or written."""
    try:
        with disk_errors(out):
            out.mkdir(parents=True, exist_ok=True)
            place = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=out))
    except OSError as error:
        raise InputError(
            f"cannot write into this folder: {error.strerror}", where=str(out), mend="give another --out"
        ) from error
    try:
        with open(place / _OWNER, "w", encoding="utf-8") as owner:
            fcntl.flock(owner, fcntl.LOCK_EX)
            with disk_errors(out):
                owner.write(key)
                owner.flush()
            for other in out.glob(f"{_PREFIX}*"):
                if other != place:
                    _remove_if_left(other)
            yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _remove_if_left(folder: Path) -> None:
    try:
        with open(folder / _OWNER, "rb") as owner:
            fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
    except OSError:
        return  # another run's, or one that has just begun
