"""What CUDA's caching allocator would hold for a list of requests: PyTorch's rules, replayed.

In: allocations and releases in order (`Ledger.events`). Out: the most bytes it has taken from the device at once, which
`torch.cuda.max_memory_reserved` would show. Fragmentation is the difference to the allocated peak.

    reserved([(0, 4096), (1, 1 << 30), (0, 0)])

The rules (c10/cuda/CUDACachingAllocator.cpp): requests of up to 1 MiB come from segments of 2 MiB, of up to 10 MiB from
segments of 20 MiB, larger ones from segments of their own in whole 2 MiB; a request takes the smallest free block that
holds it and gives the rest back as a block if it is large enough; neighbouring free blocks become one. All requests are
taken to be of one stream, and nothing is returned to the device.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable

_SMALL = 1 << 20
_SMALL_SEGMENT, _SEGMENT, _OWN_SEGMENT, _ROUND = 2 << 20, 20 << 20, 10 << 20, 2 << 20


class _Pool:
    """Free blocks of one pool, by (bytes, address), and all blocks by address."""

    def __init__(self, least_rest: int) -> None:
        self.least_rest = least_rest
        self.free: list[tuple[int, int]] = []
        self.size: dict[int, int] = {}
        self.before: dict[int, int | None] = {}
        self.after: dict[int, int | None] = {}
        self.idle: set[int] = set()

    def add_free(self, address: int) -> None:
        self.idle.add(address)
        insort(self.free, (self.size[address], address))

    def take_free(self, address: int) -> None:
        self.idle.discard(address)
        del self.free[bisect_left(self.free, (self.size[address], address))]

    def place(self, size: int) -> int | None:
        """The address of a block that now holds `size` bytes; None where no free block does."""
        where = bisect_left(self.free, (size, 0))
        if where == len(self.free):
            return None
        address = self.free[where][1]
        self.take_free(address)
        rest = self.size[address] - size
        if rest >= self.least_rest:
            self._split(address, size, rest)
        return address

    def _split(self, address: int, size: int, rest: int) -> None:
        other, follower = address + size, self.after[address]
        self.size[address], self.size[other] = size, rest
        self.before[other], self.after[other], self.after[address] = address, follower, other
        if follower is not None:
            self.before[follower] = other
        self.add_free(other)

    def release(self, address: int) -> None:
        for neighbour in (self.after[address], self.before[address]):
            if neighbour is not None and neighbour in self.idle:
                self.take_free(neighbour)
                address = self._join(min(address, neighbour), max(address, neighbour))
        self.add_free(address)

    def _join(self, first: int, second: int) -> int:
        self.size[first] += self.size.pop(second)
        follower = self.after.pop(second)
        del self.before[second]
        self.after[first] = follower
        if follower is not None:
            self.before[follower] = first
        return first


def reserved(events: Iterable[tuple[int, int]]) -> int:
    """Bytes in segments after all requests. `events`: (key, bytes) takes, (key, 0) gives back."""
    small, large = _Pool(512), _Pool(_SMALL + 1)
    total = 0
    placed: dict[int, tuple[_Pool, int]] = {}
    for key, size in events:
        if size == 0:
            pool, address = placed.pop(key)
            pool.release(address)
            continue
        pool = small if size <= _SMALL else large
        found = pool.place(size)
        if found is None:
            segment = (
                _SMALL_SEGMENT if pool is small else _SEGMENT if size < _OWN_SEGMENT else -(-size // _ROUND) * _ROUND
            )
            start = total
            pool.size[start], pool.before[start], pool.after[start] = segment, None, None
            pool.add_free(start)
            total += segment
            found = pool.place(size)
            assert found is not None
        placed[key] = (pool, found)
    return total
