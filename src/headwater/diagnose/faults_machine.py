"""Faults of the machine under a run: data that comes late, slow steps and ranks, leaks, hangs, kills, full disks.

In: a step. Out: callbacks as in `faults`; `rank` says on which rank of several it happens (None: all).

    train(..., callbacks=[SlowLoader(50, seconds=0.2)])
"""

from __future__ import annotations

import errno
import mmap
import os
import signal
import time

import torch

from headwater.diagnose.faults import Fault
from headwater.train.batch import Batch
from headwater.train.trainer import Trainer


class SlowLoader(Fault):
    """Every batch comes `seconds` late."""

    name = "slow_loader"

    def __init__(self, step: int, seconds: float, *, steps: int | None = None, seed: int = 0) -> None:
        super().__init__(step, steps=steps, seed=seed)
        self.seconds = seconds

    def before(self, trainer: Trainer) -> None:
        time.sleep(self.seconds)


class SlowSteps(Fault):
    """The work of every step takes `seconds` longer, on one rank or on all."""

    name = "slow_steps"

    def __init__(
        self, step: int, seconds: float, *, rank: int | None = None, steps: int | None = None, seed: int = 0
    ) -> None:
        super().__init__(step, steps=steps, seed=seed)
        self.seconds, self.rank = seconds, rank
        self._mine = True

    def on_start(self, trainer: Trainer) -> None:
        super().on_start(trainer)
        self._mine = self.rank is None or trainer.ranks.rank == self.rank

    def batch(self, batch: Batch) -> Batch:
        if self._mine:
            time.sleep(self.seconds)
        return batch


class Leak(Fault):
    """Every step keeps `megabytes` of memory that nothing will use; on a CPU pages asked of the system, so that no room
    which the process had freed before hides them."""

    name = "leak"

    def __init__(self, step: int, megabytes: float, *, steps: int | None = None, seed: int = 0) -> None:
        super().__init__(step, steps=steps, seed=seed)
        self.megabytes = megabytes
        self._kept: list[torch.Tensor] = []

    def before(self, trainer: Trainer) -> None:
        size, device = int(self.megabytes * 2**20), trainer.module.device
        if device.type == "cpu":
            self._kept.append(torch.frombuffer(mmap.mmap(-1, size), dtype=torch.uint8).fill_(1))
        else:
            self._kept.append(torch.ones(size, dtype=torch.uint8, device=device))

    def close(self, trainer: Trainer) -> None:
        self._kept.clear()


class Hang(Fault):
    """A rank stops before a step and does not go on for `seconds`."""

    name = "hang"

    def __init__(self, step: int, *, seconds: float = 3600.0, rank: int = 0, seed: int = 0) -> None:
        super().__init__(step, steps=1, seed=seed)
        self.seconds, self.rank = seconds, rank

    def before(self, trainer: Trainer) -> None:
        if trainer.ranks.rank == self.rank:
            time.sleep(self.seconds)


class KilledRank(Fault):
    """The system kills a rank before a step, as it does when memory runs out."""

    name = "killed_rank"

    def __init__(self, step: int, *, rank: int = 0, seed: int = 0) -> None:
        super().__init__(step, steps=1, seed=seed)
        self.rank = rank

    def before(self, trainer: Trainer) -> None:
        if trainer.ranks.rank == self.rank:
            os.kill(os.getpid(), signal.SIGKILL)


class FullDisk(Fault):
    """Writing fails from a step on, with the system's error for a full disk."""

    name = "full_disk"

    def before(self, trainer: Trainer) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(trainer.run.metrics_path))


class LostSaves(Fault):
    """Checkpoints are no longer made, and nobody says so."""

    name = "lost_saves"

    def before(self, trainer: Trainer) -> None:
        for callback in trainer.callbacks:
            if callback.name == "checkpoint":
                callback.after_step = lambda *_: None  # type: ignore[method-assign]
