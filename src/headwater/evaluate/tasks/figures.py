"""From items' records to figures with their uncertainty.

    figures(records)                        # ({"acc": Figure(0.61, 0.013, 1286)}, {"physics": {...}})

Means by default. A kind or scorer whose figures are no means of items (perplexity is a ratio of sums, self-BLEU
compares texts with one another) registers an aggregate, which is given all records and adds to the means.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Records = Sequence[Mapping[str, Any]]
RESAMPLES = 1000
"""Draws of a bootstrap."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A mean over items with its standard error (sample deviation / sqrt(n)); None where one item says nothing."""

    value: float
    stderr: float | None
    n: int


Aggregate = Callable[[Records], dict[str, Figure]]
AGGREGATES: dict[str, Aggregate] = {}


def aggregate(name: str) -> Callable[[Aggregate], Aggregate]:
    """Register an aggregate under the name of a kind or a scorer."""

    def register(function: Aggregate) -> Aggregate:
        AGGREGATES[name] = function
        return function

    return register


def figures(records: Records, *names: str) -> tuple[dict[str, Figure], dict[str, dict[str, Figure]]]:
    """(figures over all records, figures by group). `names`: the kind and scorer, whose aggregates are added. Records
    that were not scored (`failed`) count in none."""
    scored = [record for record in records if "failed" not in record]
    groups: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for record in scored:
        if record["group"]:
            groups[record["group"]].append(record)
    return _all(scored, names), {name: _all(members, names) for name, members in sorted(groups.items())}


def _all(records: Records, names: Sequence[str]) -> dict[str, Figure]:
    values: dict[str, list[float]] = defaultdict(list)
    for record in records:
        for name, value in record["metrics"].items():
            values[name].append(value)
    found = {name: mean(values[name]) for name in sorted(values)}  # of records read again, keys come sorted
    for name in names:
        if name in AGGREGATES and records:
            found |= AGGREGATES[name](records)
    return found


def mean(values: Sequence[float]) -> Figure:
    """Mean and standard error."""
    n = len(values)
    average = math.fsum(values) / n
    if n < 2:
        return Figure(average, None, n)
    variance = math.fsum((value - average) ** 2 for value in values) / (n - 1)
    return Figure(average, math.sqrt(variance / n), n)


@aggregate("cloze")
def _cloze(records: Records) -> dict[str, Figure]:
    """exp of the mean nats an item, with the error carried over (delta method)."""
    nats = mean([record["metrics"]["nats"] for record in records])
    value = math.exp(min(nats.value, 700.0))
    return {"perplexity": Figure(value, None if nats.stderr is None else value * nats.stderr, nats.n)}


@aggregate("perplexity")
def _perplexity(records: Records) -> dict[str, Figure]:
    """Ratios of sums over all texts: exp(nats / tokens, words, units, bytes) and nats / (bytes ln 2), the errors from
    1,000 seeded draws of the texts. Words are counted as lm-evaluation-harness does."""
    table = np.array([[record["sums"][key] for key in ("nats", *COUNTS)] for record in records], dtype=np.float64)
    draws = np.random.default_rng(0).integers(len(table), size=(RESAMPLES if len(table) > 1 else 0, len(table)))
    sums, drawn = table.sum(0), table[draws].sum(1)
    found = {}
    for place, name in enumerate(COUNTS, 1):
        if not sums[place]:
            continue
        ratio, ratios = sums[0] / sums[place], drawn[:, 0] / np.maximum(drawn[:, place], 1)
        if ratio < 700:
            found[f"{COUNTS[name]}_perplexity"] = _figure(np.exp(ratio), np.exp(np.minimum(ratios, 700)), len(table))
        if name == "bytes":
            found["bits_per_byte"] = _figure(ratio / math.log(2), ratios / math.log(2), len(table))
    return found


COUNTS = {"tokens": "token", "whitespace_words": "word", "units": "unit", "bytes": "byte"}


def _figure(value: float, drawn: np.ndarray, n: int) -> Figure:
    return Figure(float(value), float(drawn.std(ddof=1)) if len(drawn) else None, n)
