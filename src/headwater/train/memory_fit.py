"""Steps that do not fit into memory are done again in smaller pieces: the same sums, in another order.

In: an executor, rows of a step. Out: what the executor gives, with half the micro-batch as often as it takes. One
process does the step again at once. In a layout of several ranks those that still had room are in the middle of talking
to the one that had not, so all end, and are started again from the last checkpoint with the smaller micro-batch, which
is remembered in the run's folder (`headwater.train.what_fits`).

    fitting = Fitting(executor, mesh, clear=lambda: optimizer.zero_grad()); sums = fitting.run(batch, divisor)
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from headwater.core.errors import HeadwaterError
from headwater.parallel.memory import SmallerPiecesError, first_line, is_out_of_memory
from headwater.parallel.mesh import Mesh
from headwater.train.accumulate import Executor
from headwater.train.batch import Batch


class NoRoomError(HeadwaterError):
    """A single sample does not fit into memory."""


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
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                reason = first_line(error)
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
