"""Lines that stand on many pages of one site: menus, notices, slogans. They belong to the site and to no page of it.

A site is the host of a document's address; documents without one are not looked at, nor are duplicates, which would
make every line of theirs frequent. Each shard's lines are hashed together with their site and sorted; ranges of hashes
are counted over all shards, a page (an address) counting once; then each shard cuts what is frequent. Memory is that of
one range, whatever the corpus.

    find_site_lines(config, population, removed, shards, context)
    np.load(out.dir / site_cuts_name("web-00000"))            # SITE_CUT, in order
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import xxhash
from numpy.typing import NDArray

from headwater.core.shards import ShardFolder
from headwater.core.stage import StageContext
from headwater.curate.attributes import texts_name
from headwater.curate.config import SiteLinesConfig
from headwater.curate.dedup.population import NO_NUMBER, Population
from headwater.curate.dedup.signatures import load_info
from headwater.curate.site_cuts import SITE_CUT, chosen_lines, cuts_of
from headwater.curate.site_kernels import LINE, split_lines
from headwater.curate.texts import ChangedTexts, column_bytes

RULE, VERSION = "site.line", 1
BATCH_BYTES = 8 << 20
STAYS = "work/sites/stays.npy"

SEEN = np.dtype(
    [("key", "<u8"), ("page", "<u8"), ("position", "<u4"), ("start", "<u4"), ("characters", "<u4"), ("length", "<u4")]
)
"""A line on a page; `start` in bytes, `characters` before it. Sorted by key, page, position."""

PAGE = np.dtype([("site", "<u8"), ("page", "<u8")])
FREQUENT = np.dtype(
    [("key", "<u8"), ("pages", "<u4"), ("first", "<u4"), ("first_at", "<u4"), ("last", "<u4"), ("last_at", "<u4")]
)
"""A line on many pages: how many, and the positions of the first and last document with it, with the character it
begins at."""

SITE = np.dtype([("site", "<u8"), ("pages", "<u4")])
_HOST = re.compile(r"(?:[a-z][a-z0-9+.-]*:)?//(?:[^/?#@]*@)?(?:www\.)?([^/?#:@]+)", re.IGNORECASE)


def site_of(url: str) -> str:
    """The host an address names, without `www.`; "" if it names none."""
    found = _HOST.match(url)
    return found[1].lower().rstrip(".") if found else ""


def site_cuts_name(shard: str) -> str:
    return f"work/sites/cuts/{shard}.npy"


def _seen_name(shard: str, what: str) -> str:
    return f"work/sites/{what}/{shard}.npy"


def _part_name(number: int, what: str) -> str:
    return f"work/sites/{what}-{number:05d}.npy"


@dataclass(frozen=True, slots=True)
class SiteTask:
    """One shard; `parts` are the numbers of ranges of lines and of sites, 0 while nothing is counted."""

    name: str
    documents: Path
    base: int
    config: SiteLinesConfig
    out: ShardFolder
    parts: tuple[int, int] = (0, 0)


def find_site_lines(
    config: SiteLinesConfig,
    population: Population,
    removed: NDArray[np.uint32],
    shards: Sequence[tuple[str, Path]],
    context: StageContext,
) -> bool:
    """Write the cuts of every shard; returns whether there may be any. `removed` are positions that go."""
    out = population.out
    if not config.enabled:
        return False
    if out.done(STAYS) is None:
        stays = population.number != NO_NUMBER
        stays[removed] = False
        with out.shard(STAYS) as path:
            np.save(path, stays, allow_pickle=False)
    run = context.executor.map
    tasks = [
        SiteTask(name, path, int(base), config, out)
        for (name, path), base in zip(shards, population.bases[:-1], strict=True)
    ]
    seen = list(run(survey, tasks))
    lines, pages = (sum(facts[what] for facts in seen) for what in ("lines", "pages"))
    if not lines:
        return False
    parts = tuple(-(-count // config.lines_in_memory) for count in (lines, pages))
    names = tuple(name for name, _ in shards)
    for what, count in (("lines", parts[0]), ("pages", parts[1])):
        list(run(count_part, [CountTask(what, number, count, names, config.min_pages, out) for number in range(count)]))
    tasks = [SiteTask(task.name, task.documents, task.base, config, out, (parts[0], parts[1])) for task in tasks]
    return sum(facts["cuts"] for facts in run(cut_shard, tasks)) > 0


@dataclass(frozen=True, slots=True)
class _Texts:
    """Some documents of a shard that have a site: positions, addresses, and their texts one after the other."""

    positions: NDArray[np.int64]
    rows: list[int]
    urls: list[str]
    data: NDArray[np.uint8]
    offsets: NDArray[np.int64]

    @property
    def sites(self) -> NDArray[np.uint64]:
        return np.array([xxhash.xxh3_64_intdigest(site_of(url).encode()) for url in self.urls], np.uint64)

    @property
    def pages(self) -> NDArray[np.uint64]:
        return np.array([xxhash.xxh3_64_intdigest(url.encode()) for url in self.urls], np.uint64)


def _batches(task: SiteTask, wanted: NDArray[np.bool_]) -> Iterator[_Texts]:
    """Cleaned texts of documents whose place among those that cleaning left is marked, and that have a site."""
    rows = np.array(load_info(task.out, task.name)["row"], np.int64)
    changed = ChangedTexts(task.out.dir / texts_name(task.name))
    with pq.ParquetFile(task.documents) as file:
        start = 0
        for group in range(file.num_row_groups):
            end = start + file.metadata.row_group(group).num_rows
            places = np.arange(*np.searchsorted(rows, [start, end]))
            places = places[wanted[places]]
            head = file.read_row_group(group, columns=["url", "domain"])
            urls, domains = (head.column(name).to_pylist() for name in ("url", "domain"))
            here = [
                (place, row)
                for place, row in zip(places.tolist(), rows[places].tolist(), strict=True)
                if domains[row - start] in task.config.domains and site_of(urls[row - start])
            ]
            texts: list[Any] = []
            if here:
                texts = column_bytes(file.read_row_group(group, columns=["text"]).column("text"))
            begin = size = 0
            found = []
            for number, (_, row) in enumerate(here):
                edited = changed.get(row)
                found.append(texts[row - start] if edited is None else edited)
                size += len(found[-1])
                if size >= BATCH_BYTES or number == len(here) - 1:
                    part = here[begin : number + 1]
                    offsets = np.concatenate([[0], np.cumsum([len(text) for text in found], dtype=np.int64)])
                    positions = task.base + np.array([place for place, _ in part], np.int64)
                    yield _Texts(
                        positions, [row for _, row in part], [urls[row - start] for _, row in part],
                        np.frombuffer(b"".join(found), np.uint8), offsets,
                    )  # fmt: skip
                    begin, size, found = number + 1, 0, []
            start = end


def _staying(task: SiteTask) -> NDArray[np.bool_]:
    count = len(load_info(task.out, task.name))
    return np.array(np.load(task.out.dir / STAYS, mmap_mode="r")[task.base : task.base + count])


def survey(task: SiteTask) -> dict[str, Any]:
    """Write the lines and pages of one shard, sorted, unless that was done. Returns how many there are."""
    name = _seen_name(task.name, "pages")
    if (facts := task.out.done(name)) is not None:
        return facts
    seen, pages = [np.empty(0, SEEN)], [np.empty(0, PAGE)]
    for texts in _batches(task, _staying(task)):
        lines = split_lines(texts.data, texts.offsets, texts.sites)
        lines = lines[lines["kind"] == LINE]
        of_text = texts.pages
        page = np.empty(len(of_text), PAGE)
        page["site"], page["page"] = texts.sites, of_text
        pages.append(page)
        rows = np.empty(len(lines), SEEN)
        rows["key"], rows["page"] = lines["key"], of_text[lines["text"]]
        rows["position"] = texts.positions[lines["text"]]
        for field in ("start", "characters", "length"):
            rows[field] = lines[field]
        seen.append(_first_of_each(rows, "key", "page"))
    lines_found = _first_of_each(np.concatenate(seen), "key", "page")
    pages_found = _first_of_each(np.concatenate(pages), "site", "page")
    with task.out.shard(_seen_name(task.name, "lines")) as path:
        np.save(path, lines_found, allow_pickle=False)
    facts = {"lines": len(lines_found), "pages": len(pages_found)}
    with task.out.shard(name, **facts) as path:
        np.save(path, pages_found, allow_pickle=False)
    return facts


def _first_of_each(rows: NDArray[Any], *fields: str) -> NDArray[Any]:
    """Rows sorted by the fields; of equal ones the first, which has the smallest position."""
    rows = rows[np.lexsort(tuple(rows[field] for field in reversed(fields)))]  # stable
    new = np.ones(len(rows), np.bool_)
    new[1:] = np.logical_or.reduce([rows[field][1:] != rows[field][:-1] for field in fields])
    return rows[new]


@dataclass(frozen=True, slots=True)
class CountTask:
    """One of `count` ranges of lines (or of sites, for `what` "pages") over all shards."""

    what: str
    number: int
    count: int
    shards: tuple[str, ...]
    min_pages: int
    out: ShardFolder


def count_part(task: CountTask) -> dict[str, Any]:
    """Count the pages of each line, or of each site, in a range, and keep those with enough, unless that was done."""
    name = _part_name(task.number, task.what)
    if (facts := task.out.done(name)) is not None:
        return facts
    key = "key" if task.what == "lines" else "site"
    low, high = task.number * 2**64 // task.count, (task.number + 1) * 2**64 // task.count
    parts = []
    for shard in task.shards:
        rows = np.load(task.out.dir / _seen_name(shard, task.what), mmap_mode="r")
        first = np.searchsorted(rows[key], np.uint64(low))
        last = len(rows) if high == 2**64 else np.searchsorted(rows[key], np.uint64(high))
        parts.append(np.array(rows[first:last]))
    rows = _first_of_each(np.concatenate(parts), key, "page")
    if key == "key":
        rows = rows[np.lexsort((rows["position"], rows["key"]))]
    begins = np.flatnonzero(np.concatenate([np.ones(min(1, len(rows)), np.bool_), rows[key][1:] != rows[key][:-1]]))
    ends = np.append(begins[1:], len(rows))[: len(begins)]
    many = ends - begins >= task.min_pages
    begins, ends = begins[many], ends[many]
    made = np.empty(len(begins), FREQUENT if key == "key" else SITE)
    made[key], made["pages"] = rows[key][begins], ends - begins
    if key == "key":
        for name_of, places in (("first", begins), ("last", ends - 1)):
            made[name_of], made[f"{name_of}_at"] = rows["position"][places], rows["characters"][places]
    with task.out.shard(name, rows=len(made)) as path:
        np.save(path, made, allow_pickle=False)
    return task.out.done(name) or {}


def _look_up(keys: NDArray[np.uint64], what: str, parts: int, out: ShardFolder) -> NDArray[Any]:
    """Rows of the counted ranges that have one of the keys, which are sorted; sorted by key."""
    field = "key" if what == "lines" else "site"
    found = [np.empty(0, FREQUENT if what == "lines" else SITE)]
    for number in range(parts):
        table = np.load(out.dir / _part_name(number, what), mmap_mode="r")
        low, high = number * 2**64 // parts, (number + 1) * 2**64 // parts
        first = np.searchsorted(keys, np.uint64(low))
        last = len(keys) if high == 2**64 else np.searchsorted(keys, np.uint64(high))
        found.append(np.array(table[np.isin(table[field], keys[first:last])]))
    return np.concatenate(found)


def cut_shard(task: SiteTask) -> dict[str, Any]:
    """Write what is cut from the documents of one shard, unless that was done. Returns how many lines that are."""
    name = site_cuts_name(task.name)
    if (facts := task.out.done(name)) is not None:
        return facts
    seen = np.load(task.out.dir / _seen_name(task.name, "lines"), mmap_mode="r")
    frequent = _look_up(np.unique(seen["key"]), "lines", task.parts[0], task.out)
    sites = _look_up(
        np.unique(np.load(task.out.dir / _seen_name(task.name, "pages"), mmap_mode="r")["site"]),
        "pages", task.parts[1], task.out,
    )  # fmt: skip
    wanted = _staying(task)
    wanted &= np.isin(
        task.base + np.arange(len(wanted)), seen["position"][np.isin(seen["key"], frequent["key"])]
    ) if len(frequent) else False  # fmt: skip
    made = [np.empty(0, SITE_CUT)]
    for texts in _batches(task, wanted) if wanted.any() else ():
        lines = split_lines(texts.data, texts.offsets, texts.sites)
        totals = _matched(sites, "site", texts.sites)[1]["pages"]
        there, rows = _matched(frequent, "key", lines["key"])
        share = rows["pages"] / np.maximum(1, totals[lines["text"]])
        often = there & (lines["kind"] == LINE) & (share >= task.config.min_share)
        chosen = chosen_lines(lines, often, task.config.min_words)
        for place in np.unique(lines["text"][chosen]).tolist():
            mine = lines["text"] == place
            text = texts.data[texts.offsets[place] : texts.offsets[place + 1]].tobytes()
            made.append(
                cuts_of(text, texts.rows[place], int(texts.positions[place]), int(totals[place]), lines[mine],
                        chosen[mine], rows[mine])
            )  # fmt: skip
    cuts = np.concatenate(made)
    with task.out.shard(name, cuts=len(cuts)) as path:
        np.save(path, cuts, allow_pickle=False)
    return {"cuts": len(cuts)}


def _matched(table: NDArray[Any], field: str, keys: NDArray[np.uint64]) -> tuple[NDArray[np.bool_], NDArray[Any]]:
    """Whether each key is in a sorted table, and its row (another one, zeros where the table is empty, if not)."""
    if not len(table):
        return np.zeros(len(keys), np.bool_), np.zeros(len(keys), table.dtype)
    places = np.minimum(np.searchsorted(table[field], keys), len(table) - 1)
    rows = table[places]
    there = rows[field] == keys
    rows["pages"][~there] = 0
    return there, rows
