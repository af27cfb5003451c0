"""The memory of a simulated rank as its allocator sees it: every storage from its birth to its death.

In: tensors as operations make them (`see`), and what the trainer is doing (`during`). Out: the peak, what it consists
of, and the memory that the caching allocator of a GPU would hold for the same requests (`simulate.allocator`).

    with ledger.watching(), Recorder(ledger, ...): ...
    ledger.peak, ledger.at_peak["activations"]

A storage counts rounded up to 512 bytes, as CUDA's allocator hands it out. Its kind is what the trainer was doing when
it was made, until somebody who knows better says so (`mark`).
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

KINDS = (
    "weights", "gathered", "gradients", "optimizer", "activations", "loss", "backward", "batch", "averages", "other",
)  # fmt: skip
"""weights: this rank's part of them; gathered: of other ranks, and casts; backward: what the backward pass makes, work
done again included, and passes on; batch: tokens and their like."""

_BLOCK = 512

Event = tuple[str, int, int, str]
"""(take | give | mark, serial number of a piece of memory, bytes, kind) for those who repeat it."""


class Ledger:
    """See the module."""

    def __init__(self) -> None:
        self.kind = "other"
        self.now = 0
        self.peak = 0
        self.held = dict.fromkeys(KINDS, 0)
        self.at_peak = dict(self.held)
        self.events: list[tuple[int, int]] = []
        """(serial number, bytes) of every allocation, (serial number, 0) of every release, in order."""
        self.journal: list[Event] | None = None
        """What happens is also written down here, if it is a list."""
        self.serial = 0
        """The next piece's number."""
        self._known: dict[int, tuple[weakref.ref[Any], int, str, int]] = {}

    @contextmanager
    def during(self, kind: str) -> Iterator[None]:
        """What is made inside is of this kind."""
        before, self.kind = self.kind, kind
        try:
            yield
        finally:
            self.kind = before

    def see(self, tensor: Tensor) -> None:
        """Take note of a tensor's storage, if it is new."""
        storage = tensor.untyped_storage()
        if storage._cdata not in self._known:
            self._add(storage, self.kind)

    def mark(self, tensor: Tensor, kind: str) -> None:
        """This tensor's memory is of this kind, whatever it was made as."""
        storage = tensor.untyped_storage()
        known = self._known.get(storage._cdata)
        if known is not None and known[2] != kind:
            reference, size, before, serial = known
            self.held[before] -= size
            self.held[kind] += size
            self._known[storage._cdata] = (reference, size, kind, serial)
            if self.journal is not None and size:
                self.journal.append(("mark", serial, size, kind))

    def serial_of(self, tensor: Tensor | None) -> int | None:
        """The number of a tensor's memory; None for no tensor."""
        return None if tensor is None else self._known[tensor.untyped_storage()._cdata][3]

    def any_alive(self, serials: Iterable[int]) -> bool:
        """Whether one of these pieces is still held."""
        wanted = set(serials)
        return any(serial in wanted for _, size, _, serial in self._known.values() if size)

    def take(self, size: int, kind: str) -> int:
        """Memory without a tensor: its number."""
        serial = self.serial
        self.serial += 1
        self._grow(serial, size, kind)
        return serial

    def give(self, serial: int, size: int, kind: str) -> None:
        """Give back what `take` took."""
        self._shrink(serial, size, kind)

    def move(self, size: int, before: str, kind: str) -> None:
        """Memory that `take` took is of another kind."""
        self.held[before] -= size
        self.held[kind] += size

    def start_again(self) -> None:
        """Forget the peak so far."""
        self.peak, self.at_peak = self.now, dict(self.held)

    def _add(self, storage: Any, kind: str) -> None:
        size = -(-storage.nbytes() // _BLOCK) * _BLOCK
        key, serial = storage._cdata, self.serial
        self.serial += 1
        self._known[key] = (weakref.ref(storage, lambda _: self._gone(key, serial)), size, kind, serial)
        self._grow(serial, size, kind)

    def _grow(self, serial: int, size: int, kind: str) -> None:
        if not size:
            return
        self.events.append((serial, size))
        if self.journal is not None:
            self.journal.append(("take", serial, size, kind))
        self.now += size
        self.held[kind] += size
        if self.now > self.peak:
            self.peak, self.at_peak = self.now, dict(self.held)

    def _gone(self, key: int, serial: int) -> None:
        known = self._known.get(key)
        if known is not None and known[3] == serial:
            del self._known[key]
            self._shrink(serial, known[1], known[2])

    def _shrink(self, serial: int, size: int, kind: str) -> None:
        if size:
            self.events.append((serial, 0))
            if self.journal is not None:
                self.journal.append(("give", serial, size, kind))
            self.now -= size
            self.held[kind] -= size

    def _resized(self, storage: Any, kind: str) -> None:
        """A storage changed its size: FSDP gives memory of gathered parameters back, and takes it again, so."""
        known = self._known.get(storage._cdata)
        if known is None:
            self._add(storage, kind)
            return
        reference, before, own, serial = known
        self._shrink(serial, before, own)
        size = -(-storage.nbytes() // _BLOCK) * _BLOCK
        self._known[storage._cdata] = (reference, size, own, serial)
        self._grow(serial, size, own)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Also hear of storages that are resized, which no operation tells of."""
        original: Any = torch.UntypedStorage.resize_
        ledger = self

        def resize(storage: Any, size: int) -> Any:
            original(storage, size)
            ledger._resized(storage, "gathered")
            return storage

        torch.UntypedStorage.resize_ = resize  # type: ignore[method-assign, assignment]
        try:
            yield
        finally:
            torch.UntypedStorage.resize_ = original  # type: ignore[method-assign]
