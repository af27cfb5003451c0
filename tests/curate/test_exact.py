import os
import tempfile
from pathlib import Path

import numpy as np
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.core.documents import document_id
from headwater.core.shards import ShardFolder
from headwater.curate.config import DedupConfig
from headwater.curate.exact import KeyCollector, MatchTask, duplicates_of, match_partition, partition_count

IN_MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # many small files, each synced
Documents = list[tuple[str, str]]  # text, domain


def survivors(shards: list[Documents], partitions: int) -> dict[tuple[int, int], str]:
    """(shard, row) of every duplicate -> id of the document kept for it, by the real files."""
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as folder:
        out = ShardFolder(Path(folder))
        names = tuple(f"s-{number:05d}" for number in range(len(shards)))
        ids = [
            [document_id("s", name, row) for row in range(len(rows))] for name, rows in zip(names, shards, strict=True)
        ]
        for name, rows, own in zip(names, shards, ids, strict=True):
            keys = KeyCollector(DedupConfig())
            for row, (text, domain) in enumerate(rows):
                keys.add(row, own[row], domain, xxhash.xxh3_128_digest(text.encode()))
            keys.write(out, name)
        for number in range(partitions):
            match_partition(MatchTask(number, partitions, names, out))
        return {
            (ordinal, row): kept
            for ordinal, name in enumerate(names)
            for row, kept in duplicates_of(out, name, ordinal, partitions, ids[ordinal]).items()
        }


def expected(shards: list[Documents]) -> dict[tuple[int, int], str]:
    """The same by brute force."""
    order = ("books", "papers", "code", "docs", "other", "web")
    first: dict[str, tuple[int, int, int]] = {}
    for ordinal, rows in enumerate(shards):
        for row, (text, domain) in enumerate(rows):
            place = (order.index(domain), ordinal, row)
            first[text] = min(first.get(text, place), place)
    kept = {text: document_id("s", f"s-{ordinal:05d}", row) for text, (_, ordinal, row) in first.items()}
    return {
        (ordinal, row): kept[text]
        for ordinal, rows in enumerate(shards)
        for row, (text, domain) in enumerate(rows)
        if first[text] != (order.index(domain), ordinal, row)
    }


ROWS = st.lists(st.tuples(st.sampled_from("abcdefg"), st.sampled_from(["books", "web", "code"])), max_size=8)


@settings(max_examples=25)
@given(st.lists(ROWS, min_size=1, max_size=4), st.integers(1, 3))
def test_each_text_stays_once_by_priority_then_order(shards: list[Documents], partitions: int) -> None:
    assert survivors(shards, partitions) == expected(shards)


def test_books_win_over_the_web_and_the_first_of_equals_wins() -> None:
    web, books = [("same", "web"), ("same", "web"), ("other", "web")], [("same", "books")]
    kept = survivors([web, books], 1)
    assert kept == {(0, 0): document_id("s", "s-00001", 0), (0, 1): document_id("s", "s-00001", 0)}
    assert survivors([web], 1) == {(0, 1): document_id("s", "s-00000", 0)}


def test_partitions_keep_within_the_memory_they_are_given() -> None:
    assert partition_count(0, 10) == 1
    assert partition_count(10, 10) == 1
    assert partition_count(11, 10) == 2
    rng = np.random.default_rng(0)
    texts = [(str(number), "web") for number in rng.integers(0, 3000, 4000)]
    assert survivors([texts[:2500], texts[2500:]], 7) == survivors([texts[:2500], texts[2500:]], 1)
