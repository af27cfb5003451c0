"""The confined side that holds the tests: calls the program through the channel and gives the verdict. A file, started
by `runner`; the program's process has no way to what it writes.

The prompt (which belongs to the benchmark) is loaded here too, for the imports and helpers that tests use.
"""

from __future__ import annotations

import builtins
import json
import os
import sys
from collections.abc import Callable
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
# Sibling files: no package can be imported here.
from confine import begin
from wire import Channel, decode, encode

sys.path.pop(0)


def main() -> None:
    config = begin()
    channel = Channel(config["read_fd"], config["write_fd"], config["message_bytes"])
    try:
        _judge(config, channel)
        verdict = {"passed": True, "reason": "passed"}
    except BaseException as error:
        text = str(error)[:500].encode("ascii", "backslashreplace").decode()
        verdict = {"passed": False, "reason": f"{type(error).__name__}: {text}" if text else type(error).__name__}
    os.write(config["report_fd"], json.dumps(verdict).encode() + b"\n")


def _judge(config: dict[str, Any], channel: Channel) -> None:
    loaded = channel.receive()
    if not loaded.get("loaded"):
        raise _rebuilt(loaded)
    names: dict[str, Any] = {"__name__": "tests"}
    if config["prompt"]:
        try:
            exec(compile(config["prompt"], "prompt.py", "exec"), names)
        except Exception:
            names = {"__name__": "tests"}  # a prompt that stops in the middle of a statement
    entry = config["entry_point"]
    for name in loaded.get("names", []):
        if isinstance(name, str) and (name == entry or name not in names) and not hasattr(builtins, name):
            names[name] = _proxy(channel, name)
    if entry not in names:
        raise NameError(f"the program defines no {entry}")
    exec(compile(config["source"], "tests.py", "exec"), names)
    if config["check"]:
        names[config["check"]](names[entry])


def _proxy(channel: Channel, name: str) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        channel.send({"name": name, "args": encode(list(args)), "kwargs": encode(kwargs)})
        try:
            reply = channel.receive()
        except EOFError:
            raise SystemExit("the program ended before it returned") from None
        if "value" in reply:
            return decode(reply["value"])
        raise _rebuilt(reply)

    call.__name__ = name
    return call


def _rebuilt(reply: dict[str, Any]) -> BaseException:
    """The program's exception, if it is one of Python's own, else a RuntimeError that names it."""
    name, message = str(reply.get("error")), str(reply.get("message"))
    kind = getattr(builtins, name, None)
    if isinstance(kind, type) and issubclass(kind, Exception):
        try:
            return kind(message)
        except TypeError:
            pass
    return RuntimeError(f"{name}: {message}")


main()
