"""Decontamination: which documents hold the questions of benchmarks.

Benchmarks are indexed, the corpus streams by. An item's question is cut into n-grams of 13 units (a Chinese character
is one, a word is one). A document holds an item if the n-grams they share cover at least `threshold` of the question's
units within a stretch of the document not much longer than the question. Shorter questions must occur whole.

    index = BenchmarkIndex([Item("gsm8k/17", "Natalia sold clips ...")], DecontaminateSettings())
    for match in index.find("... Natalia sold clips ..."): match.item.name, match.score, match.span
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headwater.core.errors import InputError
from headwater.curate.dedup.compare import places_for
from headwater.curate.dedup.folding import fold_table
from headwater.curate.dedup.kernels import kernel
from headwater.curate.dedup.settings import DecontaminateSettings
from headwater.curate.dedup.tokens import (
    Bytes,
    Offsets,
    characters_before,
    mix,
    scratch,
    shingle,
    tokenize,
    unit_hashes,
    utf8,
)

QUESTION_FIELDS = ("question", "prompt", "ctx", "content", "text", "goal", "sent_more", "context", "sentence", "query")
"""Where a benchmark's question is looked for: the first of these that a row has as text, or as an object with a `stem`
or `text`."""


@dataclass(frozen=True)
class Item:
    """One question of a benchmark; `name` is unique, such as FILE:ID."""

    name: str
    question: str


@dataclass(frozen=True)
class Match:
    """An item found in a document: the share of its question that is there, and where, in characters."""

    item: Item
    score: float
    span: tuple[int, int]


def question_of(row: dict[str, Any], fields: Sequence[str]) -> str | None:
    """The question of a benchmark's row: of the given fields all that are there, else of `QUESTION_FIELDS` the first;
    None if there is none."""
    found = [text for text in (_text_of(row.get(field)) for field in fields or QUESTION_FIELDS) if text]
    return "\n".join(found if fields else found[:1]) or None


def _text_of(value: Any) -> str:
    if isinstance(value, dict):
        value = value.get("stem") or value.get("text")
    return value if isinstance(value, str) else ""


@kernel
def _scan(
    data: Any, offsets: Any, table: Any, width: Any, short: Any, wide_keys: Any, short_keys: Any,
    hashes: Any, starts: Any, ends: Any, copy: Any, marks: Any,
) -> None:  # fmt: skip
    """Whether each document has an n-gram of the index, into marks, uint8 [n]. The key tables are open, zero empty."""
    for document in range(offsets.size - 1):
        count = tokenize(data, offsets[document], offsets[document + 1], table, hashes, starts, ends)
        copy[:count] = hashes[:count]
        marks[document] = 0
        for keys, values, number in ((wide_keys, hashes, width), (short_keys, copy, short)):
            last = np.uint64(keys.size - 1)
            for index in range(shingle(values, count, number)):
                place = mix(values[index]) & last
                while keys[place] != 0 and keys[place] != values[index]:
                    place = (place + np.uint64(1)) & last
                if keys[place] != 0:
                    marks[document] = 1
                    break


@kernel
def _fill(keys: Any, values: Any) -> None:
    last = np.uint64(keys.size - 1)
    for index in range(values.size):
        place = mix(values[index]) & last
        while keys[place] != 0 and keys[place] != values[index]:
            place = (place + np.uint64(1)) & last
        keys[place] = values[index]


class _Postings:
    """n-grams of items, sorted by hash: which item, and where in it."""

    def __init__(self, grams: Iterable[tuple[NDArray[np.uint64], int]]) -> None:
        made = list(grams)
        hashes = [np.empty(0, np.uint64), *(values for values, _ in made)]
        items = [np.empty(0, np.int32), *(np.full(values.size, item, np.int32) for values, item in made)]
        places = [np.empty(0, np.int32), *(np.arange(values.size, dtype=np.int32) for values, _ in made)]
        all_hashes = np.concatenate(hashes)
        order = np.argsort(all_hashes, kind="stable")
        self.hashes = all_hashes[order]
        self.items, self.places = np.concatenate(items)[order], np.concatenate(places)[order]
        self.keys = np.zeros(places_for(self.hashes.size), np.uint64)
        _fill(self.keys, np.unique(self.hashes))

    def hits(self, grams: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int32]]:
        """(place in the document, item, place in the item) of every n-gram they share."""
        low = np.searchsorted(self.hashes, grams, side="left")
        counts = np.searchsorted(self.hashes, grams, side="right") - low
        at = np.repeat(np.arange(grams.size), counts)
        within = np.arange(at.size) - np.repeat(np.cumsum(counts) - counts, counts)
        index = np.repeat(low, counts) + within
        return at, self.items[index], self.places[index]


class BenchmarkIndex:
    """The questions to look for. `too_short` lists items whose question has fewer units than `settings.shortest`."""

    def __init__(self, items: Iterable[Item], settings: DecontaminateSettings) -> None:
        self.settings = settings
        self.items: list[Item] = []
        self.too_short: list[Item] = []
        self._units: list[NDArray[np.uint64]] = []
        for item in items:
            units = unit_hashes(item.question, simplify=settings.fold_traditional)[0].copy()
            if units.size < settings.shortest:
                self.too_short.append(item)
            else:
                self.items.append(item)
                self._units.append(units)
        self._table = fold_table(settings.fold_traditional)
        self._wide = _Postings(self._grams(settings.width, None))
        self._short = _Postings(self._grams(settings.shortest, 1))

    def _grams(self, width: int, most: int | None) -> Iterator[tuple[NDArray[np.uint64], int]]:
        """n-grams of the items that are found by them: long ones by all of `width`, short ones by their first."""
        for number, units in enumerate(self._units):
            if (units.size >= self.settings.width) == (most is None):
                copy = units.copy()
                yield copy[: shingle(copy, copy.size, width)][:most], number

    def scan(self, data: Bytes, offsets: Offsets) -> NDArray[np.int64]:
        """Documents that have anything in common with the index at all, of n documents as bytes and offsets [n + 1]."""
        marks = np.zeros(offsets.size - 1, np.uint8)
        if marks.size:
            work = scratch(int(np.diff(offsets).max()))
            _scan(
                data, offsets, self._table, self.settings.width, self.settings.shortest, self._wide.keys,
                self._short.keys, *work, np.empty(work[0].size, np.uint64), marks,
            )  # fmt: skip
        return np.flatnonzero(marks)

    def find(self, text: str) -> list[Match]:
        """Items that a document holds, best first."""
        units, starts, ends = unit_hashes(text, simplify=self.settings.fold_traditional)
        found: list[tuple[float, int, int, int]] = []
        grams = units.copy()
        found += self._find_long(*self._wide.hits(grams[: shingle(grams, grams.size, self.settings.width)]))
        grams = units.copy()
        at, items, _ = self._short.hits(grams[: shingle(grams, grams.size, self.settings.shortest)])
        for place, number in zip(at.tolist(), items.tolist(), strict=True):
            wanted = self._units[number]
            if np.array_equal(units[place : place + wanted.size], wanted):
                found.append((1.0, number, place, place + wanted.size))
        best: dict[int, tuple[float, int, int, int]] = {}
        for one in found:
            if one[1] not in best or one[0] > best[one[1]][0]:
                best[one[1]] = one
        characters = characters_before(utf8(text) if best else np.zeros(0, np.uint8))
        matches = []
        for score, number, first, end in best.values():
            span = int(characters[starts[first]]), int(characters[ends[end - 1]])
            matches.append(Match(self.items[number], round(score, 4), span))
        return sorted(matches, key=lambda match: (-match.score, match.item.name))

    def _find_long(
        self, at: NDArray[np.int64], items: NDArray[np.int32], places: NDArray[np.int32]
    ) -> Iterator[tuple[float, int, int, int]]:
        """(share, item, first unit, end unit) of every item whose n-grams stand near enough together."""
        order = np.lexsort((at, items))
        at, items, places = at[order], items[order], places[order]
        borders = np.flatnonzero(np.diff(items, prepend=-1, append=-1))
        for begin, end in zip(borders[:-1].tolist(), borders[1:].tolist(), strict=True):
            number = int(items[begin])
            size = self._units[number].size
            if self._covered(places[begin:end], size) < self.settings.threshold:
                continue
            best = (0.0, number, 0, 0)
            reach = size + size // 2 + self.settings.width
            next_start = -1
            for first in range(begin, end):
                if at[first] < next_start:
                    continue
                last = int(np.searchsorted(at[begin:end], at[first] + reach)) + begin
                share = self._covered(places[first:last], size)
                if share > best[0]:
                    best = (share, number, int(at[first]), int(at[last - 1]) + self.settings.width)
                # Try a few starts in each stretch, not all: a document may repeat a question's words at length.
                next_start = int(at[first]) + max(1, size // 8)
            if best[0] >= self.settings.threshold:
                yield best

    def _covered(self, places: NDArray[np.int32], size: int) -> float:
        """Share of an item's units that lie in the n-grams at these places of it."""
        unique = np.unique(places)
        steps = np.minimum(np.diff(unique), self.settings.width).sum() + self.settings.width
        return float(min(steps, size) / size)


def require_items(index: BenchmarkIndex, files: Sequence[str]) -> None:
    """Raises InputError if nothing can be looked for."""
    if not index.items:
        raise InputError(
            f"no question to look for: {len(index.too_short)} questions of fewer than {index.settings.shortest} units",
            where=", ".join(files),
            mend=f"name the field that holds the question (--field); without it one of {', '.join(QUESTION_FIELDS)}",
        )
