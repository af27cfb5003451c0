"""Texts and ids on disk while documents are compared: 16 bytes of memory a document, whatever the texts' length.

with Spool(folder) as spool:
    spool.add(texts, ids, classes)
    spool.finish()
    number, row = spool.numbering()
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from headwater.core.errors import UserError
from headwater.core.files import disk_errors
from headwater.curate.dedup.kernels import SMALL, kernel
from headwater.curate.dedup.tokens import Bytes, Offsets

MOST_DOCUMENTS = (1 << 32) - 1


@kernel
def _pieces(data: Any, offsets: Any, rows: Any, depth: Any, high: Any, low: Any) -> None:
    """Bytes depth .. depth + 16 of each row's id as two big-endian uint64, short ones padded with zeros."""
    for index in range(rows.size):
        begin, end = offsets[rows[index]] + depth, offsets[rows[index] + 1]
        first = second = np.uint64(0)
        for place in range(8):
            first = (first << np.uint64(8)) | np.uint64(data[begin + place] if begin + place < end else 0)
            second = (second << np.uint64(8)) | np.uint64(data[begin + 8 + place] if begin + 8 + place < end else 0)
        high[index], low[index] = first, second


def sort_ids(data: Bytes, offsets: Offsets, classes: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Rows by class, then by id, byte by byte; equal ones in the order given. 60 bytes of memory a row while it runs.

    Ids are compared 16 bytes at a time, and only rows still equal go on to the next 16.
    """
    order = np.argsort(classes, kind="stable")
    group = np.concatenate([[0], np.cumsum(np.diff(classes[order].astype(np.int64)) != 0)]) if order.size else order
    longest = int(np.diff(offsets).max(initial=0))
    active = np.arange(order.size)
    for depth in range(0, longest, 16):
        high, low = np.empty(active.size, np.uint64), np.empty(active.size, np.uint64)
        _pieces(data, offsets, order[active], depth, high, low)
        found = np.lexsort((low, high, group[active]))
        order[active] = order[active][found]
        high, low = high[found], low[found]
        new = np.ones(active.size, np.bool_)
        new[1:] = (group[active][1:] != group[active][:-1]) | (high[1:] != high[:-1]) | (low[1:] != low[:-1])
        group[active] = active[np.flatnonzero(new)][np.cumsum(new) - 1]
        alone = new & np.append(new[1:], True)
        active = active[~alone]
        if not active.size:
            break
    return order


class Spool:
    """Texts, ids and classes of preference (0 is kept before 1) of documents, by row: the order they came in."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.documents = 0
        self.text_bytes = 0
        self._files: dict[str, IO[bytes]] = {
            name: open(folder / name, "w+b")  # noqa: SIM115 - closed in close()
            for name in ("texts", "ids", "id-offsets")
        }
        self._files["id-offsets"].write(np.zeros(1, np.int64).tobytes())
        self._id_bytes = 0
        self._lengths: list[NDArray[np.int64]] = []
        self._classes: list[NDArray[np.uint8]] = []
        self._maps: dict[str, mmap.mmap] = {}
        self.data: Bytes = np.zeros(0, np.uint8)
        self.offsets: Offsets = np.zeros(1, np.int64)

    def add(self, texts: Sequence[bytes], ids: Sequence[bytes], classes: Sequence[int]) -> None:
        """Append documents. Raises DiskSpaceError; UserError past 4,294,967,295 documents."""
        self.documents += len(texts)
        if self.documents > MOST_DOCUMENTS:
            raise UserError(
                f"more than {MOST_DOCUMENTS:,} documents in one deduplication", mend="divide the inputs by language"
            )
        lengths = np.fromiter(map(len, texts), np.int64, len(texts))
        borders = np.cumsum(np.fromiter(map(len, ids), np.int64, len(ids))) + self._id_bytes
        with disk_errors(self.folder):
            self._files["texts"].write(b"".join(texts))
            self._files["ids"].write(b"".join(ids))
            self._files["id-offsets"].write(borders.tobytes())
        self.text_bytes += int(lengths.sum())
        self._id_bytes = int(borders[-1]) if borders.size else self._id_bytes
        self._lengths.append(lengths)
        self._classes.append(np.array(classes, np.uint8))

    def finish(self) -> None:
        """End writing: from here on `data` and `offsets` hold the texts."""
        with disk_errors(self.folder):
            for file in self._files.values():
                file.flush()
        self.offsets = np.zeros(self.documents + 1, np.int64)
        at = 1
        for lengths in self._lengths:
            np.cumsum(lengths, out=self.offsets[at : at + lengths.size])
            self.offsets[at : at + lengths.size] += self.offsets[at - 1]
            at += lengths.size
        self._lengths.clear()
        self.data = self._map("texts")

    def _map(self, name: str) -> Bytes:
        """A file as bytes; private, so that it counts as writable and kernels compile for one kind of array."""
        if not (self.folder / name).stat().st_size:
            return np.zeros(0, np.uint8)
        self._maps[name] = mmap.mmap(self._files[name].fileno(), 0, access=mmap.ACCESS_COPY)
        return np.frombuffer(self._maps[name], np.uint8)

    def release(self) -> None:
        """Let go of the pages of texts read so far; they stay in the system's cache."""
        for pages in self._maps.values():
            pages.madvise(mmap.MADV_DONTNEED)

    def numbering(self) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
        """(number of each row, row of each number): numbers go by class, then id; of documents with the same id, by
        the hash of the text; the same id and text twice, by row."""
        classes = np.concatenate([*self._classes, np.empty(0, np.uint8)])
        offsets = self._map("id-offsets").view(np.int64)
        ids = self._map("ids")
        if classes.size <= SMALL:
            names = [ids[offsets[row] : offsets[row + 1]].tobytes() for row in range(classes.size)]
            keys = [
                (kind, name, self._hash(row), row) for row, (kind, name) in enumerate(zip(classes, names, strict=True))
            ]
            order = np.array([key[-1] for key in sorted(keys)], np.int64)
        else:
            order = sort_ids(ids, offsets, classes)
            self._break_ties(order, ids, offsets, classes)
        number = np.empty(order.size, np.uint32)
        number[order] = np.arange(order.size, dtype=np.uint32)
        return number, order.astype(np.uint32)

    def _break_ties(self, order: NDArray[np.int64], ids: Bytes, offsets: Offsets, classes: NDArray[np.uint8]) -> None:
        sizes = np.diff(offsets)
        maybe = np.flatnonzero((sizes[order[1:]] == sizes[order[:-1]]) & (classes[order[1:]] == classes[order[:-1]]))
        if not maybe.size:
            return
        same = np.zeros(maybe.size, np.uint8)
        _equal_ids(ids, offsets, order[maybe], order[maybe + 1], same)
        at = 0
        twins = maybe[same == 1]
        while at < twins.size:
            end = at
            while end + 1 < twins.size and twins[end + 1] == twins[end] + 1:
                end += 1
            first, last = int(twins[at]), int(twins[end]) + 2
            order[first:last] = sorted(order[first:last].tolist(), key=lambda row: (self._hash(row), row))
            at = end + 1

    def _hash(self, row: int) -> bytes:
        return xxhash.xxh3_128_digest(self.text(row))

    def bytes_of(self, row: int) -> Bytes:
        """UTF-8 bytes of a text, not copied."""
        return self.data[self.offsets[row] : self.offsets[row + 1]]

    def text(self, row: int) -> bytes:
        return self.bytes_of(row).tobytes()

    def ids(self, rows: NDArray[np.int64]) -> list[str]:
        """Ids of these rows."""
        borders, ids = self._map_once("id-offsets").view(np.int64), self._map_once("ids")
        return [ids[borders[row] : borders[row + 1]].tobytes().decode("utf-8", "surrogatepass") for row in rows]

    def _map_once(self, name: str) -> Bytes:
        return np.frombuffer(self._maps[name], np.uint8) if name in self._maps else self._map(name)

    def close(self) -> None:
        """Remove the files."""
        self.data = np.zeros(0, np.uint8)
        for pages in self._maps.values():
            with suppress(BufferError):  # an array of a caller still looks at it; the system frees it later
                pages.close()
        for name, file in self._files.items():
            file.close()
            (self.folder / name).unlink(missing_ok=True)

    def __enter__(self) -> Spool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@kernel
def _equal_ids(data: Any, offsets: Any, first: Any, second: Any, out: Any) -> None:
    for index in range(first.size):
        a, b = offsets[first[index]], offsets[second[index]]
        size = offsets[first[index] + 1] - a
        out[index] = 1
        for place in range(size):
            if data[a + place] != data[b + place]:
                out[index] = 0
                break
