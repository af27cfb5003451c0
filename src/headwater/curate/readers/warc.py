"""WARC and WET: pages of a crawl, read record by record.

Responses with an HTML or plain-text body and status 200 become documents, by way of main-content extraction, and so do
`conversion` records (WET). Requests, metadata, revisits, redirects and media are passed over. A record that is cut
off, a wrong Content-Length, stray bytes or a damaged gzip member cost what they cover; reading goes on at the next
header or member. FastWARC parses each record; the framing is here, because it must survive all that.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from headwater.curate.config import SourceConfig
from headwater.curate.html import EXTRACTOR, PageTooCostlyError, extract_page
from headwater.curate.readers.share import Share
from headwater.curate.records import Bad, Item, Reason, Record, Skip, Skipped
from headwater.curate.sources import SourceFile
from headwater.curate.streams import Damage, RawStream, next_gzip_member

MAX_HEADER_BYTES = 1 << 16
_HEADER = re.compile(rb"WARC/\d\.\d[ \t]*\r?\n")
_NEXT = re.compile(rb"\nWARC/\d\.\d[ \t]*\r?\n")
_HTML = ("text/html", "application/xhtml+xml")


def read_warc(file: SourceFile, source: SourceConfig, share: Share) -> Iterator[Item]:
    """Pages of a share of a file. `Record.position` and `Bad.offset` count decompressed bytes."""
    start, offset, seen = 0, 0, False
    held: list[tuple[int, Item | None]] = []  # stray bytes before the first record: without one they are the whole file
    while True:
        stream = RawStream(Path(file.path), start)
        window = _Window(stream, offset)
        for at, item in _records(window, source, share):
            seen = seen or not (isinstance(item, Bad) and item.reason == Reason.BAD_RECORD and not item.records)
            held.append((at, item))
            if seen:
                yield from (item for at, item in held if share.takes(at) and item is not None)
                held.clear()
        offset = window.offset + len(window.buffer)
        following = None
        if stream.damage is not None:
            if share.takes(offset):
                yield Bad(stream.damage.reason, stream.damage.detail, offset, records=0)
            if stream.format == "gzip" and stream.damage.reason == Reason.CORRUPT:
                following = next_gzip_member(stream.path, stream.member)
        if following is None:
            break
        start = following
    if not seen and share.takes(offset):
        size = sum(item.raw_bytes for _, item in held if item is not None)
        yield Bad(Reason.WRONG_FORMAT, "no WARC record in it", raw_bytes=size, records=0)


class _Window:
    """The part of a stream that is looked at: `buffer`, which begins at `offset`."""

    def __init__(self, stream: RawStream, offset: int) -> None:
        self.buffer = bytearray()
        self.offset = offset
        self.stream = stream
        self._chunks = stream.chunks()

    @property
    def damage(self) -> Damage | None:
        return self.stream.damage

    def more(self) -> bool:
        """Get another chunk; False at the end."""
        chunk = next(self._chunks, b"")
        self.buffer += chunk
        return bool(chunk)

    def fill(self, count: int) -> bool:
        """Hold at least `count` bytes; False if there are fewer."""
        while len(self.buffer) < count:
            if not self.more():
                return False
        return True

    def drop(self, count: int) -> None:
        del self.buffer[:count]
        self.offset += count

    def skip(self, count: int) -> int:
        """Pass over `count` bytes without holding them; returns how many there were."""
        left = count
        while left > len(self.buffer):
            left -= len(self.buffer)
            self.drop(len(self.buffer))
            if not self.more():
                return count - left
        self.drop(left)
        return count

    def skip_blank(self) -> int:
        """Pass over line ends."""
        count = 0
        while self.fill(1) and self.buffer[0] in b"\r\n":
            run = len(self.buffer) - len(self.buffer.lstrip(b"\r\n"))
            self.drop(run)
            count += run
        return count


@dataclass(slots=True)
class _Header:
    fields: dict[str, str]
    size: int
    length: int


def _records(window: _Window, source: SourceConfig, share: Share) -> Iterator[tuple[int, Item | None]]:
    """Where each record begins, and what is in it; None for a page that is another share's."""
    blank = window.skip_blank()
    while window.fill(1):
        start = window.offset
        header = _header(window)
        if header is None:
            lost = _resynchronise(window)
            yield start, Bad(Reason.BAD_RECORD, "no WARC header here", start, raw_bytes=lost + blank, records=0)
        else:
            yield start, _record(window, header, source, start, blank, share.takes(start))
        blank = window.skip_blank()
    if blank:
        yield window.offset, Skipped(Skip.BLANK_LINE, blank, records=0)


def _header(window: _Window) -> _Header | None:
    """The header at the window's beginning, which stays there; None if it is none or has no usable length."""
    window.fill(16)
    if not _HEADER.match(window.buffer):
        return None
    end = None
    while end is None:
        end = re.search(rb"\r?\n\r?\n", window.buffer)
        if end is None and (len(window.buffer) > MAX_HEADER_BYTES or not window.more()):
            return None
    fields: dict[str, str] = {}
    for line in bytes(window.buffer[: end.start()]).splitlines()[1:]:
        name, colon, value = line.decode("utf-8", "replace").partition(":")
        if colon:
            fields.setdefault(name.strip().lower(), value.strip())
    length = fields.get("content-length", "")
    if not (length.isascii() and length.isdigit()) or "warc-type" not in fields:
        return None
    return _Header(fields, end.end(), int(length))


def _resynchronise(window: _Window) -> int:
    """Pass over everything up to the next header; returns how much that was."""
    lost = 0
    while True:
        match = _NEXT.search(window.buffer, 1)
        if match:
            lost += match.start() + 1
            window.drop(match.start() + 1)
            return lost
        keep = min(len(window.buffer), 32)  # a header may begin in it
        lost += len(window.buffer) - keep
        window.drop(len(window.buffer) - keep)
        if not window.more():
            lost += len(window.buffer)
            window.drop(len(window.buffer))
            return lost


def _record(window: _Window, header: _Header, source: SourceConfig, start: int, blank: int, own: bool) -> Item | None:
    """What one record holds; None instead of a page that is not `own`, which is passed over."""
    kind = header.fields["warc-type"].lower()
    wanted = kind in ("response", "conversion", "resource")
    if header.length > source.max_document_bytes:
        size = blank + window.skip(header.size + header.length)
        if not wanted:
            return Skipped(Skip.NO_PAGE, size)
        return Bad(Reason.TOO_LARGE, f"a {kind} record of {header.length:,} bytes", start, raw_bytes=size)
    complete = window.fill(header.size + header.length)
    length, mended = header.length, False
    if not complete or not _is_border(window, header.size + length):
        found = _true_length(window, header, source.max_document_bytes if kind == "conversion" else 0)
        if found:
            length, mended = found, True
        elif not complete:
            size = blank + window.skip(header.size + length)
            reason = window.damage.reason if window.damage else Reason.TRUNCATED
            detail = f"the {kind} record has {size - blank - header.size:,} of {length:,} bytes"
            return Bad(reason, detail, start, raw_bytes=size) if wanted else Skipped(Skip.NO_PAGE, size)
    window.drop(header.size)
    block = bytes(window.buffer[:length])
    window.drop(length)
    size = blank + header.size + length
    if not wanted:
        return Skipped(Skip.NO_PAGE, size)
    if not own:
        return None
    item = _page(kind, header.fields, block, source)
    if isinstance(item, Record):
        item.position, item.raw_bytes = start, size
        if mended:
            item.meta["content_length"] = "wrong"
    elif isinstance(item, Bad):
        item.offset, item.raw_bytes = start, size
    else:
        item.raw_bytes = size
    return item


def _is_border(window: _Window, place: int) -> bool:
    """Whether a record can end at `place`: the stream ends there, or line ends and a header follow."""
    window.fill(place + 32)
    rest = bytes(window.buffer[place : place + 32]).lstrip(b"\r\n")
    return not rest or rest.startswith(b"WARC/")


def _true_length(window: _Window, header: _Header, cap: int) -> int:
    """Where a record with a wrong Content-Length ends, going by the next header; 0 if there is none. Text (`cap`
    above 0) is looked for up to `cap` bytes, and may reach to the end of the stream."""
    complete = len(window.buffer) >= header.size + header.length
    while True:
        found = _NEXT.search(window.buffer, header.size - 1)
        if found:
            length = found.start() + 1 - header.size
            return length if cap or length < header.length else 0
        if not complete or len(window.buffer) - header.size > cap:
            return 0
        if not window.more():
            return len(window.buffer) - header.size


def _page(kind: str, fields: dict[str, str], block: bytes, source: SourceConfig) -> Item:
    """The document in a record; its place is filled in by the caller."""
    url = fields.get("warc-target-uri", "").strip("<>")
    if url.startswith("metadata:"):
        return Skipped(Skip.NO_PAGE)
    media = fields.get("content-type", "")
    charset = ""
    if kind == "response":
        found = _http_body(block, source.max_document_bytes)
        if isinstance(found, Bad | Skipped):
            return found
        block, media, charset = found
    media_type, _, parameters = media.partition(";")
    media_type = media_type.strip().lower()
    charset = charset or _charset(parameters)
    meta = {"date": fields["warc-date"]} if "warc-date" in fields else {}
    if media_type in _HTML or (not media_type and kind == "response"):
        try:
            page = extract_page(block, charset)
        except PageTooCostlyError as error:
            return Bad(Reason.TOO_COSTLY, f"{url}: {error}")
        text = page.text
        meta |= {"extractor": EXTRACTOR, "encoding": page.encoding, "title": page.title}
    elif media_type.startswith("text/plain"):
        try:
            text = block.decode(charset or "utf-8").strip()
        except (UnicodeDecodeError, LookupError) as error:
            return Bad(Reason.BAD_UTF8, str(error))
    else:
        return Skipped(Skip.NO_PAGE)
    if not text:
        return Bad(Reason.NO_TEXT, f"no text in {url or 'the record'}")
    return Record(text, 0, 0, url=url, lang=source.lang, domain=source.domain, license=source.license, meta=meta)


def _charset(parameters: str) -> str:
    match = re.search(r"charset\s*=\s*[\"']?([-\w]+)", parameters, re.IGNORECASE)
    return match[1] if match else ""


def _http_body(block: bytes, cap: int) -> tuple[bytes, str, str] | Bad | Skipped:
    """Body (transfer and content codings undone), media type and charset of an HTTP response."""
    from fastwarc.warc import ArchiveIterator

    head = b"WARC/1.0\r\nWARC-Type: response\r\nContent-Type: application/http; msgtype=response\r\nContent-Length: "
    record = head + str(len(block)).encode() + b"\r\n\r\n" + block + b"\r\n\r\n"
    try:
        for parsed in ArchiveIterator(io.BytesIO(record), auto_decode="all", stream_detect=False):
            status = parsed.http_headers.status_code if parsed.http_headers is not None else None
            if status != 200:
                return Skipped(Skip.NO_PAGE) if status else Bad(Reason.BAD_RECORD, "no HTTP status line")
            body = parsed.reader.read(cap + 1)
            if len(body) > cap:
                return Bad(Reason.TOO_LARGE, f"the body has more than {cap:,} bytes when decoded")
            return body, parsed.http_content_type or "", parsed.http_charset or ""
    except (OSError, ValueError) as error:
        return Bad(Reason.BAD_RECORD, f"HTTP: {error}")
    return Bad(Reason.BAD_RECORD, "no HTTP response in the record")
