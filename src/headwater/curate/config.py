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
from headwater.curate.dedup.config import CanaryConfig, DecontaminateConfig, DedupConfig
from headwater.curate.fetch.config import FetchConfig
from headwater.curate.quality.config import QualityConfig

Kind = Literal[
    "auto", "jsonl", "parquet", "text", "markdown", "html", "warc", "wet", "wikipedia", "source-tree", "arxiv",
    "python-environment",
]  # fmt: skip

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_DOMAIN = re.compile(r"[a-z0-9][a-z0-9_-]{0,31}")

COLLECT_VERSION = 5
"""Of reading: raised when the same files give other documents or other shards."""

PII_KINDS = ("email", "ip", "phone", "id", "card")

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
    """How files are read. `auto` looks at each file's content and name. `wikipedia` is an XML dump, `source-tree` a
    folder of program code, `arxiv` LaTeX sources; `python-environment` reads the running interpreter's standard library
    and installed packages instead of files."""

    paths: tuple[str, ...] = field((), aliases=("path", "files", "glob", "globs"))
    """Files, folders or glob patterns (`**` crosses folders), relative to `collect.root` or absolute. Compressed
    files (.gz, .zst) are known by their content. Hidden files in folders are left out."""

    fetch: FetchConfig | None = field(None)
    """Files that lie elsewhere and are brought here first: URL lists, object stores, Hugging Face datasets, Common
    Crawl. In place of `paths`."""

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

    licenses: tuple[str, ...] = field((), aliases=("accepted_licenses",))
    """source-tree: SPDX names of the licences files may have, such as MIT; others are passed over. Empty: all."""

    max_document_bytes: int = field(32 << 20, unit="bytes", ge=1)
    """A line, file or record with more bytes than this is quarantined without being held in memory."""

    packages: tuple[str, ...] = field(())
    """python-environment: names of installed distributions to read, for example `numpy`."""

    stdlib: bool = field(True)
    """python-environment: read the standard library."""

    parts: dict[str, str] = field(default_factory=lambda: dict(ENVIRONMENT_PARTS))
    """python-environment: which parts to read (code, docstrings, descriptions) and the domain of each."""

    _tuples = field_validator("paths", "packages", "licenses", mode="before")(_as_tuple)

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
            if self.paths or self.fetch:
                raise ValueError("a python-environment source reads installed packages: give `packages`, not `paths`")
            if not self.packages and not self.stdlib:
                raise ValueError("a python-environment source without packages and with stdlib: false reads nothing")
        elif not self.paths and not self.fetch:
            raise ValueError(
                f"source {self.name!r} needs `paths`: files, folders or patterns relative to collect.root; or `fetch`"
            )
        elif self.paths and self.fetch:
            raise ValueError(f"source {self.name!r} has `paths` and `fetch`; make it two sources")
        elif self.licenses and self.kind != "source-tree":
            raise ValueError("`licenses` belongs to sources of kind source-tree")
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
    """Raw bytes that go into one document shard: small files are read together up to this size, JSON Lines that are not
    compressed and Parquet are cut at it, other files, however large, are read by one worker each. One shard is what a
    worker does at a time, what a killed run repeats, and what is read again when a file of it changed."""

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

    tidy: bool = field(True)
    """Put line ends, control and invisible characters and white space right. With this and all below off, and
    `min_characters` 0, texts stay as they are."""

    mojibake: bool = field(True)
    """Put text right that was decoded with the wrong table (â€™ to ’), where that is certain."""

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

    boilerplate: bool = field(True)
    """Take out lines of navigation, cookie notices, share buttons, copyright and registration numbers, in
    `boilerplate_domains`."""

    boilerplate_domains: tuple[str, ...] = field(("web", "other"))
    """Domains whose documents may hold a site's own lines."""

    pii: tuple[str, ...] = field(("email", "ip", "phone", "id", "card"))
    """Personal data replaced by placeholders such as [EMAIL], outside code: e-mail and public IP addresses, phone
    numbers, Chinese identity numbers, bank cards. Empty masks nothing."""

    code_domains: tuple[str, ...] = field(("code",))
    """Domains treated as program code, besides rows whose language is a programming language."""

    _tuples = field_validator("pii", "boilerplate_domains", "code_domains", mode="before")(_as_tuple)

    @field_validator("pii")
    @classmethod
    def _check_pii(cls, kinds: tuple[str, ...]) -> tuple[str, ...]:
        if unknown := [kind for kind in kinds if kind not in PII_KINDS]:
            raise ValueError(f"{unknown[0]!r} is no kind of personal data; the kinds are {', '.join(PII_KINDS)}")
        return kinds


class LanguageConfig(Section):
    """Which languages are kept. Program code is not asked."""

    accepted: tuple[str, ...] = field(("zh", "en"), aliases=("languages", "accept"))
    """ISO 639-1 codes. Empty keeps every language."""

    min_share: float = field(0.5, unit="ratio", ge=0, le=1)
    """Least share of a text that must be in accepted languages, in words (1.6 Han characters count as one word), so
    mixed Chinese and English passes when both are accepted."""

    thresholds: dict[str, float] = field(default_factory=dict)
    """Other least shares for texts whose largest accepted language is this one, for example {zh: 0.6, en: 0.65}."""

    _tuples = field_validator("accepted", mode="before")(_as_tuple)

    @model_validator(mode="after")
    def _check_thresholds(self) -> LanguageConfig:
        for language, share in self.thresholds.items():
            if not 0 <= share <= 1:
                raise ValueError(f"thresholds: {language} {share} is no share; give a number from 0 to 1")
            if self.accepted and language not in self.accepted:
                raise ValueError(f"thresholds: {language} is not among the accepted languages")
        return self


class SiteLinesConfig(Section):
    """Lines that stand on many pages of one site and belong to none of them: menus, notices, slogans. A site is the
    host of a document's `url`; documents without one are left alone."""

    enabled: bool = field(True)
    """Cut such lines out."""

    min_pages: int = field(10, unit="documents", ge=2)
    """Least number of pages (addresses) of a site that have the line."""

    min_share: float = field(0.1, unit="ratio", gt=0, le=1)
    """Least share of the site's pages that have it."""

    min_words: float = field(8.0, unit="words", ge=0)
    """A line worth fewer words than this (1.6 CJK characters count as one) goes only at the beginning or end of a page,
    where nothing but such lines lies between it and the edge."""

    domains: tuple[str, ...] = field(("web", "other"))
    """Domains whose documents are looked at."""

    lines_in_memory: int = field(4_000_000, kind="operational", ge=1)
    """Lines a worker counts at a time, about 100 bytes of memory each."""

    _tuples = field_validator("domains", mode="before")(_as_tuple)


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

    separate: bool = field(True)
    """Remove from train what is a near-duplicate, by `dedup.threshold`, of a document of validation or test."""

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

    quality: QualityConfig = field(default_factory=QualityConfig)
    """Quality rules and classifier."""

    dedup: DedupConfig = field(default_factory=DedupConfig)
    """Deduplication."""

    site_lines: SiteLinesConfig = field(default_factory=SiteLinesConfig)
    """Lines that many pages of a site have."""

    decontaminate: DecontaminateConfig = field(default_factory=DecontaminateConfig)
    """Removal of benchmark questions."""

    canaries: CanaryConfig = field(default_factory=CanaryConfig)
    """Measurement of how many near-duplicates are found."""

    undo: tuple[str, ...] = field(())
    """Rules whose removals are taken back, by name, such as `dedup.minhash`: what they removed stays, unless another
    rule takes it. `headwater curate undo` makes a corpus that way."""

    takedown: tuple[str, ...] = field((), kind="operational")
    """Files with ids of documents, one a line, that must not be in the corpus, relative to the current folder or
    absolute. The ids are part of what the corpus is made from. `headwater curate remove` makes a corpus that way."""

    split: SplitConfig = field(default_factory=SplitConfig)
    """Train, validation and test."""

    shard_bytes: int = field(64 << 20, unit="bytes", ge=1)
    """Text of one domain that goes into one output shard. The number of shards follows from this and the text alone,
    never from workers."""
