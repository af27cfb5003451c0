"""How long this process's thread was blocked: on a CPU, in a step, that is waiting for other ranks.

In: the kernel's account of the thread (Linux: time on a CPU, time ready for one). Out: seconds that were neither: the
thread slept, in a collective until the others came. Time in which another program had the CPU does not count. Work on
several threads waits a little for its own threads, too, which this cannot tell apart.

    blocked = Blocked(); ...; blocked.seconds()
"""

from __future__ import annotations

import time
from pathlib import Path

_ACCOUNT = Path("/proc/thread-self/schedstat")
BILLION = 1e9


class Blocked:
    """Counts from its creation, for the thread that asks."""

    def __init__(self) -> None:
        self._started, self._busy = time.perf_counter(), _busy_seconds()

    def seconds(self) -> float | None:
        """Seconds blocked so far; None where the system keeps no such account."""
        busy = _busy_seconds()
        if busy is None or self._busy is None:
            return None
        return max(0.0, time.perf_counter() - self._started - (busy - self._busy))


def _busy_seconds() -> float | None:
    """On a CPU, or ready for one."""
    try:
        running, ready, *_ = _ACCOUNT.read_text().split()
        return (int(running) + int(ready)) / BILLION
    except (OSError, ValueError):
        return None
