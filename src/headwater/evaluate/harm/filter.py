"""A filter of prompts and outputs: a lexicon in Chinese and English, and a classifier that a user fits.

In: a text. Out: a `Verdict`: flagged or not, how likely, which categories, where. A filter is anything with
`check(text)`; `HarmFilter` is ours, `any_of` joins several.

    verdict = open_filter(classifier=Path("harm.safetensors")).check("...")
    verdict.flagged, verdict.categories, verdict.score

The lexicon catches plain wording with few false alarms and misses most paraphrases; the classifier, hashed n-grams
fitted by `headwater eval filter --fit`, is as good as what it was fitted on. Neither is a guarantee:
`measure` says how good.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Protocol

import yaml

from headwater.curate.dedup.folding import traditional_pairs
from headwater.curate.quality.classifier import Classifier, load

THRESHOLD = 0.5
LONGEST = 100_000
"""Characters of a text that are looked at by the lexicon."""

_INVISIBLE = re.compile("[\u00ad\u200b-\u200f\u2060-\u2064\ufeff]")
_BETWEEN_HAN = re.compile(r"(?<=[\u3400-\u9fff])[\s*._\-·|/\\]+(?=[\u3400-\u9fff])")
_LOOKALIKES = str.maketrans("асеорхуіАВСЕНКМОРТХ", "aceopxyiabcehkmoptx")


@dataclass(frozen=True, slots=True)
class Verdict:
    """`score`: the classifier's probability, 1 where the lexicon matched, 0 without either; `matches`: what of the
    folded text the lexicon matched."""

    flagged: bool
    score: float
    categories: tuple[str, ...] = ()
    matches: tuple[str, ...] = ()


class Filter(Protocol):
    """Says of a text whether it is harmful."""

    def check(self, text: str) -> Verdict: ...


@dataclass(frozen=True)
class HarmFilter:
    """The lexicon (unless `lexicon` is False) and a fitted classifier (None: none); `threshold` is of the latter."""

    classifier: Classifier | None = None
    threshold: float = THRESHOLD
    lexicon: bool = True

    def check(self, text: str) -> Verdict:
        return self.check_all([text])[0]

    def check_all(self, texts: Sequence[str]) -> list[Verdict]:
        """Verdicts of many texts at once."""
        chances = (
            self.classifier.scores([fold(text) for text in texts]).tolist() if self.classifier else [0.0] * len(texts)
        )
        found = []
        for text, chance in zip(texts, chances, strict=True):
            hits = _hits(text) if self.lexicon else []
            flagged = bool(hits) or (self.classifier is not None and chance >= self.threshold)
            categories = tuple(dict.fromkeys(category for category, _ in hits))
            if flagged and not categories:
                categories = ("classifier",)
            found.append(Verdict(flagged, 1.0 if hits else chance, categories, tuple(match for _, match in hits)))
        return found


@dataclass(frozen=True)
class _AnyOf:
    filters: tuple[Filter, ...]

    def check(self, text: str) -> Verdict:
        verdicts = [one.check(text) for one in self.filters]
        return Verdict(
            any(verdict.flagged for verdict in verdicts),
            max((verdict.score for verdict in verdicts), default=0.0),
            tuple(dict.fromkeys(name for verdict in verdicts for name in verdict.categories)),
            tuple(match for verdict in verdicts for match in verdict.matches),
        )


def any_of(*filters: Filter) -> Filter:
    """One filter that flags what any of them does."""
    return _AnyOf(filters)


def open_filter(classifier: Path | None = None, *, threshold: float = THRESHOLD, lexicon: bool = True) -> HarmFilter:
    """Our filter. Errors of a classifier's file as `headwater.curate.quality.classifier.load`."""
    return HarmFilter(load(classifier) if classifier is not None else None, threshold, lexicon)


def fold(text: str) -> str:
    """How texts are compared: NFKC, lower case, simplified characters, Latin for its look-alikes, without invisible
    characters and without what is put between Chinese ones."""
    folded = _INVISIBLE.sub("", unicodedata.normalize("NFKC", text[:LONGEST]))
    return _BETWEEN_HAN.sub("", folded.translate(_simplify()).translate(_LOOKALIKES).lower())


@cache
def _simplify() -> dict[int, str]:
    traditional, simplified = traditional_pairs()
    return {ord(a): b for a, b in zip(traditional, simplified, strict=True)}


@cache
def patterns() -> tuple[tuple[str, re.Pattern[str]], ...]:
    """(category, pattern) of the lexicon."""
    lexicon = yaml.safe_load(resources.files(__package__).joinpath("lexicon.yaml").read_text("utf-8"))
    made = []
    for category, texts in lexicon["categories"].items():
        for text in texts:
            for name, part in lexicon["parts"].items():
                text = text.replace("{" + name + "}", part)
            made.append((category, re.compile(text)))
    return tuple(made)


def _hits(text: str) -> list[tuple[str, str]]:
    folded = fold(text)
    return [(category, match.group()) for category, pattern in patterns() if (match := pattern.search(folded))]


def measure(filter_: Filter, harmful: Sequence[str], safe: Sequence[str]) -> dict[str, Any]:
    """Precision, recall and false alarms of a filter on texts it has not been fitted on, as plain values."""
    caught = sum(filter_.check(text).flagged for text in harmful)
    alarms = sum(filter_.check(text).flagged for text in safe)
    return asdict(
        Measured(
            len(harmful),
            len(safe),
            caught / (caught + alarms) if caught + alarms else None,
            caught / len(harmful) if harmful else None,
            alarms / len(safe) if safe else None,
        )
    )


@dataclass(frozen=True, slots=True)
class Measured:
    """None where there is nothing to divide by."""

    harmful: int
    safe: int
    precision: float | None
    recall: float | None
    false_alarms: float | None
