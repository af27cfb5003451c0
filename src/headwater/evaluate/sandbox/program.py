"""The confined side that holds the untrusted program: load it, then answer calls. Started by `runner`, as a file.

Standard input carries the configuration; calls and results go over the two descriptors it names.
"""

from __future__ import annotations

import os
import sys
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
# Sibling files: no package can be imported here.
from confine import begin
from wire import CannotCross, Channel, decode, encode

sys.path.pop(0)


def main() -> None:
    config = begin()
    channel = Channel(config["read_fd"], config["write_fd"], config["message_bytes"])
    os.close(config["report_fd"])
    names: dict[str, Any] = {"__name__": "program"}
    try:
        exec(compile(config["source"], "program.py", "exec"), names)
    except BaseException as error:
        channel.send({"loaded": False, **_described(error)})
        return
    channel.send({"loaded": True, "names": [n for n, v in names.items() if callable(v) and n.isidentifier()]})
    while True:
        try:
            request = channel.receive()
        except EOFError:
            return
        try:
            arguments, keywords = decode(request["args"]), decode(request["kwargs"])
            reply = {"value": encode(names[request["name"]](*arguments, **keywords))}
        except CannotCross as error:
            reply = {"error": "TypeError", "message": str(error)}
        except BaseException as error:
            reply = _described(error)
        try:
            channel.send(reply)
        except CannotCross as error:
            channel.send({"error": "TypeError", "message": str(error)})


def _described(error: BaseException) -> dict[str, str]:
    try:
        message = str(error)[:500].encode("ascii", "backslashreplace").decode()
    except BaseException:
        message = ""
    return {"error": type(error).__name__, "message": message}


main()
