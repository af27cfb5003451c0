"""Real gloo ranks for tests: `run_ranks(4, function, *args)` forks four, connects them, and returns their results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headwater.core.errors import UserError
from headwater.parallel.local_ranks import RankError, run_local_ranks

__all__ = ["RankError", "run_ranks"]


def run_ranks(ranks: int, function: Callable[..., Any], *args: Any, timeout: float = 60.0) -> list[Any]:
    """`function(*args)` on every rank; results by rank. RankError whatever a rank raises."""
    try:
        return run_local_ranks(ranks, function, *args, timeout=timeout)
    except UserError as error:
        raise RankError(str(error)) from error
