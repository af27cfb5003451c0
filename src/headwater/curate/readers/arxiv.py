"""arXiv's LaTeX sources: a paper a document, from its `.tar.gz` or `.gz`, or from the bulk tars of many of these.

for item in read_arxiv(file, source): ...
"""

from __future__ import annotations

import io
import re
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from headwater.curate.config import SourceConfig
from headwater.curate.readers.latex import VERSION, latex_to_text
from headwater.curate.readers.text import decode_text
from headwater.curate.records import Bad, Item, Reason, Record, Skip, Skipped
from headwater.curate.sources import SourceFile
from headwater.curate.streams import GZIP_MAGIC, RawStream

_TEX = (".tex", ".ltx", ".latex")
_IDENTIFIER = re.compile(r"(?:([a-z-]+)(?:\.[A-Z]{2})?/?)?(\d{4}\.\d{4,5}|\d{7})(v\d+)?")
_TAR_MARK = slice(257, 262)
_MOST_FILES = 5000
_DEEPEST = 3


def read_arxiv(file: SourceFile, source: SourceConfig) -> Iterator[Item]:
    """Papers of a file. `Record.position` is where the paper begins in the decompressed file. Archives in archives
    share `max_document_bytes`, so one that expands a thousandfold ends there."""
    stream = RawStream(Path(file.path))
    chunks = _Chunks(stream)
    try:
        yield from _read(chunks, PurePosixPath(file.relative).name, 0, source, 0)
    except tarfile.TarError as error:
        if not stream.damage:
            yield Bad(Reason.CORRUPT, f"tar: {error}", stream.total, records=0)
    if stream.damage:
        yield Bad(stream.damage.reason, stream.damage.detail, stream.damage.offset, records=0)
    elif not stream.total:
        yield Bad(Reason.EMPTY_FILE, records=0)


class _Chunks(io.RawIOBase):
    """A stream of chunks as a file to read from, once."""

    def __init__(self, stream: RawStream) -> None:
        self._chunks = stream.chunks()
        self._rest = b""

    def peek(self, size: int) -> bytes:
        while len(self._rest) < size and (chunk := next(self._chunks, b"")):
            self._rest += chunk
        return self._rest[:size]

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        if size < 0:
            return self._rest + b"".join(self._chunks)
        found = self.peek(size)
        self._rest = self._rest[len(found) :]
        return found


def _read(chunks: _Chunks, name: str, offset: int, source: SourceConfig, depth: int) -> Iterator[Item]:
    head = chunks.peek(512)
    if head[_TAR_MARK] == b"ustar":
        yield from _read_tar(chunks, name, offset, source, depth)
        return
    data = chunks.read(source.max_document_bytes + 1)
    if len(data) > source.max_document_bytes:
        while chunks.read(1 << 20):
            pass
        yield Bad(Reason.TOO_LARGE, f"{name}: over max_document_bytes {source.max_document_bytes:,}", offset)
    elif data.startswith(b"%PDF"):
        yield Skipped(Skip.NO_PAPER, len(data))
    elif data:
        yield _paper({name: data}, name, offset, len(data), source)


def _read_tar(chunks: _Chunks, name: str, offset: int, source: SourceConfig, depth: int) -> Iterator[Item]:
    files: dict[str, bytes] = {}
    size = held = members = 0
    too_large = False
    with tarfile.open(fileobj=chunks, mode="r|") as archive:
        for member in archive:
            members += 1
            if not member.isreg():
                continue
            suffix = PurePosixPath(member.name).suffix.lower()
            size += member.size
            if suffix not in (*_TEX, ".gz"):
                if suffix == ".pdf" and "/" in member.name and depth == 0:
                    yield Skipped(Skip.NO_PAPER, member.size)
                continue
            if held + member.size > source.max_document_bytes and suffix != ".gz":
                too_large = True
                continue
            if member.size > source.max_document_bytes or members > _MOST_FILES * (1 if files else 1000):
                yield Bad(Reason.TOO_LARGE, f"{member.name}: {member.size:,} bytes", member.offset_data)
                continue
            opened = archive.extractfile(member)
            assert opened is not None
            data = opened.read()
            if suffix != ".gz":
                files[member.name.removeprefix("./")] = data
                held += len(data)
            elif depth + 1 < _DEEPEST:
                yield from _read_packed(data, member.name, offset + member.offset_data, source, depth + 1)
    if too_large:
        yield Bad(Reason.TOO_LARGE, f"{name}: TeX over max_document_bytes {source.max_document_bytes:,}", offset)
    elif files:
        yield _paper(files, name, offset, size, source)
    elif not members:
        yield Bad(Reason.EMPTY_FILE, "an empty archive", offset, records=0)


class _Packed(_Chunks):
    """A gzip file that lies in memory, unpacked as it is read, up to a cap."""

    def __init__(self, data: bytes, cap: int) -> None:
        self._chunks = self._unpack(data, cap)
        self._rest = b""
        self.damage = ""

    def _unpack(self, data: bytes, cap: int) -> Iterator[bytes]:
        inflate = zlib.decompressobj(zlib.MAX_WBITS | 16)
        total = 0
        while data and not inflate.eof and total <= cap:
            try:
                chunk = inflate.decompress(data, 1 << 20)
            except zlib.error as error:
                self.damage = f"gzip: {error}"
                return
            data = inflate.unconsumed_tail
            total += len(chunk)
            if chunk:
                yield chunk
        if total > cap:
            self.damage = f"it unpacks to more than {cap:,} bytes"
        elif not inflate.eof:
            self.damage = "the gzip stream ends in the middle"


def _read_packed(data: bytes, name: str, offset: int, source: SourceConfig, depth: int) -> Iterator[Item]:
    if not data.startswith(GZIP_MAGIC):
        yield Bad(Reason.WRONG_FORMAT, f"{name} is no gzip", offset, raw_bytes=len(data))
        return
    packed = _Packed(data, 8 * source.max_document_bytes)
    try:
        items = list(_read(packed, name.removesuffix(".gz"), offset, source, depth))
    except tarfile.TarError as error:
        items = []
        packed.damage = packed.damage or f"tar: {error}"
    if packed.damage:
        yield Bad(Reason.CORRUPT, f"{name}: {packed.damage}", offset, raw_bytes=len(data))
    else:
        yield from items


def _paper(files: dict[str, bytes], name: str, offset: int, size: int, source: SourceConfig) -> Item:
    texts: dict[str, str] = {}
    for path, data in files.items():
        try:
            texts[path] = decode_text(data, source.encoding)[0]
        except UnicodeError:
            texts[path] = data.decode("latin-1")  # what TeX of old took for granted
    found = latex_to_text(texts)
    if not found.main:
        return Skipped(Skip.NO_PAPER, size)
    if not found.text:
        return Bad(Reason.NO_TEXT, f"{name}: nothing but preamble", offset, raw_bytes=size)
    identifier = _IDENTIFIER.search(name)
    number = "".join(part for part in identifier.groups() if part) if identifier else ""
    if identifier and identifier[1] and "." not in identifier[2]:
        number = f"{identifier[1].strip('/')}/{identifier[2]}{identifier[3] or ''}"
    elif identifier:
        number = identifier[2] + (identifier[3] or "")
    return Record(
        found.text,
        offset,
        size,
        url=f"https://arxiv.org/abs/{number}" if number else "",
        lang=source.lang,
        domain=source.domain or "papers",
        license=source.license,
        meta={"title": found.title, "main": found.main, "extractor": VERSION, **({"row_id": number} if number else {})},
    )
