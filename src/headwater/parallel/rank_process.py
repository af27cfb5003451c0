"""What a process does that is one rank of a run: it dies with its launcher, is watched, and says its errors once.

In: the work of a rank. Out: its result, or one message for all ranks. Under Headwater's own launcher ranks write their
errors into files and the launcher speaks; under another (torchrun, srun) the lowest rank that can speaks for all.

    with watched_rank(run / "logs", World.from_env(), timeout_seconds=600): train_run(...)
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from headwater.core.errors import HeadwaterError
from headwater.parallel.environment import World
from headwater.parallel.rank_files import LOST_PEER, RankFolder
from headwater.parallel.watchdog import RanksLostError, Watch, behind, is_consequence

LAUNCHED = "HEADWATER_LAUNCHED"
"""Set by Headwater's launcher to its process id; it speaks for the ranks it has started."""

RANKS = "ranks"
_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Let the system end this process when the one that started it ends, however that ends. Linux only."""
    if sys.platform != "linux":
        return
    # By now torch has been imported, which takes seconds: the launcher may have ended meanwhile.
    parent = int(os.environ.get(LAUNCHED) or os.getppid())
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) == 0 and os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)  # it ended in between


@contextmanager
def watched_rank(logs: Path, world: World, *, timeout_seconds: float) -> Iterator[None]:
    """Run a block as one of several ranks. `logs`: a folder that all ranks see.

    Errors: an error of this rank is raised as it is on rank 0; what other ranks do about it, and what is said when
    ranks are lost, see the module. A rank that has nothing to say ends its process here. A single process is left
    alone.
    """
    if world.size == 1:
        yield
        return
    die_with_parent()
    launched = LAUNCHED in os.environ

    def say(error: RanksLostError) -> None:
        if not launched:
            sys.stderr.write(f"error: {error}\n")
            sys.stderr.flush()

    with Watch(
        RankFolder(logs / RANKS), rank=world.rank, size=world.size, timeout_seconds=timeout_seconds, say=say
    ) as watch:
        try:
            yield
        except KeyboardInterrupt:  # asked to stop: agreed among the ranks, so all of them do
            if world.rank or launched:
                _leave(130)
            raise
        except Exception as error:
            watch.failed(error)
            if launched:
                _leave(_exit_code(error))
            if world.rank == 0 and not is_consequence(error):
                raise
            lost = watch.lost()
            if lost is None:
                _leave(_exit_code(error))
            raise lost from error


def _exit_code(error: Exception) -> int:
    ours = next((item for item in behind(error) if isinstance(item, HeadwaterError)), None)
    if ours is not None:
        return ours.exit_code
    return LOST_PEER if is_consequence(error) else 1


def _leave(code: int) -> NoReturn:
    """End the process now: leaving by the usual way would wait for ranks that are gone."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    os._exit(code)
