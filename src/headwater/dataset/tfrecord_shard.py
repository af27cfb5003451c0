"""Reads TFRecord shards by memory map, with the interface of `.tokens`; what is read is checked against its checksums
first. Imports nothing heavy.

    open_shard(Path("train/web-00000.tfrecord")).tokens(0, 10)
"""

from __future__ import annotations

import mmap
import struct
import threading
from pathlib import Path

import numpy as np
import xxhash
from numpy.typing import NDArray

from headwater.core.errors import InputError
from headwater.core.jsonl import parse_json
from headwater.core.tfrecord import HEAD_BYTES, TAIL_BYTES, masked_crc
from headwater.dataset.shard import TokenShard
from headwater.dataset.shard_format import HEADER, Header
from headwater.dataset.tfrecord_format import DOCUMENTS_SUFFIX, RECORD_COLUMNS, SUFFIX


class TfrecordShard(TokenShard):
    """An open TFRecord shard with the interface of `TokenShard`; a record's checksums are checked when it is first
    read."""

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        try:
            footer = self._open()
        except FileNotFoundError as error:
            raise InputError(
                "the token shard is missing, or the `.documents` file beside it",
                where=str(error.filename or self.path),
                mend="restore the files from a copy, or pack the dataset again",
            ) from None
        except ValueError as error:
            raise self._corrupt(str(error)) from None
        if xxhash.xxh3_64_intdigest(footer) != self.header.footer_hash:
            raise self._corrupt("the checksum of its .documents file is wrong")
        self._columns, offset = {}, 0
        for name, dtype in RECORD_COLUMNS:
            self._columns[name] = np.frombuffer(footer, dtype, self.header.documents, offset)
            offset += self.header.documents * np.dtype(dtype).itemsize
        self._names = parse_json(footer[len(footer) - self.header.json_bytes :])
        self._bounds = np.append(self._columns["offsets"], np.uint64(len(self._map))).astype(np.int64)
        self._checked = np.zeros(self.header.documents, dtype=bool)
        self._lock = threading.Lock()

    def _open(self) -> bytes:
        data = Path(f"{self.path}{DOCUMENTS_SUFFIX}").read_bytes()
        self.header = Header.unpack(data)
        if len(data) != self.header.file_bytes:
            raise ValueError(f"its .documents file has {len(data):,} bytes instead of {self.header.file_bytes:,}")
        with open(self.path, "rb") as file:
            size = file.seek(0, 2)
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else memoryview(b"")  # type: ignore[assignment]
        return data[HEADER.size :]

    def tokens(self, start: int, stop: int) -> NDArray[np.unsignedinteger]:
        """Tokens start to stop (exclusive); a view where they lie in one record. CorruptArtifactError if a record of
        them is damaged."""
        if not 0 <= start <= stop <= self.header.tokens:
            raise ValueError(f"tokens {start}:{stop} are outside {self.path.name} with {self.header.tokens}")
        if start == stop:
            return np.zeros(0, self.header.dtype)
        first = int(np.searchsorted(self.ends, start, side="right"))
        last = int(np.searchsorted(self.ends, stop, side="left"))
        parts = []
        for number in range(first, last + 1):
            begin = int(self.ends[number - 1]) if number else 0
            record = self._record(number)
            parts.append(record[max(0, start - begin) : stop - begin])
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _record(self, number: int) -> NDArray[np.unsignedinteger]:
        """The tokens of a document, a read-only view."""
        if not self._checked[number]:
            self._check_record(number)
        begin = int(self.ends[number - 1]) if number else 0
        count = int(self.ends[number]) - begin
        end = int(self._bounds[number + 1]) - TAIL_BYTES
        return np.frombuffer(self._map, self.header.dtype, count, end - count * self.header.token_bytes)

    def _check_record(self, number: int) -> None:
        start, end = int(self._bounds[number]), int(self._bounds[number + 1])
        raw = bytes(self._map[start:end])
        count = int(self.ends[number]) - (int(self.ends[number - 1]) if number else 0)
        good = len(raw) >= HEAD_BYTES + TAIL_BYTES + count * self.header.token_bytes
        if good:
            length, head_crc = struct.unpack("<QI", raw[:HEAD_BYTES])
            (data_crc,) = struct.unpack("<I", raw[-TAIL_BYTES:])
            data = raw[HEAD_BYTES:-TAIL_BYTES]
            good = length == len(data) and head_crc == masked_crc(raw[:8]) and data_crc == masked_crc(data)
        if not good:
            raise self._corrupt(
                f"record {number} of {self.header.documents} (bytes {start:,} and on) has a wrong checksum"
            )
        with self._lock:
            self._checked[number] = True

    def verify(self) -> None:
        """Check every record, and that each begins with bos, if there is one, and ends with eos."""
        ends = self.ends.astype(np.int64)
        if len(ends) and (int(ends[-1]) != self.header.tokens or np.any(np.diff(ends) < 1)):
            raise self._corrupt("the document index does not cover the tokens")
        for number in range(self.header.documents):
            tokens = self._record(number)
            if tokens[-1] != self.header.eos_id:
                raise self._corrupt("a document does not end with the end-of-document token")
            if self.header.bos_id is not None and tokens[0] != self.header.bos_id:
                raise self._corrupt("a document does not begin with the begin-of-text token")
            if int(tokens.max()) >= self.header.vocab_size:
                raise self._corrupt("a token is outside the vocabulary")


def open_shard(path: Path) -> TokenShard:
    """A shard of either format, known by its suffix."""
    return TfrecordShard(path) if path.name.endswith(SUFFIX) else TokenShard(path)
