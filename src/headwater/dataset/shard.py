"""Reads one token shard by memory map; what is read is checked against its checksum first.

shard = TokenShard(path); shard.tokens(0, 10); shard.document(0).id
"""

from __future__ import annotations

import mmap
import threading
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import xxhash
from numpy.typing import NDArray

from headwater.core.errors import CorruptArtifactError, InputError
from headwater.core.jsonl import parse_json
from headwater.dataset.shard_format import BLOCK_BYTES, HEADER, Header, column_sizes


@dataclass(frozen=True, slots=True)
class DocumentInfo:
    """One document of a shard: tokens `start` to `stop` (exclusive, its bos and eos included), counted from the shard's
    first; bytes and units of its text."""

    id: str
    source: str
    lang: str
    start: int
    stop: int
    bytes: int
    units: int


class TokenShard:
    """An open shard. Opening checks header, size and footer (InputError if missing, CorruptArtifactError if damaged);
    each block of tokens is checked when it is first read. Safe to read from several threads."""

    cached_as: str | None = None
    """Name in the dataset, of a copy in the cache."""

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        try:
            with open(self.path, "rb") as file:
                size = file.seek(0, 2)
                file.seek(0)
                self.header = Header.unpack(file.read(HEADER.size))
                if size != self.header.file_bytes:
                    raise ValueError(f"it has {size:,} bytes instead of {self.header.file_bytes:,}")
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except FileNotFoundError:
            raise InputError("the token shard is missing", where=str(self.path), mend=_MEND) from None
        except ValueError as error:
            raise self._corrupt(str(error)) from None
        footer = memoryview(self._map)[self.header.footer_offset :]
        if xxhash.xxh3_64_intdigest(footer) != self.header.footer_hash:
            raise self._corrupt("the footer's checksum is wrong")
        self._columns = {
            name: np.frombuffer(footer, dtype, entries, offset)
            for name, dtype, entries, offset in column_sizes(self.header)
        }
        self._names = parse_json(bytes(footer[len(footer) - self.header.json_bytes :]))
        self._payload = np.frombuffer(self._map, self.header.dtype, self.header.tokens, HEADER.size)
        self._checked = np.zeros(self.header.blocks, dtype=bool)
        self._lock = threading.Lock()

    @property
    def split(self) -> str:
        return self._names["split"]

    @property
    def domain(self) -> str:
        return self._names["domain"]

    @property
    def ends(self) -> NDArray[np.uint64]:
        """Where each document ends (exclusive), uint64 [documents]."""
        return self._columns["ends"]

    def tokens(self, start: int, stop: int) -> NDArray[np.unsignedinteger]:
        """Tokens start to stop (exclusive), a read-only view; CorruptArtifactError if a block of them is damaged."""
        if not 0 <= start <= stop <= self.header.tokens:
            raise ValueError(f"tokens {start}:{stop} are outside {self.path.name} with {self.header.tokens}")
        if start < stop:
            per_block = BLOCK_BYTES // self.header.token_bytes
            self._check(start // per_block, (stop - 1) // per_block + 1)
        return self._payload[start:stop]

    def _check(self, first: int, last: int) -> None:
        if self._checked[first:last].all():
            return
        payload = memoryview(self._map)[HEADER.size : HEADER.size + self.header.tokens * self.header.token_bytes]
        for block in range(first, last):
            if not self._checked[block]:
                found = xxhash.xxh3_64_intdigest(payload[block * BLOCK_BYTES : (block + 1) * BLOCK_BYTES])
                if found != int(self._columns["checksums"][block]):
                    raise self._corrupt(
                        f"block {block} of {self.header.blocks} (bytes {HEADER.size + block * BLOCK_BYTES:,} and on) "
                        "has a wrong checksum"
                    )
                with self._lock:
                    self._checked[block] = True

    def document(self, number: int) -> DocumentInfo:
        """The document `number`, counted from 0."""
        columns = self._columns
        start = int(columns["ends"][number - 1]) if number else 0
        return DocumentInfo(
            id=columns["ids"][number].tobytes().hex(),
            source=self._names["sources"][columns["sources"][number]],
            lang=self._names["langs"][columns["langs"][number]],
            start=start,
            stop=int(columns["ends"][number]),
            bytes=int(columns["bytes"][number]),
            units=int(columns["units"][number]),
        )

    def find(self, document_id: str) -> list[int]:
        """Numbers of the documents with this id, by binary search; [] if there is none."""
        order, wanted = self._columns["by_id"], bytes.fromhex(document_id)
        low, high = 0, len(order)
        while low < high:
            middle = (low + high) // 2
            if self._columns["ids"][order[middle]].tobytes() < wanted:
                low = middle + 1
            else:
                high = middle
        found = []
        while low < len(order) and self._columns["ids"][order[low]].tobytes() == wanted:
            found.append(int(order[low]))
            low += 1
        return sorted(found)

    def verify(self) -> None:
        """Check every block, and that the documents are what the index says: each begins with bos, if there is one,
        and ends with eos, in order."""
        self._check(0, self.header.blocks)
        ends = self.ends
        if len(ends) and (int(ends[-1]) != self.header.tokens or np.any(np.diff(ends.astype(np.int64)) < 1)):
            raise self._corrupt("the document index does not cover the tokens")
        if len(ends) and np.any(self._payload[ends.astype(np.int64) - 1] != self.header.eos_id):
            raise self._corrupt("a document does not end with the end-of-document token")
        starts = np.concatenate([[0], ends[:-1].astype(np.int64)]) if len(ends) else ends
        if self.header.bos_id is not None and np.any(self._payload[starts] != self.header.bos_id):
            raise self._corrupt("a document does not begin with the begin-of-text token")
        if self.header.tokens and int(self._payload.max()) >= self.header.vocab_size:
            raise self._corrupt("a token is outside the vocabulary")

    def _corrupt(self, what: str) -> CorruptArtifactError:
        return CorruptArtifactError(f"the token shard is damaged: {what}", where=str(self.path), mend=_MEND)


_MEND = "pack the dataset again: remove its folder and run the dataset stage, or restore the file from a copy"
