"""Decontamination within curation: which documents of a batch hold questions of the recipe's benchmarks.

index = benchmark_index(config.decontaminate)
taken = take_questions(batch.cleaned, index)      # {place: Match}; their texts are gone from batch.cleaned
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np

from headwater.curate.clean import Cleaned
from headwater.curate.dedup.benchmark_files import benchmark_files
from headwater.curate.dedup.benchmarks import BenchmarkIndex, Match, require_items
from headwater.curate.dedup.config import DecontaminateConfig
from headwater.curate.dedup.decontaminate import read_items
from headwater.curate.dedup.settings import VERSION, DecontaminateSettings

RULE = "decontaminate.question"


def settings_of(config: DecontaminateConfig) -> DecontaminateSettings:
    """The same parameters as the verb on files has them."""
    return DecontaminateSettings(
        width=config.width,
        threshold=config.threshold,
        shortest=min(config.shortest, config.width),
        fields=config.fields,
        fold_traditional=config.fold_traditional,
    )


def benchmark_index(config: DecontaminateConfig) -> BenchmarkIndex | None:
    """The questions to look for, None if no benchmark is named. Raises InputError for benchmarks that cannot be read or
    have no question."""
    return _index(config.model_dump_json()) if config.benchmarks else None


@lru_cache(maxsize=2)
def _index(config: str) -> BenchmarkIndex:
    found = DecontaminateConfig.model_validate_json(config)
    files = benchmark_files(found.paths)
    settings = settings_of(found)
    index = BenchmarkIndex(read_items(files, settings)[0], settings)
    require_items(index, [str(path) for path in files])
    return index


def take_questions(cleaned: list[Cleaned], index: BenchmarkIndex | None) -> dict[int, Match]:
    """Replace in `cleaned` the documents that hold a question; returns the best match of each by its place."""
    if index is None:
        return {}
    places = [place for place, found in enumerate(cleaned) if found.text is not None]
    texts = [(cleaned[place].text or "").encode() for place in places]
    offsets = np.zeros(len(texts) + 1, np.int64)
    np.cumsum([len(text) for text in texts], out=offsets[1:])
    taken: dict[int, Match] = {}
    for number in index.scan(np.frombuffer(bytearray(b"".join(texts)), np.uint8), offsets).tolist():
        place = places[number]
        found = cleaned[place]
        if found.text is None or not (matches := index.find(found.text)):
            continue
        best = matches[0]
        more = f" and {len(matches) - 1} more" if len(matches) > 1 else ""
        cleaned[place] = replace(
            found, text=None, rule=RULE, version=VERSION, score=best.score, detail=f"holds {best.item.name}{more}",
            readable="",
        )  # fmt: skip
        taken[place] = best
    return taken
