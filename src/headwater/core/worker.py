"""A worker process of `ProcessExecutor`: reads (function, item) from a socket, answers with the result.

Started by `headwater.core.executor`; not for use by hand. It ends when the socket closes, be it idle or in
the middle of an item, so it never outlives the process that started it.
"""

from __future__ import annotations

import os
import pickle
import select
import signal
import threading
import traceback
from multiprocessing.connection import Connection

from headwater.core.errors import HeadwaterError


def _watch(descriptor: int) -> None:
    """End the process, whatever it is doing, when the parent is gone."""
    poll = select.poll()
    poll.register(descriptor, getattr(select, "POLLRDHUP", 0) | select.POLLHUP)
    while not any(event & ~select.POLLIN for _, event in poll.poll()):
        pass
    os._exit(1)


def answer(data: bytes) -> bytes:
    """The pickled (good, result or exception, traceback) of a pickled (function, item)."""
    try:
        function, item = pickle.loads(data)
        return pickle.dumps((True, function(item), ""), protocol=pickle.HIGHEST_PROTOCOL)
    except BaseException as error:  # SystemExit too: only the parent ends a worker
        trace = "".join(traceback.format_exception(error))
        try:
            reply = pickle.dumps((False, error, trace), protocol=pickle.HIGHEST_PROTOCOL)
            pickle.loads(reply)  # some exceptions pickle but cannot be rebuilt
        except Exception:
            shown = HeadwaterError("".join(traceback.format_exception_only(error)).strip())
            reply = pickle.dumps((False, shown, trace), protocol=pickle.HIGHEST_PROTOCOL)
        return reply


def main(descriptor: int) -> None:
    """Serve the socket with this file descriptor until it closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.dup2(2, 1)  # stdout is for the command's result; what a library prints in a worker is not
    threading.Thread(target=_watch, args=(descriptor,), daemon=True).start()
    line = Connection(descriptor)
    while True:
        try:
            data = line.recv_bytes()
        except EOFError:
            return
        line.send_bytes(answer(data))
