"""JSON Lines: one document a line, each line judged on its own.

A bad line costs that line and nothing else; a compressed stream that breaks off costs what comes after the break.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

from headwater.curate.config import SourceConfig, is_domain
from headwater.curate.lines import Line, split_lines
from headwater.curate.readers.share import Share
from headwater.curate.records import Bad, Item, Reason, Record, Skip, Skipped
from headwater.curate.sources import SourceFile
from headwater.curate.streams import RawStream

_LANGUAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9+#._-]{0,31}")
_SUBTAG = re.compile(r"([A-Za-z]{2,3})[-_]")
_BOM = b"\xef\xbb\xbf"


def read_jsonl(file: SourceFile, source: SourceConfig, share: Share) -> Iterator[Item]:
    """Rows of a share of a file, or all of the slice of it that begins between its `start` and `end`."""
    if file.end:
        yield from _read_slice(file, source)
        return
    stream = RawStream(Path(file.path))
    seen = 0
    for line in split_lines(stream.chunks(), source.max_document_bytes):
        seen = line.number
        if not share.takes(line.offset):
            continue
        if stream.damage and not line.whole and not _is_object(line.data):
            yield _bad(line, stream.damage.reason, f"{stream.damage.detail}; this line is cut off")
        else:
            yield _item(line, source)
    if not share.takes(stream.total):
        return
    if stream.damage:
        yield Bad(stream.damage.reason, stream.damage.detail, stream.damage.offset, seen, 0, 0)
    elif not stream.total:
        yield Bad(Reason.EMPTY_FILE, records=0)


def _read_slice(file: SourceFile, source: SourceConfig) -> Iterator[Item]:
    """Lines that begin in the slice. The line before, whose end lies in it, is the previous slice's; line numbers
    count from the slice's first."""
    begin = max(0, file.start - 1)
    stream = RawStream(Path(file.path), begin, "plain")
    skipped = 0
    for line in split_lines(stream.chunks(), source.max_document_bytes, begin):
        if line.offset >= file.end:
            return
        if line.offset < file.start:
            skipped = 1
            continue
        line.number -= skipped
        yield _item(line, source)


def _item(line: Line, source: SourceConfig) -> Item:
    if line.data is None:
        return _bad(
            line, Reason.TOO_LARGE, f"{line.size:,} bytes, over max_document_bytes {source.max_document_bytes:,}"
        )
    data = line.data.removeprefix(_BOM) if line.offset == 0 else line.data
    if not data or data.isspace():
        return Skipped(Skip.BLANK_LINE, line.size)
    try:
        row = parse_object(data)
        record = row_record(row, source, line.offset, line.size)
    except RowError as error:
        return _bad(line, error.reason, error.detail)
    if source.keep_rows:
        record.meta["row"] = data.decode().strip()
    return record


def _bad(line: Line, reason: Reason, detail: str) -> Bad:
    return Bad(reason, detail, line.offset, line.number, line.size)


class RowError(Exception):
    """Why a row is no document."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(detail)
        self.reason, self.detail = reason, detail


def parse_object(data: bytes) -> dict[str, Any]:
    """One JSON object. What strict parsers refuse but means something (NaN, huge integers, lone surrogates) is taken.

    Raises RowError.
    """
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError:
        value = _parse_leniently(data)
    if not isinstance(value, dict):
        raise RowError(Reason.NOT_AN_OBJECT, f"a {_name(value)} instead of an object")
    return value


def _parse_leniently(data: bytes) -> Any:
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise RowError(
            Reason.BAD_UTF8, f"byte 0x{data[error.start]:02x} at {error.start} of the line: {error.reason}"
        ) from None
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RowError(Reason.BAD_JSON, f"{error}"[:120] + f": {text[:60]}") from None


def _is_object(data: bytes | None) -> bool:
    try:
        return data is not None and bool(parse_object(data) or True)
    except RowError:
        return False


def row_record(row: dict[str, Any], source: SourceConfig, position: int, raw_bytes: int) -> Record:
    """A document from a row's fields, by the names a source gives them. Raises RowError."""
    text = row.get(source.text_field)
    if not isinstance(text, str):
        if source.text_field not in row:
            fields = ", ".join(list(row)[:8]) or "none"
            raise RowError(Reason.MISSING_FIELD, f"no field {source.text_field!r}; it has {fields}")
        raise RowError(Reason.WRONG_TYPE, f"field {source.text_field!r} is a {_name(text)}, not a string")
    domain = source.domain or row.get(source.domain_field) or ""
    if domain and not (isinstance(domain, str) and is_domain(domain)):
        raise RowError(Reason.BAD_DOMAIN, f"field {source.domain_field!r} is {domain!r}; set the source's `domain`")
    return Record(
        whole(text),
        position,
        raw_bytes,
        url=_text(row.get(source.url_field)),
        lang=source.lang or _language(row.get(source.lang_field)),
        domain=domain,
        license=source.license or _text(row.get(source.license_field)),
        meta=_meta(row, source),
    )


def _meta(row: dict[str, Any], source: SourceConfig) -> dict[str, Any]:
    meta: dict[str, Any] = {}
    if (own := row.get(source.id_field)) is not None and isinstance(own, str | int):
        meta["row_id"] = whole(own) if isinstance(own, str) else own if abs(own) < 2**63 else str(own)
    if isinstance(origin := row.get(source.source_field), str):
        meta["row_source"] = whole(origin)
    return meta


def _language(value: Any) -> str:
    """A row's claim about its language, if it looks like one: `zh-CN` and `zh_Hans` are zh."""
    if not isinstance(value, str) or not _LANGUAGE.fullmatch(value):
        return ""
    tag = _SUBTAG.match(value)
    return (tag[1] if tag else value).lower()


def _text(value: Any) -> str:
    return whole(value) if isinstance(value, str) else ""


def whole(text: str) -> str:
    """The text with lone surrogates, which no encoding can write, replaced by U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")
    return text


def _name(value: Any) -> str:
    names = {"NoneType": "null", "bool": "boolean", "int": "number", "float": "number", "str": "string", "list": "list"}
    return names.get(type(value).__name__, type(value).__name__)
