"""Cleaned texts of document shards: read shard by shard, or all together in one file with random access.

`CorpusTexts` holds the texts that are compared with others, uncompressed, in a scratch file that is mapped into memory:
the system may drop its pages at any time, so memory does not grow with the corpus. It is made anew after a kill.

    for rows, texts in cleaned_texts(documents, changed, wanted): ...
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from headwater.core.files import disk_errors
from headwater.core.shards import ShardFolder
from headwater.curate.attributes import texts_name
from headwater.curate.dedup.signatures import load_info
from headwater.curate.dedup.tokens import Bytes, Offsets

OFFSETS, UNITS, NEEDED, TEXTS = "offsets.npy", "units.npy", "needed.npy", "texts.bin"
WRITE_BYTES = 4 << 20


def column_bytes(column: pa.ChunkedArray) -> list[memoryview]:
    """UTF-8 bytes of each value of a large_string column; views that keep the column's memory alive."""
    found: list[memoryview] = []
    for chunk in column.chunks:
        _, borders, data = chunk.buffers()
        if len(chunk):
            offsets = np.frombuffer(borders, np.int64, len(chunk) + 1, 8 * chunk.offset).tolist()
            view = memoryview(data) if data is not None else memoryview(b"")
            found += [view[start:end] for start, end in pairwise(offsets)]
    return found


class ChangedTexts:
    """Texts that cleaning changed, asked for in ascending order of rows; one row group in memory."""

    def __init__(self, path: Path) -> None:
        self._file = pq.ParquetFile(path)
        self._group = 0
        self._rows: list[int] = []
        self._texts: list[memoryview] = []
        self._at = 0

    def get(self, row: int) -> memoryview | None:
        """The cleaned text of a row, None if cleaning did not change it."""
        while True:
            while self._at < len(self._rows) and self._rows[self._at] < row:
                self._at += 1
            if self._at < len(self._rows):
                return self._texts[self._at] if self._rows[self._at] == row else None
            if self._group >= self._file.num_row_groups:
                return None
            table = self._file.read_row_group(self._group)
            self._rows, self._texts = table.column("row").to_pylist(), column_bytes(table.column("text"))
            self._group, self._at = self._group + 1, 0


def cleaned_texts(
    documents: Path, changed: Path, wanted: NDArray[np.int64]
) -> Iterator[tuple[NDArray[np.int64], list[memoryview]]]:
    """Rows, ascending, and their cleaned texts, one row group of the document shard at a time; `wanted` rows only."""
    edited = ChangedTexts(changed)
    with pq.ParquetFile(documents) as file:
        start = 0
        for group in range(file.num_row_groups):
            end = start + file.metadata.row_group(group).num_rows
            first, last = np.searchsorted(wanted, [start, end])
            rows = wanted[first:last]
            if rows.size:
                table = file.read_row_group(group, columns=["text"])
                texts = column_bytes(table.column("text"))
                found = []
                for row in rows.tolist():
                    text = edited.get(row)
                    found.append(texts[row - start] if text is None else text)
                yield rows, found
            start = end


@dataclass(frozen=True, slots=True)
class FillTask:
    """Put the needed texts of one shard into the file, from byte `at` on; `base` is its first document's position."""

    name: str
    documents: Path
    base: int
    at: int
    folder: Path
    out: ShardFolder


def fill(task: FillTask) -> dict[str, Any]:
    """Write the texts of one shard. Returns `bytes`."""
    info = load_info(task.out, task.name)
    needed = np.load(task.folder / NEEDED, mmap_mode="r")[task.base : task.base + len(info)]
    wanted = info["row"][needed].astype(np.int64)
    position = task.at
    path = task.folder / TEXTS
    with disk_errors(path), open(path, "r+b", buffering=WRITE_BYTES) as file:
        file.seek(position)
        for _, texts in cleaned_texts(task.documents, task.out.dir / texts_name(task.name), wanted):
            position += file.write(b"".join(texts))
    return {"bytes": position - task.at}


class CorpusTexts:
    """Texts by position, as `compare` and `passages` take them: `data` and `offsets` [positions + 1]. A position that
    was not asked for has an empty text."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.offsets: Offsets = mapped(folder / OFFSETS)
        self.data: Bytes = np.zeros(0, np.uint8)
        self._pages: mmap.mmap | None = None
        if (folder / TEXTS).stat().st_size:
            with open(folder / TEXTS, "rb") as file:
                self._pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
            self.data = np.frombuffer(self._pages, np.uint8)

    @staticmethod
    def prepare(folder: Path, needed: NDArray[np.bool_], sizes: NDArray[Any], units: NDArray[np.int32]) -> Offsets:
        """Make the folder and an empty file for the needed texts of these sizes in bytes; returns the offsets."""
        offsets = np.zeros(needed.size + 1, np.int64)
        np.cumsum(np.where(needed, sizes, 0), out=offsets[1:])
        with disk_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            np.save(folder / OFFSETS, offsets)
            np.save(folder / UNITS, units)
            np.save(folder / NEEDED, needed)
            with open(folder / TEXTS, "wb") as file:
                if offsets[-1]:
                    os.posix_fallocate(file.fileno(), 0, int(offsets[-1]))
        return offsets

    def units(self) -> NDArray[np.int32]:
        """Units of each position."""
        return mapped(self.folder / UNITS)

    def bytes_of(self, position: int) -> Bytes:
        """UTF-8 bytes of a text, not copied."""
        return self.data[self.offsets[position] : self.offsets[position + 1]]

    def text(self, position: int) -> str:
        """A text."""
        return self.bytes_of(position).tobytes().decode("utf-8", "surrogatepass")

    def release(self) -> None:
        """Let go of the pages read so far; they stay in the system's cache."""
        if self._pages is not None:
            self._pages.madvise(mmap.MADV_DONTNEED)

    def close(self) -> None:
        """Give up the mapping; the file stays."""
        self.data = np.zeros(0, np.uint8)
        if self._pages is not None:
            with suppress(BufferError):  # an array of a caller still looks at it; the system frees it later
                self._pages.close()


def mapped(path: Path) -> NDArray[Any]:
    """An array in a file, mapped; private, so that it counts as writable and kernels compile for one kind of array."""
    array = np.load(path, mmap_mode="c")
    return np.asarray(array).view(np.ndarray)
