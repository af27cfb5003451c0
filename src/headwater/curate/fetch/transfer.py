"""One file over HTTP: resumed with `Range`, tried again after faults, paced by host, checked against its checksum.

In: an address. Out: a file under its final name, which therefore is whole; half of one lies beside it as `.part` with
what is known of it (`.part.json`), and the next try goes on from there if the server still has the same content.

    transfer("https://example.org/a.jsonl", Path("a.jsonl"), pace=Pace(8.0), retries=5)
"""

from __future__ import annotations

import email.utils
import hashlib
import http.client
import os
import threading
import time
import urllib.error
import urllib.request
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from headwater.core.files import atomic_write, disk_errors, fsync_dir
from headwater.core.jsonl import canonical_json, parse_json

CHUNK_BYTES = 1 << 18
LONGEST_WAIT = 300.0
_AGAIN = {408, 425, 429, 500, 502, 503, 504}
USER_AGENT = "headwater (+text collection; obeys Retry-After)"


class TransferError(Exception):
    """A file that could not be had; `final` if another try would change nothing, `wait` what the server asked for."""

    def __init__(self, what: str, *, final: bool = False, wait: float = 0.0) -> None:
        super().__init__(what)
        self.what, self.final, self.wait = what, final, wait


class Pace:
    """Lets requests to a host through one after the other, `per_second` at most. Shared by threads."""

    def __init__(self, per_second: float) -> None:
        self._gap = 1.0 / per_second
        self._next: dict[str, float] = defaultdict(float)
        self._lock = threading.Lock()

    def wait(self, host: str) -> None:
        with self._lock:
            now = time.monotonic()
            turn = max(now, self._next[host])
            self._next[host] = turn + self._gap
        time.sleep(max(0.0, turn - now))


@dataclass(frozen=True, slots=True)
class Transferred:
    """A file that came: bytes, SHA-256, how many tries it took, and the server's own name for the content."""

    size: int
    sha256: str
    tries: int
    etag: str = ""


def transfer(
    address: str,
    path: Path,
    *,
    pace: Pace,
    checksum: str = "",
    retries: int = 5,
    retry_seconds: float = 1.0,
    timeout_seconds: float = 60.0,
) -> Transferred:
    """Fetch `address` into `path`. Raises TransferError once all tries are used up, DiskSpaceError on a full disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    tries = 0
    while True:
        tries += 1
        try:
            etag = _once(address, path, pace, timeout_seconds)
            size, sha256 = check_part(path, checksum)
        except TransferError as error:
            if error.final or tries > retries:
                raise TransferError(f"{error.what} (after {tries} tries)" if tries > 1 else error.what) from error
            time.sleep(min(LONGEST_WAIT, max(error.wait, retry_seconds * 2 ** (tries - 1))))
            continue
        os.replace(part_path(path), path)
        fsync_dir(path.parent)
        about_part(path).unlink(missing_ok=True)
        return Transferred(size, sha256, tries, etag)


def part_path(path: Path) -> Path:
    """Where a file lies until it is whole."""
    return path.with_name(path.name + ".part")


def about_part(path: Path) -> Path:
    """Where it is noted what the part is of: address and validator."""
    return path.with_name(path.name + ".part.json")


def _once(address: str, path: Path, pace: Pace, timeout: float) -> str:
    """One request; what came is in the part file. Returns the content's validator."""
    part = part_path(path)
    have, validator = known_part(path, address)
    headers = {"User-Agent": USER_AGENT, "Accept-Encoding": "identity"}
    if have:
        headers |= {"Range": f"bytes={have}-", "If-Range": validator}
    pace.wait(urlsplit(address).netloc)
    try:
        with urllib.request.urlopen(urllib.request.Request(address, headers=headers), timeout=timeout) as reply:
            return _receive(reply, path, address, have)
    except urllib.error.HTTPError as error:
        with error:
            if error.code == 416 and have:  # all of it is here, or the content has become shorter
                if error.headers.get("Content-Range", "") == f"bytes */{have}":
                    return validator
                part.unlink(missing_ok=True)
                raise TransferError("the content has changed since it was begun") from error
            wait = _retry_after(error.headers.get("Retry-After", ""))
            raise TransferError(
                f"HTTP {error.code} {error.reason}", final=error.code not in _AGAIN, wait=wait
            ) from error
    except (OSError, http.client.HTTPException) as error:
        if isinstance(error, OSError) and error.errno is not None and not _of_network(error):
            raise
        reason = getattr(error, "reason", None) or error
        raise TransferError(f"{type(error).__name__}: {reason}") from error
    except ValueError as error:  # an address nobody can connect to
        raise TransferError(f"{error}", final=True) from error


def _of_network(error: OSError) -> bool:
    """Whether an error is about the connection, not about the disk here."""
    return isinstance(error, ConnectionError | TimeoutError | urllib.error.URLError) or error.filename is None


def known_part(path: Path, address: str) -> tuple[int, str]:
    """Bytes of the part that can be gone on with, and the validator they belong to; else 0."""
    try:
        about: dict[str, Any] = parse_json(about_part(path).read_bytes())
        size = part_path(path).stat().st_size
        if about["address"] == address and about["validator"] and size:
            return size, str(about["validator"])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return 0, ""


def _receive(reply: Any, path: Path, address: str, have: int) -> str:
    part = part_path(path)
    validator = _validator(reply.headers)
    goes_on = reply.status == 206 and reply.headers.get("Content-Range", "").startswith(f"bytes {have}-")
    if reply.status == 206 and not goes_on:
        part.unlink(missing_ok=True)
        raise TransferError("the server sent another range than was asked for")
    if not goes_on:
        have = 0
        part.unlink(missing_ok=True)
        atomic_write(about_part(path), canonical_json({"address": address, "validator": validator}))
    expected = reply.headers.get("Content-Length")
    total = have + int(expected) if expected is not None and expected.isdigit() else None
    with disk_errors(part), open(part, "ab" if goes_on else "wb") as file:
        while chunk := reply.read(CHUNK_BYTES):
            file.write(chunk)
            have += len(chunk)
        file.flush()
        os.fsync(file.fileno())
    if total is not None and have != total:
        raise TransferError(f"the connection ended at byte {have:,} of {total:,}")
    return validator


def _validator(headers: Any) -> str:
    """A strong ETag, else the date: what `If-Range` takes. Neither: a broken transfer begins anew."""
    etag = headers.get("ETag", "")
    return etag if etag and not etag.startswith("W/") else headers.get("Last-Modified", "")


def _retry_after(value: str) -> float:
    """Seconds the server asks to wait for; it may say a date."""
    if value.strip().isdigit():
        return float(value)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    except (TypeError, ValueError):
        return 0.0


def check_part(path: Path, checksum: str) -> tuple[int, str]:
    """Bytes and SHA-256 of the part. TransferError, and the part is gone, for another checksum than `checksum`."""
    part = part_path(path)
    size, sha256, own = digests(part, checksum.partition(":")[0])
    if checksum and own != checksum.partition(":")[2]:
        part.unlink()
        about_part(path).unlink(missing_ok=True)
        raise TransferError(f"its checksum is {checksum.partition(':')[0]}:{own}, not {checksum}")
    return size, sha256


def digests(path: Path, kind: str = "") -> tuple[int, str, str]:
    """Bytes, SHA-256 and the digest of another kind (md5, sha1, sha256), in one pass."""
    main = hashlib.sha256()
    other = hashlib.new(kind, usedforsecurity=False) if kind and kind != "sha256" else main
    size = 0
    with open(path, "rb") as file:
        while chunk := file.read(1 << 20):
            size += len(chunk)
            main.update(chunk)
            if other is not main:
                other.update(chunk)
    return size, main.hexdigest(), other.hexdigest()
