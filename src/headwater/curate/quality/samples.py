"""Texts to fit a classifier from: any file `collect` reads.

In: files and folders (JSON Lines, Parquet, text, web pages, archives). Out: their texts; what cannot be read is
counted.

    sample_texts([Path("good.jsonl")]).texts
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from headwater.core.errors import InputError
from headwater.curate.config import SourceConfig
from headwater.curate.readers import read_file
from headwater.curate.records import Bad, Record
from headwater.curate.sources import source_files


@dataclass(frozen=True)
class Samples:
    """Texts, and how many records could not be read."""

    texts: list[str]
    unusable: int


def sample_texts(inputs: Sequence[Path], text_field: str = "text") -> Samples:
    """Read all texts of files and folders. Raises InputError if there is none."""
    places = [Path(os.path.abspath(path)) for path in inputs]
    root = Path(os.path.commonpath([path.parent for path in places]))
    source = SourceConfig(
        name="samples", paths=tuple(path.relative_to(root).as_posix() for path in places), text_field=text_field
    )
    texts: list[str] = []
    unusable = 0
    for file in source_files(source, root):
        for item in read_file(file, source):
            if isinstance(item, Record):
                texts.append(item.text)
            elif isinstance(item, Bad):
                unusable += item.records
    if not texts:
        raise InputError(
            "no text could be read",
            where=", ".join(str(path) for path in inputs),
            mend=f"rows need a field {text_field!r}; --text-field names another",
        )
    return Samples(texts, unusable)
