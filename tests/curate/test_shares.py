"""One large file read by several workers: the same bytes as one reads, whatever the file is and whatever is wrong."""

from __future__ import annotations

import bz2
import gzip
import os
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from headwater.core.documents import Document
from headwater.core.executor import InlineExecutor
from headwater.core.files import free_bytes
from headwater.core.progress import SILENT
from headwater.core.shards import ShardFolder
from headwater.core.stage import StageContext
from headwater.curate.collect import CollectTask
from headwater.curate.config import CollectConfig
from headwater.curate.share_tasks import Piece, Scratch, ShareTask, kept_sizes, read_share
from headwater.curate.shares import collect_all, cut_shards, share_counts, with_room
from headwater.curate.sources import plan_shards
from headwater.curate.stage import collect_into
from tests.curate.helpers import Told, collect, hashes, sentence
from tests.curate.test_streams import zst
from tests.curate.test_warc import GOOD, WET, record, response
from tests.curate.test_wikipedia import HEAD, page

SHARD_BYTES = 2000  # so blocks are of 500 bytes, and a document shard is closed at 8,000 bytes of text
LONG_AGO = 10**18
NOISE = random.Random(3)


class Three(InlineExecutor):
    """Work for three workers, done by one process."""

    workers = 3


def rows(count: int) -> bytes:
    """JSON Lines in Chinese and English of many lengths, with lines of every bad kind between them."""
    draw = random.Random(count)
    bad = [b"", b"not json", b"[1]", b'{"text": "\xff"}', b'{"other": 1}', b'{"text": null}', b'{"text": "', b"   "]
    lines = []
    for number in range(count):
        text = f"{draw.randbytes(20).hex()} " + sentence(number) * draw.choice([1, 1, 2, 6])
        lines.append(b'{"text": "%s", "id": %d}' % (text.encode(), number))
        if number % 7 == 0:
            lines.append(bad[number // 7 % len(bad)])
    return b"\n".join(lines) + b"\n"


def members(data: bytes, size: int, pack: Callable[[bytes], bytes] = gzip.compress) -> bytes:
    return b"".join(pack(data[at : at + size]) for at in range(0, len(data), size))


def spoilt(data: bytes, at: float, count: int = 30) -> bytes:
    place = int(len(data) * at)
    return data[:place] + b"\xff" * count + data[place + count :]


def warc_spoilt_at(*numbers: int) -> bytes:
    """The archive with damage in the middle of these members."""
    packed = list(map(gzip.compress, RECORDS))
    return b"".join(spoilt(data, 0.5, 9) if number in numbers else data for number, data in enumerate(packed))


ROWS = rows(80)
PAGES = [
    page(f"页{n}", f"'''第{n}页'''，[[链接]]。" * (1 + n % 9) + NOISE.randbytes(60).hex(), namespace=n % 5 // 4)
    for n in range(60)
]
DUMP = (HEAD + "".join(PAGES) + "</mediawiki>").encode()
BROKEN_DUMP = DUMP.replace(b"</page>", b"", 10).replace(b"<title>", b"<titel>", 15)
RECORDS = [
    kind
    for n in range(20)
    for kind in (
        record(b"request", b"GET /"),
        response(
            b"<html><body><main><p>"
            + sentence(n).encode() * 9
            + NOISE.randbytes(99).hex().encode()
            + b"</p></main></body></html>"
        ),
        WET,
        response(b"", b"301 Moved"),
    )
]
WARC = b"".join(RECORDS)
STRAY = b"stray\r\n" * 200 + b"".join(RECORDS[:30]) + b"between" * 300 + record(b"response", b"x", 999) + WARC
WARC_GZ = b"".join(map(gzip.compress, RECORDS))

FILES: dict[str, tuple[str, bytes, dict[str, Any]]] = {
    "gzip": ("a.jsonl.gz", gzip.compress(ROWS), {}),
    "gzip in members": ("a.jsonl.gz", members(ROWS, 700), {}),
    "gzip cut off": ("a.jsonl.gz", gzip.compress(ROWS)[:-500], {}),
    "gzip spoilt": ("a.jsonl.gz", spoilt(gzip.compress(ROWS), 0.7), {}),
    "gzip and garbage": ("a.jsonl.gz", gzip.compress(ROWS) + b"garbage!", {}),
    "zstd": ("a.jsonl.zst", zstandard.compress(ROWS), {}),
    "zstd in frames": ("a.jsonl.zst", members(ROWS, 3000, zst), {}),
    "zstd cut off": ("a.jsonl.zst", members(ROWS, 3000, zst)[:-900], {}),
    "zstd spoilt": ("a.jsonl.zst", spoilt(members(ROWS, 3000, zst), 0.6), {}),
    "lines over the cap": ("a.jsonl.gz", gzip.compress(ROWS), {"max_document_bytes": 400}),
    "no newline at the end": ("a.jsonl.gz", gzip.compress(ROWS[:-1]), {}),
    "rows kept": ("a.jsonl.gz", gzip.compress(ROWS), {"keep_rows": True}),
    "JSON Lines without a name": ("a.gz", gzip.compress(ROWS), {"kind": "jsonl"}),
    "lines of text": ("a.txt.gz", gzip.compress(ROWS), {"kind": "text", "document": "line"}),
    "lines of text cut off": ("a.txt.gz", gzip.compress(ROWS)[:-900], {"kind": "text", "document": "line"}),
    "nothing but bad lines": ("a.jsonl.gz", gzip.compress(NOISE.randbytes(9000).replace(b"{", b"\n")), {}),
    "a bomb": ("a.jsonl.gz", gzip.compress(b'{"text": "' + b"z" * 10**6 + b'"}\n' + NOISE.randbytes(4000)), {}),
    "no gzip at all": ("a.txt.gz", NOISE.randbytes(9000), {"kind": "text", "document": "line"}),
    "Parquet that is called JSON Lines": ("a.jsonl", b"PAR1" + bytes(9000), {}),
    "dump": ("wiki.xml.bz2", bz2.compress(DUMP), {"kind": "wikipedia"}),
    "dump in streams": ("wiki.xml.bz2", members(DUMP, 3000, bz2.compress), {"kind": "wikipedia"}),
    "dump not compressed": ("wiki.xml", DUMP, {"kind": "wikipedia"}),
    "dump of broken pages": ("wiki.xml.bz2", bz2.compress(BROKEN_DUMP), {"kind": "wikipedia"}),
    "dump cut off": ("wiki.xml.gz", gzip.compress(DUMP)[:-300], {"kind": "wikipedia"}),
    "no dump": ("wiki.xml.gz", gzip.compress(NOISE.randbytes(9000)), {"kind": "wikipedia"}),
    "warc": ("a.warc", WARC, {}),
    "warc in members": ("a.warc.gz", WARC_GZ, {}),
    "warc in one member": ("a.warc.gz", gzip.compress(WARC), {"kind": "warc"}),
    "warc cut off": ("a.warc.gz", WARC_GZ[:-100], {}),
    "warc spoilt": ("a.warc.gz", warc_spoilt_at(33), {}),
    "warc spoilt twice": ("a.warc.gz", warc_spoilt_at(1, 21, 22, 65), {}),
    "warc with stray bytes": ("a.warc.zst", zstandard.compress(STRAY), {}),
    "warc with a record over the cap": ("a.warc", WARC + GOOD * 3, {"max_document_bytes": 600}),
    "no warc": ("a.warc.gz", gzip.compress(NOISE.randbytes(20_000)), {"kind": "warc"}),
}


def config_of(root: Path, name: str, settings: dict[str, Any]) -> CollectConfig:
    source = {"name": "big", "paths": [name], "domain": "web", **settings}
    return CollectConfig(root=str(root), shard_bytes=SHARD_BYTES, sources=(source,))


def put(root: Path, name: str, data: bytes) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    (root / name).write_bytes(data)
    return root / name


def outcome(out: Path, config: CollectConfig, executor: Any, kept: Path | None = None) -> tuple[Any, dict[str, str]]:
    """(counts, name -> content and facts) of what is collected."""
    out.mkdir(parents=True)
    folder = ShardFolder(out)
    counts = collect_into(folder, config, StageContext(out / "w", executor, SILENT), kept)
    return counts, {name: (folder.done(name) or {}) for name in folder.shards()}


@pytest.mark.parametrize("name", FILES)
def test_what_several_workers_read_is_what_one_reads(name: str, tmp_path: Path) -> None:
    file, data, settings = FILES[name]
    put(tmp_path, file, data)
    config = config_of(tmp_path, file, settings)
    (plan,) = plan_shards(config)
    folder = ShardFolder(tmp_path / "told")
    assert share_counts([CollectTask(plan, folder, SHARD_BYTES)], 3) == [3]
    assert outcome(tmp_path / "three", config, Three()) == outcome(tmp_path / "one", config, InlineExecutor())
    left = [path.name for path in (tmp_path / "three" / "parts").glob("*")]
    assert left == []


def test_several_shards_are_cut_where_one_reader_cuts_them(tmp_path: Path) -> None:
    put(tmp_path, "a.jsonl.gz", gzip.compress(ROWS))
    counts, made = outcome(tmp_path / "three", config_of(tmp_path, "a.jsonl.gz", {}), Three())
    documents = [name for name in made if name.startswith("documents/")]
    assert len(documents) > 2
    assert counts["documents"] == 80
    assert counts["quarantined"] > 5


def test_processes_share_a_file_and_a_kill_at_any_moment_changes_nothing(tmp_path: Path, killer: Any) -> None:
    put(tmp_path, "a.jsonl.zst", zstandard.compress(rows(1200)))
    script = tmp_path / "run.py"
    script.write_text(SCRIPT.format(root=str(Path(__file__).resolve().parents[2])))
    killer.kill_until_done(
        [sys.executable, str(script), tmp_path / "killed", tmp_path], kills=3, shortest=0.4, longest=1.5
    )
    config = config_of(tmp_path, "a.jsonl.zst", {})
    assert hashes(collect(tmp_path / "killed", config)) == hashes(collect(tmp_path / "one", config))


SCRIPT = """
import sys
from pathlib import Path
sys.path.insert(0, {root!r})
from headwater.core.executor import ProcessExecutor
from tests.curate.helpers import collect
from tests.curate.test_shares import config_of
with ProcessExecutor(3) as pool:
    collect(Path(sys.argv[1]), config_of(Path(sys.argv[2]), "a.jsonl.zst", {{}}), pool)
"""


def test_another_number_of_workers_after_a_kill_changes_nothing(tmp_path: Path) -> None:
    put(tmp_path, "a.jsonl.gz", gzip.compress(ROWS))
    config = config_of(tmp_path, "a.jsonl.gz", {})
    (plan,) = plan_shards(config)
    out = tmp_path / "three"
    out.mkdir()
    for number in range(5):  # four of five shares were read
        if number != 3:
            read_share(ShareTask(CollectTask(plan, ShardFolder(out), SHARD_BYTES), number, 5))
    counts = collect_into(ShardFolder(out), config, StageContext(tmp_path, Three(), SILENT))
    found = {name: ShardFolder(out).done(name) for name in ShardFolder(out).shards()}
    assert (counts, found) == outcome(tmp_path / "one", config, InlineExecutor())


def test_a_share_that_was_read_is_not_read_again(tmp_path: Path) -> None:
    path = put(tmp_path, "a.jsonl.gz", gzip.compress(ROWS))
    (plan,) = plan_shards(config_of(tmp_path, "a.jsonl.gz", {}))
    task = ShareTask(CollectTask(plan, ShardFolder(tmp_path / "out"), SHARD_BYTES), 1, 3)
    facts = read_share(task)
    path.unlink()
    assert read_share(task) == facts
    assert facts["documents"] > 10


def test_a_file_that_changes_under_the_readers_is_read_again_by_one(tmp_path: Path) -> None:
    path = put(tmp_path, "a.jsonl.gz", gzip.compress(ROWS))
    config = config_of(tmp_path, "a.jsonl.gz", {})
    (plan,) = plan_shards(config)
    out = tmp_path / "three"
    out.mkdir()
    read_share(ShareTask(CollectTask(plan, ShardFolder(out), SHARD_BYTES), 1, 3))
    path.write_bytes(gzip.compress(rows(70)))
    task = CollectTask(plan, ShardFolder(out), SHARD_BYTES)
    collect_all([task], StageContext(tmp_path, Three(), SILENT))
    alone = CollectTask(plan, ShardFolder(tmp_path / "one"), SHARD_BYTES)
    collect_all([alone], StageContext(tmp_path, InlineExecutor(), SILENT))
    names = alone.out.shards()
    assert [task.out.done(name) for name in task.out.shards()] == [alone.out.done(name) for name in names]
    assert len(names) > 2


def test_a_shared_file_is_not_read_again_when_its_source_grows(tmp_path: Path) -> None:
    path = put(tmp_path / "in", "a.jsonl.gz", gzip.compress(ROWS))
    config = config_of(tmp_path / "in", "*", {})
    os.utime(path, ns=(LONG_AGO, LONG_AGO))
    kept = tmp_path / "kept"
    _, first = outcome(tmp_path / "first", config, Three(), kept)
    put(tmp_path / "in", "b.jsonl", b'{"text": "one more"}\n')
    plans = plan_shards(config)
    assert [plan.files[0].relative for plan in plans] == ["a.jsonl.gz", "b.jsonl"]
    told = Told()
    out = tmp_path / "grown"
    out.mkdir()
    collect_into(ShardFolder(out), config, StageContext(tmp_path / "first" / "w", Three(), told), kept)
    assert any("taken over" in line for line in told.lines)
    assert not any("is read by" in line for line in told.lines)
    documents = {name: facts for name, facts in first.items() if name.startswith("documents/big-00000")}
    assert {name: ShardFolder(out).done(name) for name in documents} == documents


def test_files_are_shared_when_workers_would_be_idle_and_not_otherwise(tmp_path: Path) -> None:
    data = gzip.compress(ROWS)
    for number in range(6):
        put(tmp_path, f"{number}.jsonl.gz", data)
    put(tmp_path, "small.jsonl.gz", gzip.compress(ROWS[:1500]))
    put(tmp_path, "lines.jsonl", bz2.compress(ROWS))
    put(tmp_path, "wiki.xml", bz2.compress(DUMP))
    put(tmp_path, "page.html", b"<html>" + b"x" * 4000)

    def counted(names: Sequence[str], workers: int, kind: str = "auto") -> list[int]:
        settings = {"paths": list(names), "kind": kind}
        plans = plan_shards(config_of(tmp_path, "", settings))
        return share_counts([CollectTask(plan, ShardFolder(tmp_path), SHARD_BYTES) for plan in plans], workers)

    names = [f"{number}.jsonl.gz" for number in range(6)]
    assert counted(names[:1], 1) == [1]
    assert counted(names[:1], 2) == [2]
    assert counted(names[:1], 200) == [16]
    assert counted(names[:2], 4) == [2, 2]
    assert counted(names, 6) == counted(names, 3) == [1] * 6
    assert counted(["small.jsonl.gz", "page.html"], 8) == [1, 1]
    assert counted(["0.jsonl.gz", "page.html"], 4)[0] == 4
    assert counted(["lines.jsonl"], 4) == [1]  # decompressing bzip2 is most of the work on lines, not on articles
    assert counted(["wiki.xml"], 4, "wikipedia") == [4]


def test_without_room_for_scratch_files_one_worker_reads(tmp_path: Path) -> None:
    put(tmp_path, "a.jsonl.gz", gzip.compress(ROWS))
    (plan,) = plan_shards(config_of(tmp_path, "a.jsonl.gz", {}))
    larger = replace(plan, files=(replace(plan.files[0], size=free_bytes(tmp_path) // 2),))
    for made, of, said in ((plan, 3, "by 3 workers"), (larger, 1, "by one worker")):
        told = Told()
        context = StageContext(tmp_path, Three(), told)
        assert with_room([CollectTask(made, ShardFolder(tmp_path), SHARD_BYTES)], [3], context) == [of]
        assert said in told.lines[0]
    most = replace(plan, files=(replace(plan.files[0], size=free_bytes(tmp_path) // 6),))  # of the room, decompressed
    tasks = [CollectTask(most, ShardFolder(tmp_path), SHARD_BYTES)] * 2
    assert with_room(tasks, [3, 3], StageContext(tmp_path, Three(), Told())) == [3, 1], "both read at the same time"


def test_a_block_of_tiny_documents_is_not_held_whole(tmp_path: Path) -> None:
    with Scratch(tmp_path / "a.arrow") as scratch:
        for number in range(10_000):
            scratch.add(3 if number < 9000 else 8, Document(str(number), "甲乙", "web"))
    assert scratch.blocks == [(3, 4096, 6 * 4096), (3, 4096, 6 * 4096), (3, 808, 6 * 808), (8, 1000, 6000)]
    assert kept_sizes(tmp_path / "a.arrow", 2).tolist() == [6] * 808


@given(st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=8), max_size=12), st.integers(1, 60))
def test_shards_end_with_the_document_that_fills_them(sizes: list[list[int]], limit: int) -> None:
    batches = [(0, at, len(batch), sum(batch)) for at, batch in enumerate(sizes)]
    cut = cut_shards(batches, limit, lambda share, batch: sizes[batch])
    expected: list[list[tuple[int, int]]] = [[]]
    filled = 0
    for at, batch in enumerate(sizes):
        for row, size in enumerate(batch):
            if filled >= limit:
                expected.append([])
                filled = 0
            expected[-1].append((at, row))
            filled += size

    def rows_of(piece: Piece) -> list[tuple[int, int]]:
        return [(piece.batch, row) for row in range(piece.start, piece.end)]

    assert [[row for piece in shard for row in rows_of(piece)] for shard in cut] == expected
