"""Text, Markdown and HTML files: one document a file, or a line."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from pathlib import Path

from headwater.core.units import HAN, HANGUL, KANA
from headwater.curate.config import SourceConfig
from headwater.curate.language import script_counts
from headwater.curate.lines import split_lines
from headwater.curate.readers.share import Share
from headwater.curate.records import Bad, Item, Reason, Record, Skip, Skipped
from headwater.curate.sources import SourceFile
from headwater.curate.streams import RawStream, read_capped

_ASIAN = frozenset(["gb18030", "gbk", "gb2312", "big5", "shift_jis", "cp932", "euc_jp", "euc_kr", "cp949", "big5hkscs"])
_FRONT_MATTER = re.compile(r"\ufeff?---[ \t]*\r?\n(.*?\n)?---[ \t]*(?:\r?\n|\Z)", re.DOTALL)
_TITLE = re.compile(r"^title:[ \t]*[\"']?(.+?)[\"']?[ \t]*$", re.MULTILINE)


def read_text(file: SourceFile, source: SourceConfig) -> Iterator[Item]:
    """Text or Markdown, whole. Of Markdown the YAML front matter is left out, its title kept in the meta."""
    item = _whole_file(file, source)
    if isinstance(item, Bad):
        yield item
        return
    data, size = item
    try:
        text, encoding = decode_text(data, source.encoding)
    except UnicodeError as error:
        yield Bad(Reason.BAD_UTF8 if source.encoding == "auto" else Reason.BAD_ENCODING, str(error), raw_bytes=size)
        return
    if "\0" in text:
        yield Bad(Reason.BINARY, "it holds zero bytes", text.index("\0"), raw_bytes=size)
        return
    meta = {} if encoding == "utf-8" else {"encoding": encoding}
    if file.kind == "markdown" and (match := _FRONT_MATTER.match(text)):
        text = text[match.end() :]
        if title := _TITLE.search(match[1] or ""):
            meta["title"] = title[1]
    yield Record(text, 0, size, lang=source.lang, domain=source.domain, license=source.license, meta=meta)


def read_html(file: SourceFile, source: SourceConfig) -> Iterator[Item]:
    """The main content of one page."""
    from headwater.curate.html import EXTRACTOR, PageTooCostlyError, extract_page

    item = _whole_file(file, source)
    if isinstance(item, Bad):
        yield item
        return
    data, size = item
    try:
        page = extract_page(data, "" if source.encoding == "auto" else source.encoding)
    except PageTooCostlyError as error:
        yield Bad(Reason.TOO_COSTLY, str(error), raw_bytes=size)
        return
    if not page.text:
        yield Bad(Reason.NO_TEXT, "no text in the page", raw_bytes=size)
        return
    meta = {"extractor": EXTRACTOR, "encoding": page.encoding, "title": page.title}
    yield Record(page.text, 0, size, lang=source.lang, domain=source.domain, license=source.license, meta=meta)


def _whole_file(file: SourceFile, source: SourceConfig) -> tuple[bytes, int] | Bad:
    stream = RawStream(Path(file.path))
    data, size = read_capped(stream, source.max_document_bytes)
    if stream.damage and stream.damage.reason != Reason.TRAILING_GARBAGE:
        return Bad(stream.damage.reason, stream.damage.detail, stream.damage.offset, raw_bytes=size)
    if data is None:
        limit = f"{size:,} bytes, over max_document_bytes {source.max_document_bytes:,}; `document: line` reads lines"
        return Bad(Reason.TOO_LARGE, limit, raw_bytes=size)
    return (data, size) if data else Bad(Reason.EMPTY_FILE, records=0)


def read_lines(file: SourceFile, source: SourceConfig, share: Share) -> Iterator[Item]:
    """A document a line, of a share of a file."""
    stream = RawStream(Path(file.path))
    encoding = "utf-8" if source.encoding == "auto" else source.encoding
    for line in split_lines(stream.chunks(), source.max_document_bytes):
        if not share.takes(line.offset):
            continue
        if line.data is None:
            yield Bad(Reason.TOO_LARGE, f"{line.size:,} bytes", line.offset, line.number, line.size)
            continue
        try:
            text = line.data.decode(encoding)
        except UnicodeError as error:
            yield Bad(Reason.BAD_UTF8, str(error), line.offset, line.number, line.size)
            continue
        text = text.removeprefix("\ufeff") if line.offset == 0 else text
        if not text.strip():
            yield Skipped(Skip.BLANK_LINE, line.size)
        else:
            text = text.removesuffix("\r")
            yield Record(text, line.offset, line.size, lang=source.lang, domain=source.domain, license=source.license)
    if not share.takes(stream.total):
        return
    if stream.damage:
        yield Bad(stream.damage.reason, stream.damage.detail, stream.damage.offset, records=0)
    elif not stream.total:
        yield Bad(Reason.EMPTY_FILE, records=0)


def decode_text(data: bytes, encoding: str) -> tuple[str, str]:
    """A whole file's text and its encoding. "auto" is UTF-8, UTF-16 by its mark, or an East Asian encoding in which
    everything decodes and most of what is not ASCII is East Asian. Raises UnicodeError."""
    if encoding != "auto":
        return data.decode(encoding).removeprefix("\ufeff"), codecs.lookup(encoding).name
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return data.decode("utf-16"), "utf-16"
    try:
        return data.decode().removeprefix("\ufeff"), "utf-8"
    except UnicodeDecodeError as error:
        found = _east_asian(data)
        if found is None:
            raise error
        return found


def _east_asian(data: bytes) -> tuple[str, str] | None:
    from resiliparse.parse.encoding import detect_encoding

    try:
        name = codecs.lookup(detect_encoding(data) or "").name
    except LookupError:
        return None
    if name not in _ASIAN:
        return None
    name = "gb18030" if name in ("gbk", "gb2312") else name
    try:
        text = data.decode(name)
    except UnicodeDecodeError:
        return None
    other = text.encode("ascii", "ignore")
    counts = script_counts(text)
    asian = int(counts[HAN] + counts[KANA] + counts[HANGUL])
    return (text, name) if 2 * asian > len(text) - len(other) else None
