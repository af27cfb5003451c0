"""Identify raw files by their content, without reading them again while they stay the same.

The hash of a file is kept in `WORKSPACE/.cache/raw-hashes.jsonl` under (path, size, mtime in ns, inode); if these
agree the file is not opened, so the check of 3,000 unchanged files takes well under a second.

    with HashCache(workspace) as cache:
        found = hash_tree(Path("corpora"), cache)      # found.digest enters the fingerprint
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import xxhash

from headwater.core.errors import DiskSpaceError, InputError
from headwater.core.files import atomic_write
from headwater.core.jsonl import JsonlLog, canonical_json, read_jsonl

CHUNK_BYTES = 1 << 20
RACY_NS = 2_000_000_000
"""A file changed less than this before it was hashed may change again without a new mtime: it is not remembered."""


class UnreadableError(InputError):
    """A raw file that is missing, forbidden, or no regular file."""


_Key = tuple[int, int, int]  # size, mtime_ns, inode


class HashCache:
    """Remembers content hashes of files in a workspace. One a process; several processes may share the file.

    `hits` and `misses` count since opening; a miss read the file.
    """

    def __init__(self, workspace: Path) -> None:
        self.path = Path(workspace) / ".cache" / "raw-hashes.jsonl"
        self.hits = self.misses = 0
        self._known: dict[str, tuple[_Key, str]] = {}
        self._log: JsonlLog | None = None
        self._failed = False
        if self.path.exists():
            self._load()

    def _load(self) -> None:
        rows = broken = 0

        def count_broken(number: int, offset: int, reason: str) -> None:
            nonlocal broken
            broken += 1  # two processes wrote at once, or the disk erred: those files are read again

        for row in read_jsonl(self.path, count_broken):
            rows += 1
            try:
                self._known[row["path"]] = ((row["size"], row["mtime_ns"], row["inode"]), row["hash"])
            except (KeyError, TypeError):
                broken += 1
        if broken or rows > 2 * len(self._known) + 1000:
            lines = (canonical_json(_row(path, *entry)) + b"\n" for path, entry in self._known.items())
            with suppress(OSError, DiskSpaceError):
                atomic_write(self.path, b"".join(lines))

    def get(self, path: str, key: _Key) -> str | None:
        entry = self._known.get(path)
        return entry[1] if entry is not None and entry[0] == key else None

    def put(self, path: str, key: _Key, digest: str) -> None:
        self._known[path] = (key, digest)
        try:
            if self._log is None and not self._failed:
                self._log = JsonlLog(self.path)
            if self._log is not None:
                self._log.append(_row(path, key, digest))
        except (OSError, DiskSpaceError):  # a workspace one may only read: hashes are right, only not remembered
            self._failed = True
            self.close()

    def close(self) -> None:
        if self._log is not None:
            self._log.close()
            self._log = None

    def __enter__(self) -> HashCache:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _row(path: str, key: _Key, digest: str) -> dict[str, object]:
    return {"path": path, "size": key[0], "mtime_ns": key[1], "inode": key[2], "hash": digest}


def hash_file(path: Path, cache: HashCache | None = None) -> str:
    """XXH3-128 of a file's bytes, 32 hex digits, streamed.

    Raises UnreadableError if it cannot be read or is no regular file (a pipe would wait for ever), InputError if it
    changed while it was read.
    """
    return _hash(Path(path), cache)[0]


def _hash(path: Path, cache: HashCache | None) -> tuple[str, int]:
    try:
        before = os.stat(path)
        if not stat.S_ISREG(before.st_mode):
            raise UnreadableError(
                "not a regular file", where=str(path), mend="give a file, or leave it out of the source"
            )
        key = (before.st_size, before.st_mtime_ns, before.st_ino)
        name = os.path.abspath(path)
        if cache is not None and (known := cache.get(name, key)) is not None:
            cache.hits += 1
            return known, before.st_size
        state = xxhash.xxh3_128()
        with open(path, "rb", buffering=0) as file:
            while chunk := file.read(CHUNK_BYTES):
                state.update(chunk)
        after = os.stat(path)
    except OSError as error:
        raise UnreadableError(
            f"cannot read: {error.strerror}", where=str(path), mend="check that it exists and may be read"
        ) from error
    if (after.st_size, after.st_mtime_ns, after.st_ino) != key:
        raise InputError("the file changed while it was read", where=str(path), mend="run again once it is complete")
    digest = state.hexdigest()
    if cache is not None:
        cache.misses += 1
        if time.time_ns() - key[1] > RACY_NS:
            cache.put(name, key, digest)
    return digest, before.st_size


@dataclass(frozen=True, slots=True)
class RawFile:
    """One raw file: its path relative to the source's root (with `/`), size in bytes, and content hash.

    An unreadable file has hash "" and the reason in `unreadable`.
    """

    relative: str
    size: int
    hash: str
    unreadable: str = ""


@dataclass(frozen=True)
class RawInput:
    """A source's files, sorted by the bytes of their relative paths, and one digest over paths and contents."""

    root: Path
    files: tuple[RawFile, ...]
    digest: str

    @property
    def total_bytes(self) -> int:
        return sum(file.size for file in self.files)

    @property
    def unreadable(self) -> tuple[RawFile, ...]:
        return tuple(file for file in self.files if file.unreadable)


def hash_files(root: Path, paths: Iterable[Path], cache: HashCache | None = None) -> RawInput:
    """Identify given files of a source; the order given, the root's own place and mtimes play no part.

    A file that cannot be read does not stop it: it enters the digest as unreadable and is listed in `.unreadable`, so
    that the caller can quarantine it, and the digest changes once it can be read. Raises InputError if a file changed
    while it was read.
    """
    root = Path(root)
    files = []
    for relative, path in sorted({os.fsencode(_relative(root, path)): path for path in paths}.items()):
        name = os.fsdecode(relative)
        try:
            digest, size = _hash(path, cache)
            files.append(RawFile(name, size, digest))
        except UnreadableError as error:
            files.append(RawFile(name, 0, "", error.what))
    state = xxhash.xxh3_128()
    for file in files:
        content = b"unreadable" if file.unreadable else file.hash.encode()
        state.update(os.fsencode(file.relative) + b"\x00" + content + b"\n")
    return RawInput(root, tuple(files), state.hexdigest())


def _relative(root: Path, path: Path) -> str:
    relative = Path(path).relative_to(root).as_posix()
    return Path(path).name if relative == "." else relative


def hash_tree(root: Path, cache: HashCache | None = None) -> RawInput:
    """Identify all files under a folder, or a single file; hidden files and what symbolic links lead to included.

    Raises InputError if `root` does not exist or a folder cannot be listed.
    """
    root = Path(root)
    return hash_files(root, [root] if root.is_file() else walk_files(root), cache)


def walk_files(root: Path) -> Iterator[Path]:
    """All files under a folder, following links. Raises InputError on a loop of links or an unreadable folder."""
    yield from _walk(str(root), ())


def _walk(folder: str, above: tuple[tuple[int, int], ...]) -> Iterator[Path]:
    try:
        place = os.stat(folder)
        entries = sorted(os.scandir(folder), key=lambda entry: os.fsencode(entry.name))
    except OSError as error:
        raise InputError(
            f"cannot list the folder: {error.strerror}", where=folder, mend="check that it exists and may be read"
        ) from error
    here = (place.st_dev, place.st_ino)
    if here in above:
        raise InputError("a symbolic link leads back to a folder above it", where=folder, mend="remove the link")
    for entry in entries:
        if entry.is_dir():
            yield from _walk(entry.path, (*above, here))
        else:
            yield Path(entry.path)
