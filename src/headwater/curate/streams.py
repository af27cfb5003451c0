"""Raw files as streams of bytes, decompressed by what they are, not by what they are called.

Gzip (any number of members), bzip2 (any number of streams, as in Wikipedia's dumps) and Zstandard (any number of
frames, skippable ones too) are recognised by their first bytes. A stream that breaks off or turns to garbage gives all
it had and then says what happened in `damage`; nothing is raised for content. Memory stays bounded whatever the
compression ratio.

    stream = RawStream(path)
    for chunk in stream.chunks(): ...
    if stream.damage: print(stream.damage.reason, stream.damage.detail)
"""

from __future__ import annotations

import bz2
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any

import zstandard

from headwater.curate.records import Reason

CHUNK_BYTES = 1 << 20
"""Most bytes in one chunk."""

GZIP_MAGIC = b"\x1f\x8b\x08"
BZIP2_BLOCK, BZIP2_END = b"1AY&", b"\x17rE8"  # what follows BZh and the level: a block, or an empty stream's end
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_SKIPPABLE = range(0x184D2A50, 0x184D2A60)
_ZSTD_FEED = 1 << 10  # compressed bytes at a time: at zstd's highest ratio 34 MB come out; 400 MB/s on ordinary text


@dataclass(frozen=True, slots=True)
class Damage:
    """Where a stream stopped early; `offset` is in the decompressed stream."""

    reason: Reason
    detail: str
    offset: int


def sniff(head: bytes) -> str:
    """ "gzip", "bzip2", "zstd" or "plain", from the first bytes of a file."""
    if head.startswith(GZIP_MAGIC):
        return "gzip"
    if head[:3] == b"BZh" and head[4:8] in (BZIP2_BLOCK, BZIP2_END):
        return "bzip2"
    if head.startswith(ZSTD_MAGIC) or (len(head) >= 4 and int.from_bytes(head[:4], "little") in _SKIPPABLE):
        return "zstd"
    return "plain"


def format_of(path: Path) -> str:
    """What `sniff` says of a file; "" if it cannot be read."""
    try:
        with open(path, "rb") as file:
            return sniff(file.read(8))
    except OSError:
        return ""


class RawStream:
    """One pass over a raw file from byte `start` on. `format` "plain" takes the bytes as they are.

    After `chunks` ended: `damage` says whether it ended early, `total` counts decompressed bytes, `member` is the
    file offset of the gzip member that was being read.
    """

    def __init__(self, path: Path, start: int = 0, format: str = "") -> None:
        self.path = path
        self.start = start
        self.format = format
        self.damage: Damage | None = None
        self.total = 0
        self.member = start

    def chunks(self) -> Iterator[bytes]:
        """Decompressed bytes in pieces of at most `CHUNK_BYTES`. OSError if the file cannot be opened or read."""
        with open(self.path, "rb") as file:
            file.seek(self.start)
            self.format = self.format or sniff(file.peek(8)[:8])
            source = {"gzip": self._gzip, "bzip2": self._bzip2, "zstd": self._zstd, "plain": self._plain}[self.format]
            for chunk in source(file):
                self.total += len(chunk)
                yield chunk

    def _stop(self, reason: Reason, detail: str) -> None:
        self.damage = Damage(reason, detail, self.total)

    def _plain(self, file: BufferedReader) -> Iterator[bytes]:
        while chunk := file.read(CHUNK_BYTES):
            yield chunk

    def _gzip(self, file: BufferedReader) -> Iterator[bytes]:
        position = self.start  # in the file, of what has been handed to zlib
        data = b""
        while True:
            inflate = zlib.decompressobj(zlib.MAX_WBITS | 16)
            self.member = position - len(data)
            while not inflate.eof:
                if not data:
                    data = file.read(1 << 16)
                    position += len(data)
                    if not data:
                        self._stop(Reason.TRUNCATED, "the gzip stream ends in the middle of a member")
                        return
                before = inflate.copy()
                try:
                    chunk = inflate.decompress(data, CHUNK_BYTES)
                except zlib.error as error:
                    yield from _until_error(before, data)
                    self._stop(Reason.CORRUPT, f"gzip: {error}")
                    return
                data = inflate.unconsumed_tail
                if chunk:
                    yield chunk
            data = inflate.unused_data
            while len(data := data.lstrip(b"\0")) < len(GZIP_MAGIC):  # some writers pad with zeros
                more = file.read(1 << 16)
                if not more:
                    break
                position += len(more)
                data += more
            if not data:
                return
            if not data.startswith(GZIP_MAGIC):
                self._stop(Reason.TRAILING_GARBAGE, "bytes after the last gzip member are no gzip")
                return

    def _bzip2(self, file: BufferedReader) -> Iterator[bytes]:
        data = b""
        while data := data or file.read(1 << 16):
            if len(data) < 8:
                data += file.read(1 << 16)
            if sniff(data[:8]) != "bzip2":
                self._stop(Reason.TRAILING_GARBAGE, "bytes after the last bzip2 stream are no bzip2")
                return
            inflate = bz2.BZ2Decompressor()
            while not inflate.eof:
                if inflate.needs_input:
                    data = data or file.read(1 << 16)
                    if not data:
                        self._stop(Reason.TRUNCATED, "the bzip2 stream ends in the middle")
                        return
                try:
                    chunk = inflate.decompress(data, CHUNK_BYTES)
                except OSError as error:
                    self._stop(Reason.CORRUPT, f"bzip2: {error}")
                    return
                data = b""
                if chunk:
                    yield chunk
            data = inflate.unused_data

    def _zstd(self, file: BufferedReader) -> Iterator[bytes]:
        data = b""
        context = zstandard.ZstdDecompressor()
        while True:
            data += file.read(max(0, 8 - len(data)))
            if not data:
                return
            if len(data) >= 8 and int.from_bytes(data[:4], "little") in _SKIPPABLE:
                size = 8 + int.from_bytes(data[4:8], "little")
                if size > len(data):
                    file.seek(size - len(data), 1)
                data = data[size:]
                continue
            if not data.startswith(ZSTD_MAGIC):
                reason = Reason.TRUNCATED if ZSTD_MAGIC.startswith(data) else Reason.TRAILING_GARBAGE
                self._stop(reason, "bytes after the last zstd frame are no zstd")
                return
            frame = context.decompressobj()
            while not frame.eof:
                data = data or file.read(_ZSTD_FEED)
                if not data:
                    self._stop(Reason.TRUNCATED, "the zstd stream ends in the middle of a frame")
                    return
                try:
                    output = frame.decompress(data)
                except zstandard.ZstdError as error:
                    self._stop(Reason.CORRUPT, str(error))
                    return
                data = b""
                for start in range(0, len(output), CHUNK_BYTES):
                    yield output[start : start + CHUNK_BYTES]
            data = frame.unused_data


def _until_error(inflate: Any, data: bytes) -> Iterator[bytes]:
    """What comes out before the byte that is wrong: zlib keeps it to itself when it meets one."""
    for at in range(len(data)):
        try:
            chunk = inflate.decompress(data[at : at + 1])
        except zlib.error:
            return
        for start in range(0, len(chunk), CHUNK_BYTES):
            yield chunk[start : start + CHUNK_BYTES]


def next_gzip_member(path: Path, after: int) -> int | None:
    """The file offset of the next place after `after` that looks like the start of a gzip member, or None."""
    with open(path, "rb") as file:
        position = after + 1
        file.seek(position)
        tail = b""
        while block := file.read(CHUNK_BYTES):
            window = tail + block
            found = window.find(GZIP_MAGIC)
            if found >= 0:
                return position - len(tail) + found
            tail = window[-2:]
            position += len(block)
    return None


def read_capped(stream: RawStream, cap: int) -> tuple[bytes | None, int]:
    """All bytes of a stream and how many there were; None instead of more than `cap`, which are counted, not kept."""
    kept: list[bytes] = []
    for chunk in stream.chunks():
        if stream.total <= cap:
            kept.append(chunk)
        else:
            kept.clear()
    return (b"".join(kept) if stream.total <= cap else None), stream.total


def first_bytes(path: Path, count: int = 1024) -> bytes:
    """The first decompressed bytes of a file."""
    for chunk in RawStream(path).chunks():
        return chunk[:count]
    return b""
