"""The `curate.dedup`, `curate.decontaminate` and `curate.canaries` sections of a recipe.

    DedupConfig(minhash=True, threshold=0.8)
    DecontaminateConfig(benchmarks=["benchmarks/gsm8k_test.jsonl"])

Imports nothing heavy.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import field_validator

from headwater.core.config import Section, field


def _as_tuple(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


class DedupConfig(Section):
    """Removal of duplicates, four kinds, each on its own or together. Hashes only propose; a document goes after an
    exact comparison with one that stays."""

    exact: bool = field(True)
    """Of documents with the same cleaned text keep one, across all sources."""

    minhash: bool = field(True)
    """Of near-duplicates, proposed by MinHash and LSH, keep one."""

    simhash: bool = field(False)
    """A second way to propose near-duplicates, for those that MinHash leaves by chance; decided alike."""

    ngram: bool = field(False)
    """Take out passages that stand in a kept document already, and lines or sequences that repeat at once."""

    threshold: float = field(0.70, unit="ratio", gt=0, le=1)
    """A document goes if its score against a kept one is at least this."""

    measure: Literal["jaccard", "containment"] = field("jaccard")
    """`jaccard`: shared shingles over all shingles of both documents; `containment`: over those of the document that
    goes."""

    width: int = field(5, unit="units", ge=1)
    """Units in a shingle (a CJK character, a word or a number each); shorter documents are compared as whole texts."""

    bands: int = field(20, ge=1)
    """Bands of MinHash: a pair of similarity s is proposed with probability 1 - (1 - s**rows)**bands."""

    rows: int = field(6, ge=1)
    """Rows of a band."""

    representatives: int = field(8, unit="documents", ge=1)
    """Of documents that share a key and are not duplicates, each is compared with the first this many."""

    fold_traditional: bool = field(False)
    """Count traditional and simplified characters as the same."""

    passage_units: int = field(50, unit="units", ge=10)
    """`ngram`: a passage of at least this many units that stands in a kept document is cut."""

    passages: Literal["cut", "report"] = field("cut")
    """`ngram`: `cut` takes passages out of the texts, `report` only lists them. Program code is never cut."""

    priority: tuple[str, ...] = field(("books", "papers", "code", "docs", "other", "web"))
    """Of duplicates the one in the earliest of these domains is kept, then the first by source, path and position.
    Domains not named come last."""

    keys_in_memory: int = field(2_000_000, kind="operational", unit="documents", ge=1)
    """Documents whose hashes a worker compares at a time, about 100 bytes of memory each."""

    @property
    def near(self) -> bool:
        """Whether near-duplicates are looked for."""
        return self.minhash or self.simhash

    @field_validator("priority")
    @classmethod
    def _check_priority(cls, priority: tuple[str, ...]) -> tuple[str, ...]:
        if len(priority) > 250:
            raise ValueError(f"{len(priority)} domains; at most 250 can be named")
        return priority


class DecontaminateConfig(Section):
    """Removal of documents that hold the questions of benchmarks."""

    benchmarks: tuple[str, ...] = field((), aliases=("benchmark",))
    """Files or folders of benchmarks in their original formats (JSON Lines, Parquet, JSON, CSV, TSV; .gz and .zst too),
    relative to `root` or absolute. Their content is part of the corpus's identity."""

    root: str = field(".", kind="operational")
    """Folder that relative `benchmarks` start from."""

    fields: tuple[str, ...] = field(())
    """Fields of a benchmark's rows that make up the question; the default looks for well-known names."""

    width: int = field(13, unit="units", ge=1)
    """Units in an n-gram; a Chinese character is one, a word is one."""

    threshold: float = field(0.8, unit="ratio", gt=0, le=1)
    """A document goes if it holds this share of a question, near together."""

    shortest: int = field(8, unit="units", ge=1)
    """Questions of fewer units are not looked for; of up to `width` units they must occur whole."""

    fold_traditional: bool = field(False)
    """Count traditional and simplified characters as the same."""

    _tuples = field_validator("benchmarks", "fields", mode="before")(_as_tuple)

    @property
    def paths(self) -> list[Path]:
        """`benchmarks` as paths."""
        return [Path(self.root).expanduser() / name for name in self.benchmarks]


class CanaryConfig(Section):
    """Near-duplicates made on purpose, with a known share of their units changed, that measure how many are found. They
    never enter the corpus and decide nothing."""

    documents: int = field(32, kind="operational", unit="documents", ge=0)
    """Documents of each of Chinese and English that canaries are made of; 0 plants none."""

    edits: tuple[float, ...] = field((0.01, 0.02, 0.03, 0.05, 0.10), kind="operational", unit="ratio")
    """Shares of units that are replaced."""

    @field_validator("edits")
    @classmethod
    def _check_edits(cls, edits: tuple[float, ...]) -> tuple[float, ...]:
        for share in edits:
            if not 0 <= share <= 1:
                raise ValueError(f"{share} is no share of units; give numbers from 0 to 1")
        return edits
