"""Repeated passages: what stands in a kept document already, or repeats at once inside its own.

Windows of `WINDOW` units are hashed and sampled by winnowing (Schleimer, Wilkerson, Aiken, SIGMOD 2003), so any
passage of `passage_units` units is seen. A sampled hash that occurs again proposes its first occurrence (by preference
of documents, then position) as the kept one; units are then compared to both sides as far as they agree, and only
where the kept side itself has not been cut. Borders are those of units, so of characters.

Adjacent repeats come first: lines that stand three times or more in a row, and any sequence of up to `LONGEST_PERIOD`
units that repeats at once for at least `passage_units`; the first copy stays.

    found = PassageDedup(settings, folder, spool, row_of, alive, cuttable, frozen=0).run()
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from headwater.curate.dedup.folding import fold_table
from headwater.curate.dedup.passage_kernels import extend, fingerprints, repeats
from headwater.curate.dedup.runs import RunStore
from headwater.curate.dedup.settings import DedupSettings
from headwater.curate.dedup.tokens import Bytes, Offsets, scratch, tokenize

BATCH_BYTES = 16 << 20
LONGEST_PERIOD = 32
LINE_COPIES = 3
LINE_UNITS = 12
"""Lines in a row are a repeat from this many copies and this many units in all copies on."""

_HALF = np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)


@dataclass(frozen=True)
class Passages:
    """Passages found: columns of numbers, one row each, ordered by document and place. Bytes count from the text's
    first. `whole` marks documents, by row, of which so much repeats that they go; `shares` says how much."""

    rows: NDArray[np.int64]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    kept_rows: NDArray[np.int64]
    kept_starts: NDArray[np.int64]
    kept_ends: NDArray[np.int64]
    adjacent: NDArray[np.bool_]
    whole: NDArray[np.int64]
    shares: NDArray[np.float64]


class Texts(Protocol):
    """Texts by row: bytes, and offsets [rows + 1]."""

    data: Bytes
    offsets: Offsets

    def bytes_of(self, row: int) -> Bytes: ...

    def release(self) -> None: ...


class PassageDedup:
    """Finds repeated passages among live documents. `alive` and `cuttable` are by number; documents below `frozen` are
    looked at, but neither cut nor dropped."""

    def __init__(
        self,
        settings: DedupSettings,
        folder: Path,
        spool: Texts,
        row_of: NDArray[np.uint32],
        alive: NDArray[np.uint8],
        frozen: int,
    ) -> None:
        self.settings, self.folder, self.spool, self.row_of = settings, folder, spool, row_of
        self.alive, self.frozen = alive.copy(), frozen
        self.window = settings.passage_units // 2
        self.spread = settings.passage_units - self.window + 1
        self.table = fold_table(settings.fold_traditional)

    def run(self) -> Passages:
        (self.folder / "passages").mkdir()
        (self.folder / "passage-pairs").mkdir()
        store = RunStore(self.folder / "passages", 1, np.uint64, run_pairs=1 << 20)
        own = self._fingerprint(store)
        pairs = RunStore(self.folder / "passage-pairs", 1, np.uint64, run_pairs=1 << 20)
        for keys, places in store.sorted(0):
            self._propose(keys, places, pairs)
        store.drop(0)
        cuts = self._extend(pairs, own)
        pairs.drop(0)
        return self._gather(own, cuts)

    def _batches(self) -> Iterator[NDArray[np.int64]]:
        """Numbers of live documents, so many at a time that their texts fit into memory."""
        numbers = np.flatnonzero(self.alive)
        rows = self.row_of[numbers]
        sizes = np.cumsum(self.spool.offsets[rows + np.uint32(1)] - self.spool.offsets[rows])
        start = 0
        while start < numbers.size:
            before = sizes[start - 1] if start else 0
            end = max(start + 1, int(np.searchsorted(sizes, before + BATCH_BYTES, side="right")))
            yield numbers[start:end]
            start = end

    def _fingerprint(self, store: RunStore) -> NDArray[np.int64]:
        """Sampled hashes of all documents into the store; adjacent repeats [n, 4]: number, first unit, end unit, first
        unit of the copy that stays."""
        offsets, found = self.spool.offsets, [np.empty((0, 4), np.int64)]
        for numbers in self._batches():
            rows = self.row_of[numbers].astype(np.int64)
            lengths = offsets[rows + 1] - offsets[rows]
            work = scratch(int(lengths.max()))
            places = int(lengths.sum()) // 2 + rows.size
            own = np.empty((places, 4), np.int64)
            count = repeats(
                self.spool.data, offsets, rows, numbers, self.table, self.settings.passage_units, LONGEST_PERIOD,
                LINE_COPIES, LINE_UNITS, *work, own,
            )  # fmt: skip
            own = own[:count]
            own = own[own[:, 0] >= self.frozen]
            found.append(own)
            hashes, where = np.empty(places, np.uint64), np.empty(places, np.uint64)
            count = fingerprints(
                self.spool.data, offsets, rows, numbers, self.table, self.window, self.spread, own, *work, hashes, where
            )
            store.add(hashes[:count][None, :], where[:count])
            self.spool.release()
        return np.concatenate(found)

    def _propose(self, keys: NDArray[np.uint64], places: NDArray[np.uint64], pairs: RunStore) -> None:
        """Pair every later occurrence of a hash with its first."""
        order = np.lexsort((places, keys))
        keys, places = keys[order], places[order]
        first = np.ones(keys.size, np.bool_)
        first[1:] = keys[1:] != keys[:-1]
        source = places[np.flatnonzero(first)][np.cumsum(first) - 1]
        later = ~first & ((places >> _HALF) >= np.uint64(self.frozen))
        pairs.add(places[later][None, :], source[later])

    def _extend(self, pairs: RunStore, own: NDArray[np.int64]) -> NDArray[np.int64]:
        """Cuts [n, 5]: number, first unit, end unit, number and first unit of the kept side; documents that go are
        marked dead in `alive`."""
        cuts = np.empty((0, 5), np.int64)
        held = np.empty(0, np.uint64), np.empty(0, np.uint64)
        parts = pairs.sorted(0)
        more = True
        while more:
            part = next(parts, None)
            more = part is not None
            if part is not None:
                held = np.concatenate([held[0], part[0]]), np.concatenate([held[1], part[1]])
            # A document must not be divided between two calls: its cuts decide on one another.
            end = held[0].size
            if more and end:
                end = int(np.searchsorted(held[0], held[0][-1] & ~_LOW))
            if not end:
                continue
            places, sources = held[0][:end], held[1][:end]
            held = held[0][end:], held[1][end:]
            numbers, others = (places >> _HALF).astype(np.int64), (sources >> _HALF).astype(np.int64)
            rows = self.row_of[np.concatenate([numbers, others])].astype(np.int64)
            longest = int((self.spool.offsets[rows + 1] - self.spool.offsets[rows]).max())
            out = np.empty((end, 5), np.int64)
            count = extend(
                self.spool.data, self.spool.offsets, self.row_of, self.table, numbers,
                (places & _LOW).astype(np.int64), others, (sources & _LOW).astype(np.int64), own, cuts,
                self.settings.passage_units, self.settings.threshold, self.alive,
                *scratch(longest), *scratch(longest), out,
            )  # fmt: skip
            cuts = np.concatenate([cuts, out[:count]])
            self.spool.release()
        return cuts

    def _gather(self, own: NDArray[np.int64], cuts: NDArray[np.int64]) -> Passages:
        """Units to bytes, document by document."""
        own = own[self.alive[own[:, 0]] == 1]
        adjacent = np.concatenate([np.ones(len(own), np.bool_), np.zeros(len(cuts), np.bool_)])
        own = np.column_stack([own[:, :3], own[:, 0], own[:, 3]])
        table = np.concatenate([own, cuts])
        order = np.lexsort((table[:, 1], table[:, 0]))
        table, adjacent = table[order], adjacent[order]
        bytes_ = np.empty((len(table), 4), np.int64)
        borders: dict[int, tuple[NDArray[np.int64], NDArray[np.int64]]] = {}
        units = np.zeros(len(table), np.int64)
        for index, (number, start, end, kept, kept_start) in enumerate(table.tolist()):
            for document in (number, kept):
                if document not in borders:
                    while len(borders) > 1:
                        borders.pop(next(key for key in borders if key != number))
                    borders[document] = self._borders(document)
            starts, ends = borders[number]
            kept_starts, kept_ends = borders[kept]
            units[index] = starts.size
            stop = int(starts[end]) if end < starts.size else -1
            kept_end = int(kept_ends[kept_start + end - start - 1])
            tail = self._tail(number, int(ends[end - 1]), stop, kept, kept_end)
            bytes_[index] = starts[start], ends[end - 1] + tail, kept_starts[kept_start], kept_end + tail
        gone = self.alive[table[:, 0]] == 0
        dead, place = np.unique(table[gone, 0], return_inverse=True)
        shares = np.zeros(dead.size)
        np.add.at(shares, place, (table[gone, 2] - table[gone, 1]) / units[gone])
        rows = self.row_of[table[:, 0]].astype(np.int64)
        return Passages(
            rows, bytes_[:, 0], bytes_[:, 1], self.row_of[table[:, 3]].astype(np.int64), bytes_[:, 2], bytes_[:, 3],
            adjacent, self.row_of[dead].astype(np.int64), shares,
        )  # fmt: skip

    def _borders(self, number: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        row = int(self.row_of[number])
        begin, end = int(self.spool.offsets[row]), int(self.spool.offsets[row + 1])
        hashes, starts, ends = scratch(end - begin)
        count = tokenize(self.spool.data, begin, end, self.table, hashes, starts, ends)
        return starts[:count] - begin, ends[:count] - begin

    def _tail(self, number: int, end: int, stop: int, kept: int, kept_end: int) -> int:
        """Bytes of punctuation after a cut that the kept text has too, up to the next unit or the end of the line."""
        text = self.spool.bytes_of(int(self.row_of[number]))
        after = text[end : stop if stop >= 0 else text.size].tobytes().partition(b"\n")[0]
        there = self.spool.bytes_of(int(self.row_of[kept]))[kept_end : kept_end + len(after)].tobytes()
        same = next((at for at, pair in enumerate(zip(after, there, strict=False)) if pair[0] != pair[1]), len(there))
        while same < len(after) and same and after[same] & 0xC0 == 0x80:
            same -= 1  # not into the middle of a character
        return same
