"""Training: loop, optimizers, schedules, checkpoint store, run ledger.

`from headwater.train import TrainConfig, RunFolder` imports no torch; `train` and `train_run` do when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headwater.train.config import TrainConfig
from headwater.train.run_folder import CheckpointRef, RunFolder, RunStatus

if TYPE_CHECKING:
    from headwater.train.run import train, train_run

__all__ = ["CheckpointRef", "RunFolder", "RunStatus", "TrainConfig", "train", "train_run"]


def __getattr__(name: str) -> Any:
    if name in ("train", "train_run"):
        from headwater.train import run

        return getattr(run, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
