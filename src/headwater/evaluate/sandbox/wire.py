"""Plain values between a program and its tests, as lines of JSON. Standard library only: it runs inside the sandbox.

Lists, dictionaries and strings are JSON's; everything else is tagged. Only values of exact built-in types come out of
`decode`, whatever was sent: an object that claims to equal everything cannot cross.

    decode(encode((1, {"a": {2.5}})))
"""

from __future__ import annotations

import json
import math
from typing import Any

MAX_DEPTH = 200
"""Nesting beyond this is refused, well below the interpreter's own limit."""


class CannotCross(TypeError):
    """A value that is not made of plain values."""


def encode(value: Any, depth: int = 0) -> Any:
    """A JSON value. Subclasses go as what they extend (a Counter as a dict). Raises CannotCross."""
    if depth > MAX_DEPTH:
        raise CannotCross("nested too deeply")
    if value is None or value is True or value is False:
        return value
    if isinstance(value, str):
        text = str.__str__(value)
        return text if text.isascii() else {"s": text.encode("utf-8", "surrogatepass").hex()}
    if isinstance(value, int):
        return {"i": hex(int.__index__(value))}
    if isinstance(value, float):
        number = float.__float__(value)
        return {"f": number.hex() if math.isfinite(number) else repr(number)}
    if isinstance(value, complex):
        return {"c": [encode(value.real), encode(value.imag)]}
    if isinstance(value, bytes | bytearray):
        return {"b": bytes(value).hex()}
    if isinstance(value, list):
        return [encode(item, depth + 1) for item in list.__iter__(value)]
    if isinstance(value, tuple):
        return {"t": [encode(item, depth + 1) for item in tuple.__iter__(value)]}
    if isinstance(value, set | frozenset):
        return {"e" if isinstance(value, set) else "z": [encode(item, depth + 1) for item in value]}
    if isinstance(value, dict):
        return {"d": [[encode(k, depth + 1), encode(v, depth + 1)] for k, v in dict.items(value)]}
    raise CannotCross(f"a value of type {type(value).__name__} cannot cross between a program and its tests")


def decode(value: Any) -> Any:
    """The plain value. Raises ValueError for anything `encode` does not make."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, list):
        return [decode(item) for item in value]
    if isinstance(value, dict) and len(value) == 1:
        tag, body = next(iter(value.items()))
        if tag == "s" and isinstance(body, str):
            return bytes.fromhex(body).decode("utf-8", "surrogatepass")
        if tag == "i" and isinstance(body, str):
            return int(body, 16)
        if tag == "f" and isinstance(body, str):
            return float(body) if body in ("inf", "-inf", "nan") else float.fromhex(body)
        if tag == "b" and isinstance(body, str):
            return bytes.fromhex(body)
        if isinstance(body, list):
            if tag == "c" and len(body) == 2:
                return complex(*(decode(part) for part in body))
            if tag == "t":
                return tuple(decode(item) for item in body)
            if tag == "e":
                return {decode(item) for item in body}
            if tag == "z":
                return frozenset(decode(item) for item in body)
            if tag == "d":
                return {decode(key): decode(item) for key, item in body}
    raise ValueError("not a value that crosses")


class Channel:
    """Lines of JSON over two file descriptors."""

    def __init__(self, read_fd: int, write_fd: int, limit: int) -> None:
        self._reader = open(read_fd, "rb", buffering=0)  # noqa: SIM115 (lives as long as the process)
        self._write_fd, self._limit, self._pending = write_fd, limit, b""

    def send(self, message: dict[str, Any]) -> None:
        import os

        data = json.dumps(message).encode("ascii") + b"\n"
        if len(data) > self._limit:
            raise CannotCross(f"a value of {len(data):,} bytes is above the limit of {self._limit:,}")
        while data:
            data = data[os.write(self._write_fd, data) :]

    def receive(self) -> dict[str, Any]:
        """EOFError at the end; ValueError for a line that is too long or no JSON object."""
        parts = [self._pending]
        size = len(self._pending)
        while b"\n" not in parts[-1]:
            chunk = self._reader.read(1 << 16)
            if not chunk:
                raise EOFError
            parts.append(chunk)
            size += len(chunk)
            if size > self._limit + (1 << 16):
                raise ValueError(f"a message above the limit of {self._limit:,} bytes")
        line, _, self._pending = b"".join(parts).partition(b"\n")
        message = json.loads(line)
        if not isinstance(message, dict):
            raise ValueError("not a message")
        return message
