"""What a reader says about its input: a record, a bad place, or something passed over on purpose.

Every reader yields `Record`, `Bad` and `Skipped` items whose `records` and `raw_bytes` add up to all it saw, so that
input = documents + quarantine + skipped holds exactly.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

QUARANTINE = "quarantine.jsonl"
DETAIL_CHARACTERS = 200


class Reason(StrEnum):
    """Why something is in quarantine."""

    BAD_UTF8 = "bad-utf8"
    BAD_JSON = "bad-json"
    NOT_AN_OBJECT = "not-an-object"
    MISSING_FIELD = "missing-field"
    WRONG_TYPE = "wrong-type"
    BAD_DOMAIN = "bad-domain"
    TOO_LARGE = "too-large"
    TOO_COSTLY = "too-costly"  # a page beyond the caps of work on one
    TRUNCATED = "truncated"
    CORRUPT = "corrupt"
    TRAILING_GARBAGE = "trailing-garbage"
    UNREADABLE = "unreadable"
    EMPTY_FILE = "empty-file"
    WRONG_FORMAT = "wrong-format"
    BINARY = "binary"
    BAD_ENCODING = "bad-encoding"
    BAD_RECORD = "bad-record"
    NO_TEXT = "no-text"
    HASH_MISMATCH = "hash-mismatch"
    NOT_FETCHED = "not-fetched"


class Skip(StrEnum):
    """Why something was passed over: it is as it should be, but no document."""

    BLANK_LINE = "blank-line"
    UNKNOWN_KIND = "unknown-kind"
    NO_PAGE = "no-page"  # WARC: requests, metadata, revisits, redirects, images
    DATA_TABLE = "data-table"
    NO_PROSE = "no-prose"
    GENERATED = "generated"  # source-tree: written by a program
    VENDORED = "vendored"  # source-tree: another project's code in this one's tree
    MINIFIED = "minified"
    LICENSE = "license"  # source-tree: not among those accepted
    LICENSE_TEXT = "license-text"
    NO_PAPER = "no-paper"  # arXiv: withdrawn, or PDF alone


@dataclass(slots=True)
class Record:
    """One text. `position` is its offset in the decompressed stream or its row number; `raw_bytes` what it took up
    there. Empty `lang`, `domain`, `license`: the reader does not know."""

    text: str
    position: int
    raw_bytes: int
    url: str = ""
    lang: str = ""
    domain: str = ""
    license: str = ""
    meta: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Bad:
    """A place that could not be read. `offset` is in the decompressed stream (or a row number for Parquet), `line`
    counts from 1 and is 0 where lines mean nothing; `records` is how many records it cost, 0 if that is unknown."""

    reason: Reason
    detail: str = ""
    offset: int = 0
    line: int = 0
    raw_bytes: int = 0
    records: int = 1


@dataclass(slots=True)
class Skipped:
    """Something that is no document."""

    reason: Skip
    raw_bytes: int = 0
    records: int = 1


Item = Record | Bad | Skipped
