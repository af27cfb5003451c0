"""The `curate.quality` section of a recipe: which rules are asked, within which limits, and the classifier.

    QualityConfig(rules=["gopher", "code"], limits={"gopher.length": {"latin": [50, None]}})

Imports nothing heavy.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from pydantic import field_validator

from headwater.core.config import Section, field

FAMILIES = ("c4", "chinese", "code", "fineweb", "gopher", "text")
KINDS = ("latin", "cjk", "code")


def _as_tuple(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


class ClassifierConfig(Section):
    """A quality classifier that `headwater curate classifier fit` made. It is asked about prose."""

    model: str = field("")
    """Its file, relative to the current folder or absolute. Empty: none is asked. Its content is part of the corpus's
    identity."""

    min_score: float = field(0.5, unit="ratio", ge=0, le=1)
    """A document goes if the classifier's probability that it is good is below this."""

    @property
    def path(self) -> Path | None:
        return Path(self.model).expanduser() if self.model else None


class QualityConfig(Section):
    """Quality rules. Each has a name, a version and limits for each kind of text: `headwater curate rules` lists."""

    rules: tuple[str, ...] = field(FAMILIES)
    """Families (gopher, c4, fineweb, chinese, text, code) or single rules (gopher.length). Empty: none is asked."""

    without: tuple[str, ...] = field(())
    """Rules or families that are not asked after all."""

    limits: dict[str, dict[str, tuple[float | None, float | None]]] = field(default_factory=dict)
    """Limits of your own: rule -> kind of text (latin, cjk, code) -> least and greatest score with which a text stays;
    null for none. For example {gopher.length: {latin: [50, 100000], cjk: [30, null]}}."""

    classifier: ClassifierConfig = field(default_factory=ClassifierConfig)
    """A classifier of your own."""

    _tuples = field_validator("rules", "without", mode="before")(_as_tuple)

    @field_validator("limits")
    @classmethod
    def _check_limits(cls, limits: dict[str, Any]) -> dict[str, Any]:
        for rule, kinds in limits.items():
            for kind, (low, high) in kinds.items():
                if kind not in KINDS:
                    raise ValueError(f"{rule}: {kind!r} is no kind of text; the kinds are {', '.join(KINDS)}")
                if low is not None and high is not None and low > high:
                    raise ValueError(f"{rule}, {kind}: nothing is at least {low:g} and at most {high:g}")
        return limits

    @property
    def bounds(self) -> dict[str, dict[str, tuple[float, float]]]:
        """`limits` with infinity for null."""
        return {
            rule: {
                kind: (-math.inf if low is None else low, math.inf if high is None else high)
                for kind, (low, high) in kinds.items()
            }
            for rule, kinds in self.limits.items()
        }

    @property
    def asks(self) -> bool:
        """Whether anything is asked at all."""
        return bool(self.rules) or bool(self.classifier.model)
