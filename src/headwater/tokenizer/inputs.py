"""Plain inputs of the file verbs: documents from a corpus folder, Parquet shards, JSON Lines or text files.

    for document in read_inputs([Path("corpus.jsonl.zst"), Path("notes.txt")]): ...

Strict: a row that cannot be read is an error with its place. To clean raw files, keep the good rows of bad ones, or
read HTML and WARC, run the collect and curate stages first.
"""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import orjson

from headwater.core.documents import Corpus, Document, document_id, read_documents
from headwater.core.errors import InputError

SUFFIXES = (".parquet", ".jsonl", ".txt", ".md")
"""Also with .gz or .zst after them, except Parquet."""


def read_inputs(paths: Sequence[Path], *, split: str = "train", domain: str | None = None) -> Iterator[Document]:
    """Documents of all paths in order. `split` is taken of corpus folders; `domain` replaces the documents' own.

    A folder is a corpus (SPLIT/DOMAIN-00000.parquet), or what `curate` wrote of files, which gives its kept rows, or is
    searched for files of the known kinds, by name. A text file is one document. Raises InputError for a missing path,
    an unknown kind or a row that is no document.
    """
    for path in paths:
        for document in _read(Path(path), split):
            yield document if domain is None else _with_domain(document, domain)


def _read(path: Path, split: str) -> Iterator[Document]:
    if not path.exists():
        raise InputError("there is no such file or folder", where=str(path))
    if path.is_file():
        yield from _read_file(path, path.parent)
        return
    try:
        corpus = Corpus.open(path)
    except InputError:
        if all((path / name).is_file() for name in (_KEPT, "removed.jsonl.zst", "report.json")):
            yield from _read_file(path / _KEPT, path)
            return
        files = sorted(file for file in path.rglob("*") if file.is_file() and _kind(file) in SUFFIXES)
        if not files:
            raise InputError(
                "the folder has no corpus and no file that can be read",
                where=str(path),
                mend="it may hold " + ", ".join(SUFFIXES) + ", the text kinds also as .gz or .zst",
            ) from None
        for file in files:
            yield from _read_file(file, path)
    else:
        yield from corpus.documents(split)


def _kind(path: Path) -> str:
    name = path.name
    for packing in (".gz", ".zst"):
        name = name.removesuffix(packing)
    return Path(name).suffix


def _read_file(path: Path, root: Path) -> Iterator[Document]:
    kind = _kind(path)
    if kind == ".parquet":
        yield from read_documents(path)
    elif kind == ".jsonl":
        yield from _read_jsonl(path, root)
    elif kind in (".txt", ".md"):
        with _open(path) as file:
            text = _decode(file.read(), str(path))
        relative = path.relative_to(root).as_posix()
        yield Document(document_id(root.name, relative, 0), text, source=root.name, url=relative)
    else:
        raise InputError(
            f"cannot read files that end in {path.suffix!r}",
            where=str(path),
            mend="give " + ", ".join(SUFFIXES) + ", the text kinds also as .gz or .zst",
        )


def _read_jsonl(path: Path, root: Path) -> Iterator[Document]:
    relative = path.relative_to(root).as_posix()
    offset = 0
    with _open(path) as file:
        for number, line in enumerate(file, 1):
            place, offset = offset, offset + len(line)
            if not line.strip():
                continue
            where = f"{path}:{number}"
            try:
                row = orjson.loads(line)
            except orjson.JSONDecodeError as error:
                raise InputError(f"not JSON: {error}", where=where, mend=_CURATE) from None
            if not isinstance(row, dict) or not isinstance(row.get("text"), str):
                raise InputError('not an object with a string "text"', where=where, mend=_CURATE)
            source = str(row.get("source") or root.name)
            yield Document(
                document_id(source, relative, place),
                row["text"],
                source=source,
                lang=str(row.get("lang") or ""),
                domain=str(row.get("domain") or "other"),
                url=str(row.get("url") or ""),
                license=str(row.get("license") or ""),
            )


_KEPT = "kept.jsonl.zst"  # of the file verbs of curate, beside what they removed and set aside
_CURATE = "mend the row, or let `headwater curate --rewrite-text` read the file first, which sets bad rows aside"


@contextmanager
def _open(path: Path) -> Iterator[io.BufferedReader]:
    """The unpacked content. InputError if it is damaged, also when that shows only while it is read."""
    import zstandard

    try:
        with open(path, "rb") as packed:
            if path.suffix == ".gz":
                yield io.BufferedReader(gzip.GzipFile(fileobj=packed))
            elif path.suffix == ".zst":
                yield io.BufferedReader(_ZstdFrames(packed), 1 << 20)
            else:
                yield packed
    except (EOFError, zlib.error, gzip.BadGzipFile, zstandard.ZstdError) as error:
        raise InputError(f"the packed file is damaged: {error}", where=str(path), mend=_CURATE) from None


class _ZstdFrames(io.RawIOBase):
    """All frames of a .zst file. zstandard's own reader takes a cut file for its end; here that is an EOFError."""

    def __init__(self, packed: BinaryIO) -> None:
        import zstandard

        self._packed = packed
        self._new = zstandard.ZstdDecompressor().decompressobj
        self._frame = self._new()
        self._begun = False
        self._ready = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._ready:
            data = self._frame.unused_data if self._frame.eof else b""
            if self._frame.eof:
                self._frame, self._begun = self._new(), False
            data = data or self._packed.read(1 << 17)
            if not data:
                if self._begun:
                    raise EOFError("it ends in the middle of a frame")
                return 0
            self._begun = True
            self._ready = self._frame.decompress(data)
        count = min(len(buffer), len(self._ready))
        buffer[:count], self._ready = self._ready[:count], self._ready[count:]
        return count


def _decode(data: bytes, where: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise InputError(f"not UTF-8 at byte {error.start}", where=where, mend="convert the file to UTF-8") from None


def _with_domain(document: Document, domain: str) -> Document:
    return Document(
        document.id,
        document.text,
        document.source,
        document.lang,
        domain,
        document.url,
        document.license,
        document.meta,
    )
