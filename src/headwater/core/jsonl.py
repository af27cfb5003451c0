"""Canonical JSON, and JSON Lines that survive a kill.

`canonical_json` gives equal bytes for equal values on every machine, so it can be hashed. `JsonlLog` appends one
object a line; a process killed inside an append leaves a torn last line, which readers ignore and the next writer
removes.

    log = JsonlLog(path); log.append({"step": 1, "loss": 3.2})
    for row in read_jsonl(path): ...
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

from headwater.core.errors import InputError
from headwater.core.files import disk_errors, fsync_dir

_SURROGATE = re.compile("[\ud800-\udfff]")
_CHUNK = 1 << 16


def plain_json(value: Any, where: str = "$") -> Any:
    """`value` as plain JSON types, refusing what JSON would change silently.

    Tuples become lists and -0.0 becomes 0.0. Raises ValueError on NaN and infinities, TypeError on keys that are not
    strings and on any other type; both name the place, `$.train.lr`.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)  # an enum of strings is its value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{where} is {value}, which JSON cannot hold")
        return float(value) + 0.0  # -0.0 + 0.0 is 0.0: equal values, equal bytes
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                raise TypeError(f"{where} has the key {key!r}, which is not a string")
        return {str.__str__(key): plain_json(item, f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_json(item, f"{where}[{index}]") for index, item in enumerate(value)]
    raise TypeError(f"{where} is a {type(value).__name__}, which is not JSON")


def _encode(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:  # a file name that is not UTF-8 arrives as lone surrogates
        return _SURROGATE.sub(lambda match: f"\\u{ord(match.group()):04x}", text).encode()


def canonical_json(value: Any) -> bytes:
    """UTF-8 JSON with sorted keys and no spaces; floats in Python's shortest form that reads back equal.

    Raises as `plain_json` does. 1 and 1.0 differ, as they do in a typed configuration.
    """
    return _encode(
        json.dumps(plain_json(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    )


def pretty_json(value: Any) -> bytes:
    """As `canonical_json`, indented for people, with a final newline; equally deterministic."""
    return _encode(json.dumps(plain_json(value), sort_keys=True, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def json_safe(value: Any) -> Any:
    """Replace NaN and infinities, at any depth, by "NaN", "Infinity", "-Infinity", so that a metric can be logged."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    if isinstance(value, dict):
        return {key: json_safe(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_safe(item) for item in value]
    return value


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def parse_json(data: bytes | str) -> Any:
    """Parse strict JSON: NaN and Infinity are refused, integers keep every digit. Raises ValueError."""
    text = data.decode() if isinstance(data, bytes) else data
    return json.loads(text, parse_constant=_refuse_constant)


def json_fault(error: Exception) -> str:
    """What is wrong with bytes that `parse_json` refused, for people: where they stop being text, or JSON."""
    if isinstance(error, UnicodeDecodeError):
        return f"it is no text from byte {error.start + 1:,} on"
    if isinstance(error, json.JSONDecodeError):
        return f"it is no JSON from line {error.lineno:,}, column {error.colno:,} on"
    return str(error)


class JsonlLog:
    """Append-only JSON Lines file with one writer.

    Each append is one write to the operating system, so a killed process loses nothing that `append` returned from;
    with `fsync=True` a power cut loses nothing either. Opening a file whose last line is torn removes that line
    (`torn_bytes` says how much), because it was never acknowledged.
    """

    def __init__(self, path: Path, *, fsync: bool = False) -> None:
        self.path = Path(path)
        self.fsync = fsync
        self.torn_bytes = 0
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            self._mend_tail()
            if fsync:
                fsync_dir(self.path.parent)  # else a power cut could lose a new file's name
        except BaseException:
            self.close()
            raise

    def _mend_tail(self) -> None:
        size = os.fstat(self._descriptor).st_size
        tail = b""
        start = size
        while start > 0 and b"\n" not in tail:
            step = min(_CHUNK, start)
            start -= step
            tail = os.pread(self._descriptor, step, start) + tail
        torn = tail.rpartition(b"\n")[2]
        if not torn:
            return
        if _complete(torn):  # only the newline is missing
            self._write(b"\n")
        else:
            os.ftruncate(self._descriptor, size - len(torn))
            self.torn_bytes = len(torn)

    def append(self, *values: dict[str, Any], fsync: bool | None = None) -> None:
        """Write one object, or several in one write. Raises ValueError on NaN (see `json_safe`), DiskSpaceError when
        the disk is full; after an error the file is as it was before."""
        self._write(b"".join(canonical_json(value) + b"\n" for value in values))
        if self.fsync if fsync is None else fsync:
            os.fsync(self._descriptor)

    def _write(self, line: bytes) -> None:
        if self._descriptor < 0:
            raise ValueError(f"{self.path} is closed")
        before = os.fstat(self._descriptor).st_size
        with disk_errors(self.path):
            try:
                view = memoryview(line)
                while view:
                    view = view[os.write(self._descriptor, view) :]
            except OSError:
                os.ftruncate(self._descriptor, before)  # never leave half a line for the next append to join
                raise

    def sync(self) -> None:
        os.fsync(self._descriptor)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> JsonlLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _complete(line: bytes) -> bool:
    """Whether a line without its newline is whole: only objects and arrays say where they end."""
    try:
        return isinstance(parse_json(line), dict | list)
    except (ValueError, RecursionError):
        return False


def read_jsonl(path: Path, on_broken: Callable[[int, int, str], None] | None = None) -> Iterator[Any]:
    """Values of a JSON Lines file, in order; a torn last line is ignored, empty lines are passed over.

    A line that is not JSON elsewhere is reported as `on_broken(line number from 1, byte offset, reason)` and left
    out; without the callback it raises InputError.
    """
    try:
        file = open(path, "rb")  # noqa: SIM115 - closed below
    except OSError as error:
        raise InputError(f"cannot read: {error.strerror}", where=str(path)) from error
    offset = 0
    with file:
        for number, line in enumerate(file, start=1):
            start, offset = offset, offset + len(line)
            if not line.endswith(b"\n") and not _complete(line):
                return
            if not line.strip():
                continue
            try:
                value = parse_json(line)
            except (ValueError, RecursionError) as error:
                if on_broken is None:
                    raise InputError(f"line is not JSON: {error}", where=f"{path}:{number}") from error
                on_broken(number, start, str(error))
                continue
            yield value
