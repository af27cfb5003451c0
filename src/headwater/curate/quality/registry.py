"""Quality rules by name: what a rule is, where rules are found, and what they say about a batch of texts.

A rule is one small function from `Statistics` to a score a text, with a version and limits for each kind of text
(`latin`: words of any alphabet, `cjk`, `code`) frozen beside it; a kind without limits is not asked. Every module in
`quality/rules/` is loaded, so a new rule is a function there:

    @rule("mine.shouting", version=1, latin=at_most(0.3))
    def shouting(s: Statistics) -> Numbers:
        '''Exclamation marks to words.'''
        return ratio(s.count("!"), s.words)
"""

from __future__ import annotations

import importlib
import math
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from headwater.core.errors import UserError
from headwater.curate.quality.statistics import KINDS, Numbers, Statistics

Score = Callable[[Statistics], Numbers]
Limits = tuple[float, float]
"""Least and greatest score with which a text stays."""

DECIMALS = 4
"""Scores are fixed to this many decimals before they are compared: they are the same on every machine."""


@dataclass(frozen=True)
class Rule:
    """A named rule: `limits` by kind of text, `score` the function, `says` what it measures."""

    name: str
    version: int
    limits: Mapping[str, Limits]
    score: Score
    says: str

    @property
    def family(self) -> str:
        return self.name.partition(".")[0]


_RULES: dict[str, Rule] = {}


def at_most(high: float) -> Limits:
    return (-math.inf, high)


def at_least(low: float) -> Limits:
    return (low, math.inf)


def between(low: float, high: float) -> Limits:
    return (low, high)


def rule(
    name: str, *, version: int, latin: Limits | None = None, cjk: Limits | None = None, code: Limits | None = None
) -> Callable[[Score], Score]:
    """Register a rule. Raise `version` with every change of its function or limits: evidence names it."""
    limits = {kind: found for kind, found in zip(KINDS, (latin, cjk, code), strict=True) if found is not None}

    def register(score: Score) -> Score:
        assert name not in _RULES or _RULES[name].score.__module__ == score.__module__, f"two rules are called {name}"
        assert limits, f"rule {name} has no limits"
        _RULES[name] = Rule(name, version, limits, score, (score.__doc__ or "").strip())
        return score

    return register


@cache
def all_rules() -> dict[str, Rule]:
    """Every rule by name, in the order of modules and of functions in them: the order in which they are asked."""
    package = importlib.import_module("headwater.curate.quality.rules")
    for module in sorted(pkgutil.iter_modules(package.__path__), key=lambda module: module.name):
        importlib.import_module(f"{package.__name__}.{module.name}")
    return dict(_RULES)


def chosen(names: Sequence[str], without: Sequence[str] = (), limits: Mapping[str, Mapping[str, Limits]] | None = None
           ) -> tuple[Rule, ...]:  # fmt: skip
    """Rules by family or name, less those in `without`, with some limits replaced.

    Raises UserError for a name that is neither a rule nor a family, and for limits of a rule that is not chosen."""
    rules = all_rules()
    families = {found.family for found in rules.values()}
    for name in (*names, *without):
        if name not in rules and name not in families:
            raise UserError(
                f"{name!r} is neither a quality rule nor a family of them",
                where="curate.quality",
                mend=f"families: {', '.join(sorted(families))}; `headwater curate rules` lists all rules",
            )
    picked = [
        found for name, found in rules.items()
        if (name in names or found.family in names) and name not in without and found.family not in without
    ]  # fmt: skip
    other = dict(limits or {})
    for number, found in enumerate(picked):
        if found.name in other:
            changed = {**found.limits, **other.pop(found.name)}
            picked[number] = Rule(found.name, found.version, changed, found.score, found.says)
    if other:
        raise UserError(
            f"limits for {', '.join(sorted(other))}, which is not among the rules that are asked",
            where="curate.quality.limits",
            mend="name the rule in curate.quality.rules too, or take its limits away",
        )
    return tuple(picked)


@dataclass(frozen=True)
class Verdicts:
    """`scores` float64 [texts, rules], NaN where a rule does not apply; `failed` int64 [texts]: the first rule whose
    limits a text breaks, or -1."""

    rules: tuple[Rule, ...]
    kinds: NDArray[np.uint8]
    scores: Numbers
    failed: NDArray[np.int64]

    def detail(self, text: int) -> str:
        """In words why a text goes: which score, which limit, for which kind of text."""
        number = int(self.failed[text])
        kind = KINDS[self.kinds[text]]
        low, high = self.rules[number].limits[kind]
        score = self.scores[text, number]
        limit = f"under {low:g}" if score < low else f"over {high:g}"
        what = self.rules[number].says.partition(". ")[0].rstrip(".")
        return f"{what}: {score:g}, {limit} ({kind})"


def judge(statistics: Statistics, rules: Sequence[Rule]) -> Verdicts:
    """Ask every rule about every text of a batch."""
    count = len(statistics)
    scores = np.full((count, len(rules)), np.nan)
    failed = np.full(count, -1, np.int64)
    for number, found in enumerate(rules):
        low, high = np.full(len(KINDS), np.nan), np.full(len(KINDS), np.nan)
        for kind, (least, most) in found.limits.items():
            low[KINDS.index(kind)], high[KINDS.index(kind)] = least, most
        asked = ~np.isnan(low[statistics.kinds])
        if not asked.any():
            continue
        values = np.where(asked, np.round(found.score(statistics), DECIMALS), np.nan)
        scores[:, number] = values
        broken = (values < low[statistics.kinds]) | (values > high[statistics.kinds])
        failed[broken & (failed < 0)] = number
    return Verdicts(tuple(rules), statistics.kinds, scores, failed)
