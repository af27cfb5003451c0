"""Wikipedia XML dumps: one document an article, streamed page by page, in any of the compressions dumps come in.

A dump is cut at `<page>` and `</page>`, which cannot occur inside a page (its text is escaped), so a broken page costs
itself and no other, and memory is bounded by the largest page.

    for item in read_wikipedia(file, source): ...
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

from headwater.curate.config import SourceConfig
from headwater.curate.readers.share import Share
from headwater.curate.readers.wikitext import VERSION, wikitext_to_text
from headwater.curate.records import Bad, Item, Reason, Record, Skip, Skipped
from headwater.curate.sources import SourceFile
from headwater.curate.streams import RawStream

LICENSE = "CC-BY-SA-4.0"
"""Of the text of Wikipedia since June 2023, which a source may say otherwise."""

_OPEN, _CLOSE = b"<page>", b"</page>"
_HEAD_BYTES = 1 << 20
_FIELD = {
    name: re.compile(rf"<{name}\b[^<>]*>(.*?)</{name}>".encode(), re.DOTALL) for name in ("title", "ns", "id", "text")
}
_REDIRECT = re.compile(rb"<redirect\b")
_EMPTY_TEXT = re.compile(rb"<text\b[^<>]*/>")
_BASE = re.compile(rb"<base>(https?://[^<>\s]+/)[^<>/]*</base>")
_DATABASE = re.compile(rb"<dbname>([a-z_]+?)(?:wiki(?:pedia)?)</dbname>")


def read_wikipedia(file: SourceFile, source: SourceConfig, share: Share) -> Iterator[Item]:
    """Articles of a share of a dump. `Record.position` and `Bad.offset` are where the page begins in the decompressed
    stream."""
    stream = RawStream(Path(file.path))
    base = lang = ""
    pages = 0
    for offset, page in _pages(stream, source.max_document_bytes):
        if offset < 0:  # what comes before the first page
            assert page is not None
            if found := _BASE.search(page):
                base = found[1].decode("ascii", "replace")
            if found := _DATABASE.search(page):
                lang = found[1].decode().replace("_", "-")
            continue
        pages += 1
        if not share.takes(offset):
            continue
        if page is None:
            limit = f"over max_document_bytes {source.max_document_bytes:,}"
            yield Bad(Reason.TOO_LARGE, limit, offset, raw_bytes=0)
        else:
            yield _article(page, offset, base, source.lang or lang, source)
    if not share.takes(stream.total):
        return
    if stream.damage:
        yield Bad(stream.damage.reason, stream.damage.detail, stream.damage.offset, records=0)
    elif not pages:
        yield Bad(Reason.WRONG_FORMAT if stream.total else Reason.EMPTY_FILE, "no <page> in it", records=0)


def _pages(stream: RawStream, cap: int) -> Iterator[tuple[int, bytes | None]]:
    """(offset, page from <page> to </page>), (offset, None) for one above the cap, (-1, head) for the dump's head. A
    last page without its end is given as far as it goes."""
    data = bytearray()
    start = 0  # offset of data[0] in the stream
    head_seen, inside, too_long, begun = False, False, False, 0
    searched = 0
    for chunk in stream.chunks():
        data += chunk
        while True:
            if not inside:
                found = data.find(_OPEN)
                if found < 0:
                    keep = len(_OPEN) - 1 if head_seen or len(data) > _HEAD_BYTES else len(data)
                    start += len(data) - keep
                    del data[: len(data) - keep]
                    break
                if not head_seen:
                    yield -1, bytes(data[:found])
                    head_seen = True
                start += found
                del data[:found]
                inside, too_long, begun, searched = True, False, start, 0
            found = data.find(_CLOSE, searched)
            if found < 0:
                if len(data) > cap + _HEAD_BYTES:  # never hold more than the cap, and some for what is not text
                    too_long = True
                    start += len(data) - len(_CLOSE) + 1
                    del data[: len(data) - len(_CLOSE) + 1]
                searched = max(0, len(data) - len(_CLOSE) + 1)
                break
            end = found + len(_CLOSE)
            yield begun, None if too_long else bytes(data[:end])
            start += end
            del data[:end]
            inside = False
    if inside:
        yield begun, None if too_long else bytes(data)


def _article(page: bytes, offset: int, base: str, lang: str, source: SourceConfig) -> Item:
    found = {name: pattern.search(page) for name, pattern in _FIELD.items()}
    title_match, text_match = found["title"], found["text"]
    if not page.endswith(_CLOSE) or title_match is None:
        what = "the page does not end" if not page.endswith(_CLOSE) else "a page without a title"
        return Bad(Reason.TRUNCATED if not page.endswith(_CLOSE) else Reason.BAD_RECORD, what, offset,
                   raw_bytes=len(page))  # fmt: skip
    namespace = found["ns"]
    if (namespace is not None and namespace[1].strip() != b"0") or _REDIRECT.search(page):
        return Skipped(Skip.NO_PAGE, len(page))
    if text_match is None:
        if _EMPTY_TEXT.search(page):
            return Bad(Reason.NO_TEXT, "an article without text", offset, raw_bytes=len(page))
        return Bad(Reason.BAD_RECORD, "a page without text", offset, raw_bytes=len(page))
    if len(text_match[1]) > source.max_document_bytes:
        limit = f"{len(text_match[1]):,} bytes, over max_document_bytes {source.max_document_bytes:,}"
        return Bad(Reason.TOO_LARGE, limit, offset, raw_bytes=len(page))
    try:
        title = html.unescape(title_match[1].decode()).strip()
        wikitext = html.unescape(text_match[1].decode())
    except UnicodeDecodeError as error:
        return Bad(Reason.BAD_UTF8, f"byte 0x{error.object[error.start]:02x}", offset, raw_bytes=len(page))
    text = wikitext_to_text(wikitext)
    if not text:
        return Bad(Reason.NO_TEXT, "nothing but templates and tables", offset, raw_bytes=len(page))
    number = found["id"]
    return Record(
        f"# {title}\n\n{text}",
        offset,
        len(page),
        url=base + quote(title.replace(" ", "_"), safe="/:(),!*'") if base else "",
        lang=lang,
        domain=source.domain,
        license=source.license or LICENSE,
        meta={
            "title": title,
            "extractor": VERSION,
            **({"row_id": number[1].decode("ascii", "replace")} if number else {}),
        },
    )
