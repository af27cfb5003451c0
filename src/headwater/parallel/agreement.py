"""What processes agree on outside the training's mathematics: small values over a gloo group of its own.

In: a process group on CPU memory, or none in a single process. Out: values of all ranks, errors included, so that
a failure on one rank is the same failure on every rank and none is left waiting.

    ranks = Ranks.new(timeout_seconds=600)              # every rank calls it, at the same place
    sizes = ranks.together(lambda: path.stat().st_size) # [size on rank 0, size on rank 1, ...], or one error for all

Never share the group with training: collectives of a saving thread would mix with those of a step.
"""

from __future__ import annotations

import pickle
import socket
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from headwater.core.errors import HeadwaterError, UserError

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

T = TypeVar("T")


class RankError(HeadwaterError):
    """Something that no part foresaw failed on another rank."""


@dataclass(frozen=True, slots=True)
class Failure:
    """An error on its way to the other ranks."""

    error: Exception


class Ranks:
    """This process among its peers. All methods are collective: every rank calls them in the same order."""

    def __init__(self, group: ProcessGroup | None = None) -> None:
        self.group = group
        self.rank, self.size = 0, 1
        if group is not None:
            import torch.distributed as dist

            self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)

    @classmethod
    def new(cls, timeout_seconds: float = 600.0) -> Ranks:
        """A gloo group of all ranks of its own; without an initialised process group, this process alone."""
        import torch.distributed as dist

        if not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
            return cls()
        return cls(dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_seconds)))

    @property
    def first(self) -> bool:
        """Whether this is rank 0, which does what is done once."""
        return self.rank == 0

    def gather(self, value: T) -> list[T]:
        """The value of every rank, on every rank."""
        if self.group is None:
            return [value]
        import torch.distributed as dist

        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value, group=self.group)
        return values

    def from_first(self, value: T) -> T:
        """Rank 0's value, on every rank."""
        if self.group is None:
            return value
        import torch.distributed as dist

        values = [value if self.first else None]
        dist.broadcast_object_list(values, group=self.group, group_src=0)
        received: Any = values[0]
        return received

    def most(self, values: Sequence[int]) -> list[int]:
        """The largest of each value over all ranks: cheap enough for every step."""
        if self.group is None:
            return list(values)
        import torch
        import torch.distributed as dist

        largest = torch.tensor(values, dtype=torch.int64)
        dist.all_reduce(largest, dist.ReduceOp.MAX, group=self.group)
        return [int(value) for value in largest.tolist()]

    def together(self, work: Callable[[], T]) -> list[T]:
        """Do something on every rank; the results of all, or, if it failed anywhere, the same error everywhere.

        Raises the error of the lowest rank that failed, of the same class everywhere: RankError for one that cannot
        travel between processes.
        """
        if self.group is None:
            return [work()]
        outcome: T | Failure
        mine: Exception | None = None
        try:
            outcome = work()
        except Exception as error:
            mine = error
            outcome = Failure(_portable(error, self.rank))
        outcomes = self.gather(outcome)
        failures = [item for item in outcomes if isinstance(item, Failure)]
        if not failures:
            return outcomes  # type: ignore[return-value]
        raise failures[0].error from mine

    def on_first(self, work: Callable[[], T]) -> T:
        """Do something on rank 0 alone; its result, or its error, on every rank."""
        if self.group is None:
            return work()
        outcome: T | Failure | None = None
        mine: Exception | None = None
        if self.first:
            try:
                outcome = work()
            except Exception as error:
                mine = error
                outcome = Failure(_portable(error, 0))
        received = self.from_first(outcome)
        if isinstance(received, Failure):
            raise received.error from mine
        return received  # type: ignore[return-value]

    def check_shared(self, folder: Path, where: str) -> None:
        """Make sure that all ranks see the same folder. Raises UserError, on every rank, naming those that do not."""
        if self.group is None:
            return

        def mark() -> str:
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / f".tmp-shared-{uuid.uuid4().hex[:12]}"
            path.write_bytes(b"seen")
            return path.name

        name = self.on_first(mark)
        seen = self.gather(socket.gethostname() if not _sees(folder / name) else None)
        if self.first:
            with suppress(OSError):
                (folder / name).unlink()
        blind = [f"rank {rank} on {host}" for rank, host in enumerate(seen) if host is not None]
        if blind:
            more = f" and {len(blind) - 3} more" if len(blind) > 3 else ""
            raise UserError(
                f"{folder} is not one folder for all ranks: {', '.join(blind[:3])}{more} do not see what rank 0 writes",
                where=where,
                mend="name a folder on a file system that all machines of the run share",
            )


def _sees(path: Path) -> bool:
    """A network file system may answer from an old listing; opening asks again."""
    try:
        return path.read_bytes() == b"seen"
    except OSError:
        return False


def _portable(error: Exception, rank: int) -> Exception:
    """The error itself if it survives the trip, else its words."""
    try:
        pickle.loads(pickle.dumps(error))
        return error
    except Exception:
        return RankError(f"{type(error).__name__}: {error}", where=f"rank {rank}")
