"""Batches of a run as numpy arrays, prepared in a background thread.

In: a split, a `StepOrder` and which part of each batch this rank reads. Out: `Batch`es. A batch depends on dataset and
order alone; rank and world only choose its rows, and prefetching only when they are read.

    loader = Loader(dataset.split("train"), order)
    for batch in loader.iterate(first_step=1, last_step=100): ...
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headwater.dataset.dataset import DatasetSplit
from headwater.dataset.masking import IGNORE
from headwater.dataset.objective import Objective
from headwater.dataset.order import SampleRef
from headwater.dataset.steps import StepOrder, rank_slice


@dataclass(frozen=True)
class Batch:
    """Rows of one step, B of them with S = seq_len.

    tokens int64 [B, S + 1]; documents int32 [B, S + 1], ordinal within the row; positions int32 [B, S]; loss_mask
    bool [B, S]: whether targets[b, s] counts (it does not across a document's border, or where nothing is masked);
    refs: which sample each row is. masked_inputs and masked_targets int64 [B, S]: what a masked language model sees and
    must say (IGNORE where nothing is asked); None for models that read left to right. cached_rows: rows read from the
    shard cache; None without one.
    """

    step: int
    tokens: NDArray[np.int64]
    documents: NDArray[np.int32]
    positions: NDArray[np.int32]
    loss_mask: NDArray[np.bool_]
    refs: tuple[SampleRef, ...]
    masked_inputs: NDArray[np.int64] | None = None
    masked_targets: NDArray[np.int64] | None = None
    cached_rows: int | None = None

    @property
    def inputs(self) -> NDArray[np.int64]:
        """[B, S]: what the model sees."""
        return self.tokens[:, :-1] if self.masked_inputs is None else self.masked_inputs

    @property
    def targets(self) -> NDArray[np.int64]:
        """[B, S]: the token after each input, or the masked ones at their places; those that do not count included."""
        return self.tokens[:, 1:] if self.masked_targets is None else self.masked_targets

    @property
    def counted_targets(self) -> NDArray[np.int64]:
        """[B, S]: targets, IGNORE where they do not count."""
        return np.where(self.loss_mask, self.targets, IGNORE)

    @property
    def samples(self) -> NDArray[np.int64]:
        """Sample index of each row, int64 [B]."""
        return np.array([ref.sample for ref in self.refs], dtype=np.int64)

    @property
    def domains(self) -> tuple[str, ...]:
        """Domain of each row."""
        return tuple(ref.domain for ref in self.refs)

    @property
    def valid_tokens(self) -> int:
        """Targets that count."""
        return int(np.count_nonzero(self.loss_mask))


def positions_of(documents: NDArray[np.int32], *, restart: bool = True) -> NDArray[np.int32]:
    """Positions int32 [B, S] from document ordinals [B, S]: from 0 in each document, or in each row if not restart."""
    steps = np.broadcast_to(np.arange(documents.shape[1], dtype=np.int32), documents.shape)
    if not restart:
        return steps.copy()
    begins = np.zeros_like(documents)
    begins[:, 1:] = np.where(documents[:, 1:] != documents[:, :-1], steps[:, 1:], 0)
    return steps - np.maximum.accumulate(begins, axis=1)


class Loader:
    """Reads the batches of one rank.

    `restart_positions`: positions begin at 0 in each document (of which a row may hold only a part), else in each row.
    `prefetch`: batches prepared ahead by the thread. `objective` changes every batch read; None: the next token.
    `cache_ahead`: steps ahead of the batches for which the dataset's cache, if it has one, copies shards.
    """

    def __init__(
        self,
        split: DatasetSplit,
        order: StepOrder,
        *,
        rank: int = 0,
        world: int = 1,
        restart_positions: bool = True,
        prefetch: int = 2,
        objective: Objective | None = None,
        cache_ahead: int = 0,
    ) -> None:
        if prefetch < 1:
            raise ValueError(f"prefetch is {prefetch}; give at least 1")
        rank_slice(range(world), rank, world)  # refuses a rank outside now, not at the first batch
        self.split, self.order, self.rank, self.world = split, order, rank, world
        self.restart_positions, self.prefetch = restart_positions, prefetch
        self.objective, self.cache_ahead = objective, cache_ahead
        self._caches = any(stream.cache is not None for stream in split.domains.values())

    def batch(self, step: int) -> Batch:
        """This rank's rows of one step, read now. CorruptArtifactError if the data is damaged."""
        return self.read(step, self.refs(step))

    def refs(self, step: int) -> list[SampleRef]:
        """This rank's samples of one step."""
        return self.order.order.samples(rank_slice(self.order.range(step), self.rank, self.world))

    def read(self, step: int, refs: list[SampleRef]) -> Batch:
        """The rows of given samples, all of the same length."""
        seq_len = self.order.segment(step).seq_len
        tokens = np.empty((len(refs), seq_len + 1), dtype=np.int64)
        documents = np.empty((len(refs), seq_len + 1), dtype=np.int32)
        cached = 0
        for row, ref in enumerate(refs):
            window = self.split.domains[ref.domain].window(ref.start, ref.stop)
            tokens[row], documents[row] = window.tokens, window.documents
            cached += window.cached
        batch = Batch(
            step=step,
            tokens=tokens,
            documents=documents,
            positions=positions_of(documents[:, :-1], restart=self.restart_positions),
            loss_mask=documents[:, 1:] == documents[:, :-1],
            refs=tuple(refs),
            cached_rows=cached if self._caches else None,
        )
        return batch if self.objective is None else self.objective(batch)

    def iterate(self, first_step: int, last_step: int) -> Iterator[Batch]:
        """Batches of first_step..last_step (inclusive), `prefetch` of them read ahead.

        An error while reading is raised here, at its step. Closing the iterator, or leaving a `for` early, ends the
        thread.
        """
        ready: queue.Queue[Batch | BaseException] = queue.Queue(maxsize=self.prefetch)
        stop = threading.Event()
        thread = threading.Thread(
            target=self._fill, args=(first_step, last_step, ready, stop), name="headwater-loader", daemon=True
        )
        thread.start()
        try:
            for _ in range(first_step, last_step + 1):
                item = ready.get()
                if isinstance(item, BaseException):
                    raise item
                yield item
        finally:
            stop.set()
            with suppress(queue.Empty):  # let a thread that waits to put see `stop`
                while True:
                    ready.get_nowait()
            thread.join()

    def _fill(
        self, first_step: int, last_step: int, ready: queue.Queue[Batch | BaseException], stop: threading.Event
    ) -> None:
        ahead = first_step
        for step in range(first_step, last_step + 1):
            for _ in range(2):  # names of coming samples are worked out little by little, or the first batch would wait
                if self._caches and ahead <= min(last_step, step + self.cache_ahead):
                    self.split.request((ref.domain, ref.start, ref.stop) for ref in self.refs(ahead))
                    ahead += 1
            try:
                item: Batch | BaseException = self.batch(step)
            except BaseException as error:
                item = error
            while not stop.is_set():
                with suppress(queue.Full):
                    ready.put(item, timeout=0.1)
                    break
            if stop.is_set() or isinstance(item, BaseException):
                return
