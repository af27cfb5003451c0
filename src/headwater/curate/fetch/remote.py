"""Files of any protocol fsspec knows: patterns turned into addresses, and one file brought here, resumed where it
broke.

expand("s3://bucket/books/*.parquet", {"anon": True})
bring("memory://a/b.txt", Path("b.txt"), options={}, retries=5)
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from headwater.core.errors import InputError
from headwater.core.files import atomic_write, disk_errors, fsync_dir
from headwater.core.jsonl import canonical_json
from headwater.curate.fetch.transfer import (
    CHUNK_BYTES,
    LONGEST_WAIT,
    TransferError,
    Transferred,
    about_part,
    check_part,
    known_part,
    part_path,
)

_EXTRAS = {"s3": "s3", "s3a": "s3", "hf": "hub"}


def open_remote(address: str, options: dict[str, Any]) -> tuple[Any, str]:
    """The file system of an address and the path in it. InputError for a protocol whose package is not here."""
    import fsspec.core

    try:
        return fsspec.core.url_to_fs(address, **options)
    except (ImportError, ValueError) as error:
        protocol = address.partition("://")[0]
        extra = _EXTRAS.get(protocol)
        raise InputError(
            f"cannot open {protocol}:// addresses: {error}",
            where=address,
            mend=f"pip install 'headwater[{extra}]'" if extra else "install the fsspec package for this protocol",
        ) from error


def expand(address: str, options: dict[str, Any]) -> list[str]:
    """The addresses a pattern means, sorted; an address without a pattern is itself. InputError for one that means
    nothing."""
    if not any(mark in address for mark in "*?["):
        return [address]
    system, path = open_remote(address, options)
    try:
        found = sorted(system.unstrip_protocol(name) for name in system.glob(path) if not system.isdir(name))
    except Exception as error:  # every file system has errors of its own
        raise InputError(f"cannot list: {error}", where=address, mend="check address, access and network") from error
    if not found:
        raise InputError("nothing there", where=address, mend="check the pattern")
    return found


def bring(
    address: str,
    path: Path,
    *,
    options: dict[str, Any],
    checksum: str = "",
    retries: int = 5,
    retry_seconds: float = 1.0,
) -> Transferred:
    """Copy a file here. Raises TransferError once all tries are used up, DiskSpaceError on a full disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    system, place = open_remote(address, options)
    tries = 0
    while True:
        tries += 1
        try:
            _copy(system, place, address, path)
            size, sha256 = check_part(path, checksum)
        except TransferError as error:
            if error.final or tries > retries:
                raise TransferError(f"{error.what} (after {tries} tries)" if tries > 1 else error.what) from error
            time.sleep(min(LONGEST_WAIT, retry_seconds * 2 ** (tries - 1)))
            continue
        os.replace(part_path(path), path)
        fsync_dir(path.parent)
        about_part(path).unlink(missing_ok=True)
        return Transferred(size, sha256, tries)


def _copy(system: Any, place: str, address: str, path: Path) -> None:
    part = part_path(path)
    try:
        info = system.info(place)
        if info.get("type") == "directory":
            raise TransferError("it is a folder; add a pattern such as /**/*.parquet", final=True)
        validator = str(system.ukey(place))
        have, known = known_part(path, address)
        if not have or known != validator:
            have = 0
            part.unlink(missing_ok=True)
            atomic_write(about_part(path), canonical_json({"address": address, "validator": validator}))
        with system.open(place, "rb") as source, disk_errors(part), open(part, "ab" if have else "wb") as file:
            source.seek(have)
            while chunk := source.read(CHUNK_BYTES):
                file.write(chunk)
            file.flush()
            os.fsync(file.fileno())
    except TransferError:
        raise
    except FileNotFoundError as error:
        raise TransferError("there is no such file", final=True) from error
    except PermissionError as error:
        raise TransferError(f"access denied: {error}", final=True) from error
    except OSError as error:
        if error.errno is not None and error.filename == str(part):
            raise
        raise TransferError(f"{type(error).__name__}: {error}") from error
    except Exception as error:  # the errors of a cloud's own package
        raise TransferError(f"{type(error).__name__}: {error}") from error
