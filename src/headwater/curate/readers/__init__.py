"""Readers: raw files in, `Record`, `Bad` and `Skipped` items out, streaming, with bounded memory.

A reader never raises for what a file holds; whatever it cannot use it names.

    for item in read_file(file, source): ...
    for item in read_file(file, source, Share(0, 2, 4 << 20)): ...       # one of two workers, if the kind can be shared
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

from headwater.curate.config import SourceConfig
from headwater.curate.markup import is_page
from headwater.curate.readers.share import Share
from headwater.curate.records import Bad, Item, Reason, Skip, Skipped
from headwater.curate.sources import SourceFile
from headwater.curate.streams import first_bytes

_OWN_KINDS = ("wikipedia", "source-tree", "arxiv", "python-environment")
"""Kinds whose readers look at the content themselves."""

_SHARED = ("jsonl", "warc", "wet", "wikipedia")
_LINES = ("text", "markdown")
"""Kinds that can be read by several workers, the latter line by line."""

Reader = Callable[[SourceFile, SourceConfig], Iterator[Item]]
SharedReader = Callable[[SourceFile, SourceConfig, Share], Iterator[Item]]


def can_be_shared(file: SourceFile, source: SourceConfig) -> bool:
    """Whether several workers may each read a share of the file, going by its kind."""
    return not file.end and (file.kind in _SHARED or (file.kind in _LINES and source.document == "line"))


def read_file(file: SourceFile, source: SourceConfig, share: Share | None = None) -> Iterator[Item]:
    """Everything in one file, by its kind, or a share of it; a file that cannot be opened or read is one `Bad`. Of what
    is not read record by record all is the first share's."""
    share = share or Share()
    if file.kind == "failed":  # it could not be fetched; the file says why
        yield Bad(Reason.NOT_FETCHED, f"{file.address}: {Path(file.path).read_text('utf-8', 'replace')}")
        return
    try:
        if source.kind != "python-environment" and not stat.S_ISREG(os.stat(file.path).st_mode):
            yield Bad(Reason.UNREADABLE, "not a regular file")  # a pipe would be waited for without end
            return
        own = file.end or source.kind in _OWN_KINDS
        head = b"" if own else first_bytes(Path(file.path))
        kind = _kind(file, source, head)
        if isinstance(kind, Bad | Skipped):
            if share.takes(0):
                yield kind
        elif (reader := _shared_reader(kind, source)) is not None:
            yield from reader(file, source, share)
        elif share.takes(0):
            yield from _reader(kind)(file, source)
    except OSError as error:
        if share.takes_the_rest():
            yield Bad(Reason.UNREADABLE, error.strerror or str(error))


def _kind(file: SourceFile, source: SourceConfig, head: bytes) -> str | Bad | Skipped:
    """What to read a file as: what its content says, its name, or the recipe, which must not contradict each other."""
    if file.end or source.kind in _OWN_KINDS:
        return file.kind
    if not head:
        return Bad(Reason.EMPTY_FILE, records=0) if file.size == 0 else file.kind if file.kind != "auto" else "text"
    content = _kind_of_content(head)
    if source.kind == "auto":
        if content in ("parquet", "warc"):
            return content
        if file.kind == "parquet" or (file.kind in ("warc", "wet") and content):
            return Bad(Reason.WRONG_FORMAT, f"named {file.kind}, but its content is not", raw_bytes=file.size)
        if file.kind != "auto":
            return file.kind
        return content or ("text" if file.named else Skipped(Skip.UNKNOWN_KIND, file.size))
    if content != source.kind and "parquet" in (content, source.kind):
        is_what = "Parquet" if content == "parquet" else "no Parquet"
        return Bad(Reason.WRONG_FORMAT, f"kind is {source.kind}, but the content is {is_what}", raw_bytes=file.size)
    if content == "warc" and source.kind in ("jsonl", "html"):
        return Bad(Reason.WRONG_FORMAT, f"kind is {source.kind}, but the content is WARC", raw_bytes=file.size)
    return source.kind


def _kind_of_content(head: bytes) -> str:
    if head.startswith(b"PAR1"):
        return "parquet"
    if head.startswith(b"WARC/"):
        return "warc"
    if head.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"{"):
        return "jsonl"
    return "html" if is_page(head.decode("latin-1")) else ""


def _shared_reader(kind: str, source: SourceConfig) -> SharedReader | None:
    if kind == "jsonl":
        from headwater.curate.readers.jsonl import read_jsonl

        return read_jsonl
    if kind in ("warc", "wet"):
        from headwater.curate.readers.warc import read_warc

        return read_warc
    if kind == "wikipedia":
        from headwater.curate.readers.wikipedia import read_wikipedia

        return read_wikipedia
    if kind in _LINES and source.document == "line":
        from headwater.curate.readers.text import read_lines

        return read_lines
    return None


def _reader(kind: str) -> Reader:
    if kind == "parquet":
        from headwater.curate.readers.parquet import read_parquet

        return read_parquet
    if kind == "html":
        from headwater.curate.readers.text import read_html

        return read_html
    if kind in _LINES:
        from headwater.curate.readers.text import read_text

        return read_text
    if kind == "source-tree":
        from headwater.curate.readers.source_tree import read_source_file

        return read_source_file
    if kind == "arxiv":
        from headwater.curate.readers.arxiv import read_arxiv

        return read_arxiv
    from headwater.curate.readers.python_environment import read_environment

    return read_environment
