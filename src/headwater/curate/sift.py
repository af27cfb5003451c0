"""A batch of documents decided together: each is cleaned, then all are asked the quality rules and the classifier.

In: rows of a document shard. Out: `Batch`: what cleaning and rules decided about each, and every rule's score, which
are evidence also for what stays.

    batch = sift([("1", "今天天气很好……", "zh", "web", "{}")], CurateConfig())
    batch.cleaned[0].rule, batch.scores["gopher.length"][0]
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from headwater.core.units import count_units
from headwater.curate.clean import Cleaned, cleaning
from headwater.curate.config import CurateConfig
from headwater.curate.language import answered
from headwater.curate.quality.config import QualityConfig
from headwater.curate.survey import joined, survey_all

if TYPE_CHECKING:
    from headwater.curate.quality.classifier import Classifier
    from headwater.curate.quality.registry import Rule

CLASSIFIER = "quality.classifier"
CLASSIFIER_VERSION = 1
BATCH_DOCUMENTS, BATCH_BYTES = 1024, 4 << 20

Row = tuple[str, str, str, str, str]
"""id, text, language, domain, meta (JSON)."""


@dataclass(frozen=True)
class Batch:
    """Decisions about each document, in order; `scores` by rule, float32 [documents], NaN where it was not asked.
    `encoded` are the texts as they came in, UTF-8, and `units` what is in them."""

    documents: Sequence[Row]
    encoded: Sequence[bytes]
    units: Sequence[int]
    cleaned: list[Cleaned]
    scores: dict[str, NDArray[np.float32]] = field(default_factory=dict)


def batches(documents: Iterable[Row]) -> Iterator[list[Row]]:
    """Documents in batches of bounded size."""
    batch: list[Row] = []
    size = 0
    for document in documents:
        batch.append(document)
        size += len(document[1])
        if len(batch) >= BATCH_DOCUMENTS or size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def sift(documents: Sequence[Row], config: CurateConfig) -> Batch:
    """Decide about a batch. Raises UserError for rules or a classifier that are not there."""
    encoded = [text.encode("utf-8", "surrogatepass") for _, text, *_ in documents]
    looked = survey_all(*joined(encoded))
    cleaned = answered(
        [
            cleaning(text, lang=lang, domain=domain, config=config, extracted='"extractor"' in meta, seen=seen)
            for (_, text, lang, domain, meta), seen in zip(documents, looked, strict=True)
        ]
    )
    units = [
        seen.units if seen is not None else found.units if found.text == text else count_units(text)
        for (_, text, *_), seen, found in zip(documents, looked, cleaned, strict=True)
    ]
    return Batch(documents, encoded, units, cleaned, _judge(cleaned, config.quality))


def _judge(cleaned: list[Cleaned], config: QualityConfig) -> dict[str, NDArray[np.float32]]:
    """Scores of the texts that cleaning left; those that a rule takes are replaced in `cleaned`."""
    rules = asked(config)
    classifier = loaded(config)
    scores = {name: np.full(len(cleaned), np.nan, np.float32) for name in rule_names(config)}
    stay = [place for place, found in enumerate(cleaned) if found.text is not None]
    if not scores or not stay:
        return scores
    from headwater.curate.quality.registry import judge
    from headwater.curate.quality.statistics import measure

    texts = [cleaned[place].readable or cleaned[place].text or "" for place in stay]
    if rules:
        verdicts = judge(measure(texts, [cleaned[place].code for place in stay]), rules)
        for number, rule in enumerate(rules):
            scores[rule.name][stay] = verdicts.scores[:, number]
        for number in np.flatnonzero(verdicts.failed >= 0).tolist():
            rule = rules[verdicts.failed[number]]
            score = float(verdicts.scores[number, verdicts.failed[number]])
            cleaned[stay[number]] = _gone(
                cleaned[stay[number]], rule.name, rule.version, score, verdicts.detail(number)
            )
    if classifier is not None:
        prose = [number for number, place in enumerate(stay) if not cleaned[place].code]
        for number, score in zip(prose, classifier.scores([texts[number] for number in prose]).tolist(), strict=True):
            place = stay[number]
            scores[CLASSIFIER][place] = score
            if score < config.classifier.min_score and cleaned[place].text is not None:
                detail = f"Probability that it is good: {score:g}, under {config.classifier.min_score:g}"
                cleaned[place] = _gone(cleaned[place], CLASSIFIER, CLASSIFIER_VERSION, score, detail)
    return scores


def _gone(found: Cleaned, rule: str, version: int, score: float, detail: str) -> Cleaned:
    return replace(found, text=None, rule=rule, version=version, score=score, detail=detail, readable="")


def rule_names(config: QualityConfig) -> list[str]:
    """Names of what is asked, in order."""
    return [rule.name for rule in asked(config)] + ([CLASSIFIER] if config.classifier.model else [])


def rule_versions(config: QualityConfig) -> dict[str, int]:
    """Rule -> version, of what is asked."""
    versions = {rule.name: rule.version for rule in asked(config)}
    return {**versions, **({CLASSIFIER: CLASSIFIER_VERSION} if config.classifier.model else {})}


def asked(config: QualityConfig) -> tuple[Rule, ...]:
    """The rules that a recipe's settings choose."""
    if not config.rules:
        return ()
    return _asked(config.model_dump_json())


@lru_cache(maxsize=8)
def _asked(config: str) -> tuple[Rule, ...]:
    from headwater.curate.quality.registry import chosen

    found = QualityConfig.model_validate_json(config)
    return chosen(found.rules, found.without, found.bounds)


def loaded(config: QualityConfig) -> Classifier | None:
    """The classifier that a recipe's settings name."""
    path = config.classifier.path
    if path is None:
        return None
    from headwater.curate.quality.classifier import load

    return load(path)
