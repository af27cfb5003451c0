"""What a deduplication or decontamination is asked to do.

DedupSettings(methods=("exact", "minhash"), threshold=0.8)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

from headwater.core.errors import UserError
from headwater.curate.dedup.compare import Measure

METHODS = ("exact", "minhash", "simhash", "ngram")
PRIORITY = ("books", "papers", "code", "other", "web")
MEASURES = {"jaccard": Measure.JACCARD, "containment": Measure.CONTAINMENT}
VERSION = 1
"""Of all rules here: another number means that the same texts may give another outcome."""


def _check(good: bool, what: str, where: str, mend: str) -> None:
    if not good:
        raise UserError(what, where=where, mend=mend)


@dataclass(frozen=True)
class DedupSettings:
    """Parameters of a deduplication. Raises UserError for values that make no sense."""

    methods: Sequence[str] = ("exact", "minhash")
    """Any of `exact` (same text), `minhash`, `simhash` (two ways to propose near-duplicates, decided alike), `ngram`
    (repeated passages inside documents and across them)."""

    threshold: float = 0.70
    """A document goes if its score against a kept one is at least this; 0 to 1."""

    measure: str = "jaccard"
    """`jaccard`: shared shingles over all shingles of both; `containment`: over those of the document that goes."""

    width: int = 5
    """Units in a shingle; shorter documents are compared as whole texts."""

    bands: int = 20
    rows: int = 6
    """MinHash proposes a pair of similarity s with probability 1 - (1 - s**rows)**bands."""

    representatives: int = 8
    """Of documents that share a key and are not duplicates, each is compared with the first this many."""

    priority: Sequence[str] = PRIORITY
    """Domains, the one to keep first; domains not named come last. Within one, the smallest id is kept."""

    fold_traditional: bool = False
    """Whether traditional and simplified characters count as the same."""

    passage_units: int = 50
    """`ngram`: a passage of at least this many units that stands in a kept document is cut."""

    passages: str = "cut"
    """`ngram`: `cut` takes repeated passages out of the texts, `report` only lists them. Code is never cut."""

    spans: int = 32
    """Most spans of evidence in a row; rows say how many there are in all."""

    text_field: str = "text"
    id_field: str = "id"
    domain_field: str = "domain"

    workers: int = 1
    """Threads that hash and compare; they do not change the outcome."""

    def __post_init__(self) -> None:
        known = set(METHODS)
        _check(bool(self.methods), "no method is named", "methods", f"name one or more of {', '.join(METHODS)}")
        for method in self.methods:
            _check(method in known, f"{method!r} is no method", "methods", f"name one or more of {', '.join(METHODS)}")
        _check(0 < self.threshold <= 1, f"threshold is {self.threshold}", "threshold", "give a number above 0, up to 1")
        _check(self.measure in MEASURES, f"{self.measure!r} is no measure", "measure", "jaccard or containment")
        _check(self.passages in ("cut", "report"), f"{self.passages!r} is neither", "passages", "cut or report")
        _check(len(self.priority) < 250, f"{len(self.priority)} domains", "priority", "name fewer than 250")
        _check(self.passage_units >= 10, f"{self.passage_units} units", "passage_units", "give 10 or more")
        for name in ("width", "bands", "rows", "representatives", "spans", "workers"):
            _check(getattr(self, name) >= 1, f"{name} is {getattr(self, name)}", name, "give 1 or more")

    def to_json(self) -> dict[str, object]:
        """What changes the outcome."""
        values = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "workers"}
        return {name: list(value) if isinstance(value, tuple | list) else value for name, value in values.items()}


@dataclass(frozen=True)
class DecontaminateSettings:
    """Parameters of a decontamination. Raises UserError for values that make no sense."""

    width: int = 13
    """Units in an n-gram; a Chinese character is one, a word is one."""

    threshold: float = 0.8
    """A document goes if it holds this share of an item's question, near together; 0 to 1."""

    shortest: int = 8
    """Questions of fewer units are not looked for; of up to `width` units they must occur whole."""

    fields: Sequence[str] = ()
    """Fields of a benchmark's rows that make up the question; the default looks for well-known names."""

    fold_traditional: bool = False
    """Whether traditional and simplified characters count as the same."""

    text_field: str = "text"
    id_field: str = "id"

    def __post_init__(self) -> None:
        _check(0 < self.threshold <= 1, f"threshold is {self.threshold}", "threshold", "give a number above 0, up to 1")
        _check(self.width >= 2, f"width is {self.width}", "width", "give 2 or more")
        _check(1 <= self.shortest <= self.width, f"shortest is {self.shortest}", "shortest", "give 1 to width")

    def to_json(self) -> dict[str, object]:
        """What changes the outcome."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: list(value) if isinstance(value, tuple | list) else value for name, value in values.items()}
