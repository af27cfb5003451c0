"""When, where and with what something was made. Kept beside results, outside every hash.

watch = Stopwatch(); ...; watch.provenance(resumed_shards=3)
"""

from __future__ import annotations

import getpass
import platform
import socket
import sys
import time
from importlib import metadata
from typing import Any

_PACKAGES = ("torch", "numpy", "pyarrow", "sentencepiece", "tokenizers", "orjson", "zstandard")


def versions() -> dict[str, str]:
    """Versions of Headwater, Python and the packages that can change a result; imports none of them."""
    import headwater

    found = {"headwater": headwater.__version__, "python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


class Stopwatch:
    """Measures from its making."""

    def __init__(self) -> None:
        self._started = time.time()
        self._clock = time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._clock

    def provenance(self, **extra: Any) -> dict[str, Any]:
        """Times are UTC in ISO 8601; `wall_seconds` is this process's share if the work was resumed."""
        return {
            "started": _iso(self._started),
            "finished": _iso(time.time()),
            "wall_seconds": round(self.seconds, 3),
            "host": socket.gethostname(),
            "user": _user(),
            "platform": platform.platform(),
            "argv": list(sys.argv),
            "versions": versions(),
            **extra,
        }


def _iso(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        return ""
