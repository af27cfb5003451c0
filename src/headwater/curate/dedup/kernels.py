"""How the compiled functions of this package are made: without the interpreter's lock, and kept on disk.

numba compiles on the first call and keeps the result beside the source (or in the user's cache folder), so only the
very first run on a machine waits for it. numba itself looks only at the file a function stands in; these kernels call
one another across files, so here a change of any file of the package makes all of them compile anew.

    @kernel
    def add(a, b): ...
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from numba import njit
from numba.core.caching import IndexDataCacheFile

SMALL = 4096


@cache
def _stamp() -> tuple[tuple[str, int, int], ...]:
    """Name, time and size of every source file of this package."""
    files = sorted(Path(__file__).parent.glob("*.py"))
    return tuple((file.name, file.stat().st_mtime_ns, file.stat().st_size) for file in files)


def kernel(function: Callable[..., Any]) -> Any:
    """Compile on first use, cached on disk if any place for that can be written."""
    compiled = njit(nogil=True)(function)
    with suppress(RuntimeError):  # neither the source's folder nor the user's cache can be written: compile each time
        compiled.enable_caching()
        kept: Any = compiled._cache  # type: ignore[attr-defined]
        kept._source_stamp = _stamp()
        kept._cache_file = IndexDataCacheFile(kept._cache_path, kept._impl.filename_base, _stamp())
    return compiled


def small(function: Any, size: int) -> Any:
    """The kernel, or for small work the plain function it was made of: compiling takes longer than doing it. For
    kernels without wrapping arithmetic only."""
    return function if size > SMALL else function.py_func
