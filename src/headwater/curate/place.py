"""What stays of each shard after all comparisons, with the evidence for what goes, and what it all amounts to.

In: a shard's own decisions and those over all shards: duplicates, passages, lines of sites, takedowns. Out:
`attributes/corpus/SHARD.parquet` and `work/final/SHARD.npy` (`FINAL`, one row a document of the shard).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from headwater.core.shards import ShardFolder
from headwater.core.units import count_units
from headwater.curate.attributes import DECISIONS, RowWriter, clean_name, column, decisions_name, final_name
from headwater.curate.counts import Tally
from headwater.curate.dedup import settings
from headwater.curate.dedup.compare import span_arrays
from headwater.curate.dedup.population import Population
from headwater.curate.dedup.signatures import load_info
from headwater.curate.dedup.tokens import characters_before
from headwater.curate.exact import RULE, VERSION, duplicates_of
from headwater.curate.near import CUTS, REMOVALS, RULE_NAMES
from headwater.curate.site_lines import RULE as SITE_RULE
from headwater.curate.site_lines import VERSION as SITE_VERSION
from headwater.curate.site_lines import site_cuts_name
from headwater.curate.texts import CorpusTexts

FINAL = np.dtype([("state", "u1"), ("bytes", "<i8"), ("units", "<i8")])
"""`state`: GONE, STAYS or TAKEN; bytes and units of the text that is left."""

GONE, STAYS, TAKEN = range(3)
IDS = np.dtype([("high", "<u8"), ("low", "<u8"), ("index", "<u4")])
REMOVED_IDS = "work/near/removed-ids.npy"
"""Ids of near-duplicates that go, as IDS, each with its place among the removals."""

TAKEDOWN = "takedown.id"
SPANS = 32
"""Most spans of evidence in a row."""


@dataclass(frozen=True, slots=True)
class PlaceTask:
    """One shard, its place in the stable order, and the number of partitions duplicates were found in (0: none).
    `uncut` are domains whose texts are never cut, `taken` ids to take down."""

    name: str
    ordinal: int
    partitions: int
    bases: tuple[int, int]
    width: int
    simplify: bool
    undo: frozenset[str]
    uncut: frozenset[str]
    cutting: bool
    sites: bool
    taken: frozenset[str]
    texts: Path
    out: ShardFolder


def place_shard(task: PlaceTask) -> dict[str, Any]:
    """Settle a shard, unless that was done. Returns facts: tallies `dropped` (rule|lang|domain, as they came in),
    `kept_in`, `kept_clean` and `kept_out` (lang|domain: as they came in, after cleaning, after cuts), `cut` (rule|lang|
    domain) and `weights` by domain."""
    name = decisions_name(task.name)
    if (facts := task.out.done(name)) is not None and task.out.done(final_name(task.name)) is not None:
        return facts
    return _Placing(task).write()


@dataclass(frozen=True, slots=True)
class _Row:
    """One row of evidence."""

    row: int
    action: str
    rule: str
    version: int
    score: float
    kept_id: str
    spans: list[list[int]]
    spans_total: int
    detail: str = ""
    start: int = 0
    end: int = 0


class _Placing:
    def __init__(self, task: PlaceTask) -> None:
        self.task, self.out = task, task.out
        self.table = pq.read_table(Path(self.out.dir, clean_name(task.name)))
        self.ids: list[str] = self.table.column("id").to_pylist()
        self.domains: list[str] = self.table.column("domain").to_pylist()
        self.langs: list[str] = self.table.column("lang").to_pylist()
        self.info = load_info(self.out, task.name)
        self.final = np.zeros(len(self.ids), FINAL)
        self.final["state"] = np.where(column(self.table, "version") == 0, STAYS, GONE)
        self.final["bytes"], self.final["units"] = column(self.table, "bytes_out"), column(self.table, "units_out")
        self.cut = Tally()

    @cached_property
    def texts(self) -> CorpusTexts:
        return CorpusTexts(self.task.texts)

    @cached_property
    def removals(self) -> NDArray[Any]:
        return np.load(self.out.dir / REMOVALS, mmap_mode="r")

    @cached_property
    def population(self) -> Population:
        return Population.ids_only(self.out)

    def write(self) -> dict[str, Any]:
        rows = sorted([*self._removed(), *self._all_cuts()], key=lambda row: (row.row, row.start))
        clean_bytes, clean_units = column(self.table, "bytes_out"), column(self.table, "units_out")
        gone = {}
        name = decisions_name(self.task.name)
        temp = self.out.temp(name)
        try:
            with RowWriter(temp, DECISIONS) as writer:
                for row in rows:
                    if row.action == "remove":
                        gone[row.row] = row.rule
                    writer.add(
                        row.row, self.ids[row.row], row.action, row.rule, row.version, row.score, row.kept_id,
                        row.spans, row.spans_total, row.detail, row.start, row.end,
                    )  # fmt: skip
            with self.out.shard(final_name(self.task.name)) as path:
                np.save(path, self.final, allow_pickle=False)
            facts = self._facts(gone, clean_bytes, clean_units)
            return self.out.finish(name, temp, **facts)
        finally:
            temp.unlink(missing_ok=True)

    def _mine(self, array: NDArray[Any]) -> NDArray[Any]:
        """Rows of this shard in an array sorted by position."""
        first, last = np.searchsorted(array["position"], self.task.bases)
        return np.array(array[first:last])

    def _removed(self) -> Iterator[_Row]:
        near = self._mine(self.removals)
        yield from self._near_rows(self.info["row"][near["position"] - self.task.bases[0]].tolist(), near)
        yield from self._exact_rows()
        if self.task.taken:
            for row in np.flatnonzero(self.final["state"] == STAYS).tolist():
                if self.ids[row] in self.task.taken:
                    self.final["state"][row] = TAKEN
                    yield _Row(row, "remove", TAKEDOWN, 1, 1.0, "", [], 0, "asked for by id")

    def _exact_rows(self) -> Iterator[_Row]:
        """Duplicates of a document that stays; or of one that goes itself: then they go for the same reason."""
        task = self.task
        if not task.partitions:
            return
        kept_ids = duplicates_of(self.out, task.name, task.ordinal, task.partitions, self.ids)
        if not kept_ids:
            return
        removed_ids = np.load(self.out.dir / REMOVED_IDS, mmap_mode="r")
        moved: list[int] = []
        reasons: list[int] = []
        place = {int(row): index for index, row in enumerate(self.info["row"])} if kept_ids else {}
        for row, kept_id in sorted(kept_ids.items()):
            found = find_id(removed_ids, kept_id)
            if found >= 0:
                moved.append(row)
                reasons.append(found)
            elif RULE not in task.undo:
                self.final["state"][row] = GONE
                size = int(self.info["characters"][place[row]])
                spans = [[0, size, 0, size]]
                yield _Row(row, "remove", RULE, VERSION, 1.0, kept_id, spans, 1, "same cleaned text")
        yield from self._near_rows(moved, self.removals[reasons])

    def _near_rows(self, rows: list[int], removals: NDArray[Any]) -> Iterator[_Row]:
        """Evidence of removals, each of the row at the same place; texts are those of `removals`."""
        for start in range(0, len(rows), 1024):
            part = removals[start : start + 1024]
            kept, removed = part["kept"].astype(np.int64), part["position"].astype(np.int64)
            spans, totals = span_arrays(
                self.texts.data, self.texts.offsets, kept, removed, width=self.task.width, most=SPANS,
                simplify=self.task.simplify, units=self.texts.units(),
            )  # fmt: skip
            names = self.population.ids(kept)
            for index, row in enumerate(rows[start : start + 1024]):
                total = int(totals[index])
                self.final["state"][row] = GONE
                yield _Row(
                    row, "remove", RULE_NAMES[part["rule"][index]], settings.VERSION, float(part["score"][index]),
                    names[index].tobytes().hex(), spans[index, : min(total, SPANS)].tolist(), total,
                )  # fmt: skip
            self.texts.release()

    def _all_cuts(self) -> Iterator[_Row]:
        """Evidence of passages and of lines of sites; a line gives way to a passage that it touches."""
        passages = list(self._cuts())
        yield from passages
        if not self.task.sites:
            return
        taken: dict[int, list[_Row]] = {}
        for passage in passages:
            if passage.action == "cut":
                taken.setdefault(passage.row, []).append(passage)
        last = -1
        for cut in np.load(self.out.dir / site_cuts_name(self.task.name), mmap_mode="r"):
            row, start, end = int(cut["row"]), int(cut["start"]), int(cut["end"])
            touched = any(other.start <= end and start <= other.end for other in taken.get(row, ()))
            if touched or self.final["state"][row] != STAYS:
                continue
            size, at = int(cut["to"] - cut["from"]), int(cut["kept_from"])
            pages, total, units = int(cut["pages"]), int(cut["total"]), int(cut["units"])
            self.final["bytes"][row] -= end - start
            self.final["units"][row] -= units
            counts = {"documents": int(row != last), "bytes": end - start, "units": units}
            self.cut.add(SITE_RULE, self.langs[row], self.domains[row], **counts)
            last = row
            yield _Row(
                row, "cut", SITE_RULE, SITE_VERSION, round(pages / total, 4), self.population.id(int(cut["kept"])),
                [[int(cut["from"]), int(cut["to"]), at, at + size]], 1, f"on {pages:,} of {total:,} pages of the site",
                start, end,
            )  # fmt: skip

    def _cuts(self) -> Iterator[_Row]:
        """Evidence of passages, and what is left of the texts."""
        cuts = self._mine(np.load(self.out.dir / CUTS, mmap_mode="r"))
        for position in np.unique(cuts["position"]).tolist():
            mine = cuts[cuts["position"] == position]
            row = int(self.info["row"][position - self.task.bases[0]])
            if self.final["state"][row] != STAYS:
                continue
            text = self.texts.bytes_of(position)
            counts = characters_before(text)
            cutting = self.task.cutting and self.domains[row] not in self.task.uncut
            pieces, at = [], 0
            for cut in mine:
                other = characters_before(self.texts.bytes_of(int(cut["kept"])))
                start, end = int(cut["start"]), int(cut["end"])
                span = [counts[start], counts[end], other[cut["kept_start"]], other[cut["kept_end"]]]
                yield _Row(
                    row, "cut" if cutting else "report", RULE_NAMES[cut["rule"]], settings.VERSION, 1.0,
                    self.population.id(int(cut["kept"])), [[int(edge) for edge in span]], 1, "", start, end,
                )  # fmt: skip
                pieces.append(text[at:start].tobytes())
                at = end
            if cutting:
                left = b"".join([*pieces, text[at:].tobytes()])
                units = count_units(left)
                lost = int(self.final["bytes"][row]) - len(left), int(self.final["units"][row]) - units
                self.cut.add(
                    RULE_NAMES[mine["rule"][0]], self.langs[row], self.domains[row], bytes=lost[0], units=lost[1]
                )
                self.final["bytes"][row], self.final["units"][row] = len(left), units
        if len(cuts):
            self.texts.release()

    def _facts(
        self, gone: dict[int, str], clean_bytes: NDArray[np.int64], clean_units: NDArray[np.int64]
    ) -> dict[str, Any]:
        stays = self.final["state"] == STAYS
        came_in = column(self.table, "bytes_in"), column(self.table, "units_in")
        dropped = Tally()
        for row, rule in gone.items():
            dropped.add(
                rule, self.langs[row], self.domains[row], bytes=int(came_in[0][row]), units=int(came_in[1][row])
            )
        sums = {
            "kept_in": self._tally(stays, *came_in),
            "kept_clean": self._tally(stays, clean_bytes, clean_units),
            "kept_out": self._tally(stays, self.final["bytes"], self.final["units"]),
        }
        planned = self._tally(self.final["state"] != GONE, self.final["bytes"], self.final["units"])
        weights = {domain: row["bytes"] + row["documents"] for domain, row in planned.by(1).items()}
        return {
            "dropped": dropped.rows,
            "cut": self.cut.rows,
            **{name: tally.rows for name, tally in sums.items()},
            "weights": weights,
        }

    def _tally(self, rows: NDArray[np.bool_], sizes: NDArray[np.int64], units: NDArray[np.int64]) -> Tally:
        """Sums by lang|domain of some rows."""
        langs, domains = (self.table.column(name).combine_chunks().dictionary_encode() for name in ("lang", "domain"))
        langs, domains = _one(langs), _one(domains)
        width = max(1, len(domains.dictionary))
        code = langs.indices.to_numpy()[rows].astype(np.int64) * width + domains.indices.to_numpy()[rows]
        found, inverse = np.unique(code, return_inverse=True)
        sums = np.zeros((found.size, 3), np.int64)
        np.add.at(sums, inverse, np.column_stack([np.ones(code.size, np.int64), sizes[rows], units[rows]]))
        tally = Tally()
        for key, (documents, size, count) in zip(found.tolist(), sums.tolist(), strict=True):
            lang, domain = langs.dictionary[key // width].as_py(), domains.dictionary[key % width].as_py()
            tally.add(lang, domain, documents=documents, bytes=size, units=count)
        return tally


def _one(array: Any) -> pa.DictionaryArray:
    return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array


def sorted_ids(ids: NDArray[np.uint8]) -> NDArray[Any]:
    """Ids, uint8 [n, 16], as rows of IDS in order."""
    halves = ids.view(">u8").reshape(-1, 2)
    order = np.lexsort((halves[:, 1], halves[:, 0]))
    made = np.zeros(len(halves), IDS)
    made["high"], made["low"], made["index"] = halves[order, 0], halves[order, 1], order
    return made


def find_id(ids: NDArray[Any], identifier: str) -> int:
    """The index of a 32-digit id in rows of IDS, or -1."""
    high, low = np.uint64(int(identifier[:16], 16)), np.uint64(int(identifier[16:], 16))
    at = int(np.searchsorted(ids["high"], high))
    while at < len(ids) and ids["high"][at] == high:
        if ids["low"][at] == low:
            return int(ids["index"][at])
        at += 1
    return -1
