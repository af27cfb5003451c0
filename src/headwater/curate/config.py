"""The `collect:` and `curate:` sections of a recipe: where text comes from, and what is kept of it.

    CollectConfig(root="corpora", sources=[{"name": "web", "paths": ["web*.jsonl.zst"], "domain": "web"}])
    CurateConfig(language={"accepted": ["zh", "en"]}, split={"validation": 0.01})

Imports nothing heavy.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal

from pydantic import field_validator, model_validator

from headwater.core.config import Section, field

Kind = Literal["auto", "jsonl", "parquet", "text", "markdown", "html", "warc", "wet", "python-environment"]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_DOMAIN = re.compile(r"[a-z0-9][a-z0-9_-]{0,31}")

ENVIRONMENT_PARTS = {"code": "code", "docstrings": "docs", "descriptions": "other"}
"""What a Python environment holds, and the domain of each part: code without its doc strings, the doc strings as
prose, and the long descriptions (READMEs) of distributions."""


def is_domain(name: str) -> bool:
    """Whether a domain's name can name files: lower-case letters, digits, `-` and `_`, at most 32 characters."""
    return _DOMAIN.fullmatch(name) is not None


def _as_tuple(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


class SourceConfig(Section):
    """One source of raw text."""

    name: str = field()
    """Name of the source: letters, digits, `.`, `_`, `-`. It enters every document's id."""

    kind: Kind = field("auto")
    """How files are read. `auto` looks at each file's content and name; `python-environment` reads the running
    interpreter's standard library and installed packages instead of files."""

    paths: tuple[str, ...] = field((), aliases=("path", "files", "glob", "globs"))
    """Files, folders or glob patterns (`**` crosses folders), relative to `collect.root` or absolute. Compressed
    files (.gz, .zst) are known by their content. Hidden files in folders are left out."""

    domain: str = field("")
    """Domain of all documents (web, books, code, papers, other, or a name of your own). Empty: each row's own
    `domain_field`, and `other` for rows without one."""

    lang: str = field("")
    """Language of all documents: an ISO 639-1 code or a programming language. Empty: each row's own `lang_field`,
    and found out by curation for rows without one."""

    license: str = field("")
    """Licence of all documents. Empty: each row's own `license_field`."""

    text_field: str = field("text")
    """Field (JSON Lines) or column (Parquet) that holds the text."""

    id_field: str = field("id")
    """Field with the row's own id, kept in the document's meta as `row_id`."""

    domain_field: str = field("domain")
    """Field with the row's domain, used while `domain` is empty."""

    lang_field: str = field("lang")
    """Field with the row's language, used while `lang` is empty."""

    license_field: str = field("license")
    """Field with the row's licence, used while `license` is empty."""

    url_field: str = field("url")
    """Field with the row's address."""

    source_field: str = field("source")
    """Field that says where the row came from, kept in the document's meta as `row_source`."""

    keep_rows: bool = field(False)
    """Keep each row whole, as JSON text, in the document's meta as `row`: files can then be written back unchanged."""

    document: Literal["file", "line"] = field("file")
    """Text and Markdown: one document a file, or one a line that is not blank."""

    encoding: str = field("auto")
    """Text and Markdown: a Python codec name. `auto` takes UTF-8 (UTF-16 with a byte order mark) and recognises
    GB18030, Big5, Shift-JIS and EUC when the whole file decodes; other files are quarantined."""

    max_document_bytes: int = field(32 << 20, unit="bytes", ge=1)
    """A line, file or record with more bytes than this is quarantined without being held in memory."""

    packages: tuple[str, ...] = field(())
    """python-environment: names of installed distributions to read, for example `numpy`."""

    stdlib: bool = field(True)
    """python-environment: read the standard library."""

    parts: dict[str, str] = field(default_factory=lambda: dict(ENVIRONMENT_PARTS))
    """python-environment: which parts to read (code, docstrings, descriptions) and the domain of each."""

    _tuples = field_validator("paths", "packages", mode="before")(_as_tuple)

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} cannot name files; use letters, digits, '.', '_' and '-', at most 64")
        return name

    @field_validator("domain")
    @classmethod
    def _check_domain(cls, domain: str) -> str:
        if domain and not is_domain(domain):
            raise ValueError(f"{domain!r} cannot name files; use lower-case letters, digits, '-' and '_', at most 32")
        return domain

    @field_validator("parts")
    @classmethod
    def _check_parts(cls, parts: dict[str, str]) -> dict[str, str]:
        for part, domain in parts.items():
            if part not in ENVIRONMENT_PARTS:
                raise ValueError(f"{part!r} is no part; the parts are {', '.join(ENVIRONMENT_PARTS)}")
            cls._check_domain(domain)
        return parts

    @field_validator("encoding")
    @classmethod
    def _check_encoding(cls, encoding: str) -> str:
        if encoding != "auto":
            try:
                "".encode(encoding)
            except LookupError:
                raise ValueError(f"{encoding!r} is no encoding Python knows; try utf-8, gb18030 or auto") from None
        return encoding

    @model_validator(mode="after")
    def _check_kind(self) -> SourceConfig:
        if self.kind == "python-environment":
            if self.paths:
                raise ValueError("a python-environment source reads installed packages: give `packages`, not `paths`")
            if not self.packages and not self.stdlib:
                raise ValueError("a python-environment source without packages and with stdlib: false reads nothing")
        elif not self.paths:
            raise ValueError(f"source {self.name!r} needs `paths`: files, folders or patterns relative to collect.root")
        elif self.packages:
            raise ValueError("`packages` belongs to sources of kind python-environment")
        return self


class CollectConfig(Section):
    """Where raw text is read from. The result is document shards and a quarantine of what could not be read."""

    root: str = field(".", kind="operational", aliases=("folder", "data_dir"))
    """Folder that relative `paths` start from. Only contents and paths below it identify the input, so the folder may
    move."""

    sources: tuple[SourceConfig, ...] = field(())
    """What to read."""

    shard_bytes: int = field(16 << 20, unit="bytes", ge=1)
    """Raw bytes that go into one document shard: small files are read together up to this size, JSON Lines that are
    not compressed are cut at it. One shard is what a worker does at a time and what a killed run repeats."""

    max_quarantine_ratio: float = field(1.0, unit="ratio", ge=0, le=1, kind="operational")
    """Stop when a source has a larger share of its records in quarantine than this. A source of which nothing at
    all could be read always stops."""

    @property
    def folder(self) -> Path:
        """`root` as a path, `~` being the home folder."""
        return Path(self.root).expanduser()

    @field_validator("sources")
    @classmethod
    def _check_sources(cls, sources: tuple[SourceConfig, ...]) -> tuple[SourceConfig, ...]:
        names = [source.name for source in sources]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"two sources are called {', '.join(twice)}; names must differ")
        return sources


class CleanConfig(Section):
    """What cleaning does to a text. Code (see `code_domains`) gets line ends, control characters and outer blank lines
    put right, nothing else."""

    html: bool = field(True)
    """Take HTML tags, comments, scripts and entities out of text, outside Markdown code. A whole page goes through
    main-content extraction."""

    width: bool = field(True)
    """Fold full-width letters, digits and signs to ASCII (Ａ１％ to A1%). Chinese punctuation stays full-width."""

    punctuation: bool = field(True)
    """In Chinese text turn , . ? ! : ; between Chinese characters into ，。？！：；, never in numbers, addresses or
    code."""

    min_characters: int = field(20, unit="characters", ge=0, aliases=("min_length", "min_chars"))
    """Shorter texts are dropped, after cleaning."""

    code_domains: tuple[str, ...] = field(("code",))
    """Domains treated as program code, besides rows whose language is a programming language."""


class LanguageConfig(Section):
    """Which languages are kept. Program code is not asked."""

    accepted: tuple[str, ...] = field(("zh", "en"), aliases=("languages", "accept"))
    """ISO 639-1 codes. Empty keeps every language."""

    min_share: float = field(0.5, unit="ratio", ge=0, le=1)
    """Least share of a text that must be in accepted languages, in words (1.6 Han characters count as one word), so
    mixed Chinese and English passes when both are accepted."""

    _tuples = field_validator("accepted", mode="before")(_as_tuple)


class DedupConfig(Section):
    """Removal of duplicates."""

    exact: bool = field(True)
    """Of documents with the same cleaned text keep one, across all sources."""

    priority: tuple[str, ...] = field(("books", "papers", "code", "docs", "other", "web"))
    """Of equal documents the one in the earliest of these domains is kept, then the first by source, path and
    position. Domains not named come last."""

    keys_in_memory: int = field(2_000_000, kind="operational", unit="documents", ge=1)
    """Documents whose hashes a worker compares at a time, about 100 bytes of memory each."""


class SplitConfig(Section):
    """Division into train, validation and test, by a hash of the cleaned text after deduplication."""

    validation: float = field(0.01, unit="ratio", ge=0, lt=1, aliases=("validation_ratio", "val_ratio"))
    """Share of documents for validation."""

    test: float = field(0.0, unit="ratio", ge=0, lt=1, aliases=("test_ratio",))
    """Share of documents for test."""

    min_documents: int = field(8, unit="documents", ge=0)
    """Each domain gives at least this many documents to validation, and to test if `test` is above 0, but never more
    than a tenth of its documents on this account."""

    seed: int = field(0)
    """Another number is another division."""

    @model_validator(mode="after")
    def _check_sum(self) -> SplitConfig:
        if self.validation + self.test >= 1:
            raise ValueError(f"validation {self.validation} and test {self.test} leave nothing to train on")
        return self


class CurateConfig(Section):
    """What is kept of the collected documents, and in which form."""

    clean: CleanConfig = field(default_factory=CleanConfig)
    """Cleaning of each text."""

    language: LanguageConfig = field(default_factory=LanguageConfig)
    """Language identification and filter."""

    dedup: DedupConfig = field(default_factory=DedupConfig)
    """Deduplication."""

    split: SplitConfig = field(default_factory=SplitConfig)
    """Train, validation and test."""

    shard_bytes: int = field(64 << 20, unit="bytes", ge=1)
    """Text of one domain that goes into one output shard. The number of shards follows from this and the text alone,
    never from workers."""
