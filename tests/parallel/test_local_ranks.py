"""Ranks forked on this machine: what the forking process holds cannot stop them."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch.distributed as dist

from headwater.parallel.local_ranks import run_local_ranks


def _group() -> Any:
    return dist.ProcessGroupGloo(dist.HashStore(), 0, 1)  # its destructor joins its threads


def _store() -> Any:
    return dist.TCPStore("127.0.0.1", 0, 1, True)


def _collect() -> bool:
    gc.collect()
    return True


@pytest.mark.parametrize("owner", [_group, _store])
def test_garbage_of_the_forking_process_that_owns_threads_is_not_collected_by_a_rank(owner: Callable[[], Any]) -> None:
    gc.disable()
    try:
        cycle: list[Any] = [owner()]
        cycle.append(cycle)
        del cycle
        assert run_local_ranks(2, _collect, timeout=20) == [True, True]
    finally:
        gc.enable()
        gc.collect()
