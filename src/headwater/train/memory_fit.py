"""Steps that do not fit into memory are done again in smaller pieces: the same sums, in another order.

In: an executor, rows of a step. Out: what the executor gives, with half the micro-batch as often as it takes. One
process does the step again at once. In a layout of several ranks those that still had room are in the middle of talking
to the one that had not, so all end, and are started again from the last checkpoint with the smaller micro-batch, which
is remembered in the run's folder.

    fitting = Fitting(executor, mesh, clear=lambda: optimizer.zero_grad()); sums = fitting.run(batch, divisor)
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headwater.core.errors import HeadwaterError
from headwater.core.files import atomic_write
from headwater.core.jsonl import parse_json, pretty_json
from headwater.parallel.mesh import Mesh
from headwater.parallel.rank_files import LOST_PEER
from headwater.train.accumulate import Executor
from headwater.train.batch import Batch

REMEMBERED = "micro_batch.json"


class NoRoomError(HeadwaterError):
    """A single sample does not fit into memory."""


class SmallerPiecesError(HeadwaterError):
    """This rank had no room; all ranks start again with a smaller micro-batch. A launcher does that by itself, as for a
    rank that was lost."""

    exit_code = LOST_PEER


class Fitting:
    """An `Executor` around another. `tell(before, now, reason)` is called when the micro-batch has become smaller."""

    def __init__(self, executor: Executor, mesh: Mesh, *, clear: Callable[[], None]) -> None:
        self._executor, self._mesh, self._clear = executor, mesh, clear
        self.tell: Callable[[int, int, str], None] = lambda before, now, reason: None

    @property
    def micro_batch(self) -> int:
        return self._executor.micro_batch

    @micro_batch.setter
    def micro_batch(self, rows: int) -> None:
        self._executor.micro_batch = rows

    def run(self, batch: Batch, divisor: float) -> Tensor:
        """See `Executor`. NoRoomError if not even one sample fits; SmallerPiecesError on one of several ranks."""
        while True:
            try:
                return self._executor.run(batch, divisor)
            except torch.OutOfMemoryError as error:
                reason = str(error).splitlines()[0]
            # Outside the handler: the error's frames have held the tensors of the pass that failed.
            self._shrink(batch, reason)

    def evaluate(self, batch: Batch) -> Tensor:
        """See `Executor`."""
        return self._executor.evaluate(batch)

    def _shrink(self, batch: Batch, reason: str) -> None:
        self._clear()
        if self._mesh.device.type == "cuda":
            torch.cuda.empty_cache()
        before = min(self.micro_batch, batch.rows)
        now = smaller(before, batch.rows, divide=self._mesh.size("pp") > 1)
        if now is None:
            raise NoRoomError(
                f"a micro-batch of one sample of {batch.tokens.shape[1]:,} tokens does not fit into memory of "
                f"{self._mesh.device}: {reason}",
                where=self._mesh.place(),
                mend="set train.activation_checkpointing: full, a shorter train.seq_len, or spread the model over more "
                "devices (parallel)",
            )
        self.micro_batch = now
        self.tell(before, now, reason)
        if self._mesh.world > 1:
            raise SmallerPiecesError(
                f"no memory for a micro-batch of {before}: all ranks go on from the last checkpoint with {now}",
                where=self._mesh.place(),
                mend="run the same command again, if no launcher does it",
            )


def smaller(micro_batch: int, rows: int, *, divide: bool) -> int | None:
    """Half a micro-batch; with `divide` the largest part of it, at most half, that divides `rows`. None below one."""
    half = micro_batch // 2
    while divide and half > 1 and rows % half:
        half -= 1
    return half or None


def remember(folder: Path, micro_batch: int, facts: dict[str, Any]) -> None:
    """Write down what fits; any rank may, and the least counts."""
    known = _read(folder)
    least = min(micro_batch, int(known["micro_batch"])) if known and known["facts"] == facts else micro_batch
    atomic_write(folder / REMEMBERED, pretty_json({"micro_batch": least, "facts": facts}))


def remembered(folder: Path, facts: dict[str, Any]) -> int | None:
    """What has been found to fit into the same device in the same layout, or None."""
    known = _read(folder)
    return int(known["micro_batch"]) if known and known["facts"] == facts else None


def _read(folder: Path) -> dict[str, Any] | None:
    try:
        known = parse_json((folder / REMEMBERED).read_bytes())
        return known if isinstance(known["micro_batch"], int) and isinstance(known["facts"], dict) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
