"""A source that grows: what was read before is not read again, and the result is as if it had been."""

from __future__ import annotations

import gzip
import os
import random
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from headwater.core.artifacts import Artifact, ArtifactStore, fingerprint
from headwater.core.config import identity
from headwater.core.executor import InlineExecutor
from headwater.core.progress import SILENT
from headwater.core.rawinput import HashCache
from headwater.core.stage import StageContext
from headwater.curate.config import CollectConfig
from headwater.curate.identity import raw_inputs
from headwater.curate.sources import SourceFile, _group
from headwater.curate.stage import build_collect
from tests.curate.helpers import hashes, sentence, write_rows

LONG_AGO = 10**18


def collected(workspace: Path, root: Path, shard_bytes: int = 4000) -> Artifact:
    """The artifact, with the hashes of files taken from the workspace as the pipeline does."""
    config = CollectConfig(
        root=str(root), shard_bytes=shard_bytes, sources=({"name": "web", "paths": ["in"], "domain": "web"},)
    )
    with HashCache(workspace) as cache:
        inputs = {"raw": raw_inputs(config, cache)}
    key = fingerprint("collect", 1, identity(config), inputs)
    context = StageContext(workspace, InlineExecutor(), SILENT)
    with ArtifactStore(workspace).writer("collect", key, version=1, identity=identity(config), inputs=inputs) as out:
        return out.commit(build_collect(config, {}, out, context))


def fill(root: Path, names: list[str]) -> None:
    for name in names:
        number = int(name[:3])
        path = write_rows(root / "in" / name, [{"text": sentence(10 * number + n)} for n in range(10)])
        os.utime(path, ns=(LONG_AGO, LONG_AGO))


def test_a_new_file_is_read_and_the_others_are_not(tmp_path: Path) -> None:
    names = [f"{number:03d}.jsonl" for number in range(40)]
    fill(tmp_path, names)
    collected(tmp_path / "w", tmp_path)
    for name in names:  # whoever opens one of these now finds something else
        path = tmp_path / "in" / name
        with open(path, "r+b") as file:
            file.write(b"x" * path.stat().st_size)
        os.utime(path, ns=(LONG_AGO, LONG_AGO))
    write_rows(tmp_path / "in" / "020b.jsonl", [{"text": sentence(n)} for n in range(5000, 5004)])
    grown = collected(tmp_path / "w", tmp_path)
    read_again = grown.counts["quarantined"] // 10
    assert read_again <= 3  # what stands in one shard with the new file, at most 4000 bytes


def test_a_grown_source_is_the_same_as_one_read_at_once(tmp_path: Path) -> None:
    names = [f"{number:03d}.jsonl" for number in range(12)]
    fill(tmp_path, [name for name in names if name != "004.jsonl"])
    collected(tmp_path / "w", tmp_path)
    fill(tmp_path, names)
    assert hashes(collected(tmp_path / "w", tmp_path)) == hashes(collected(tmp_path / "other", tmp_path))


def test_a_file_of_a_thousand_shards_keeps_its_order(tmp_path: Path) -> None:
    rows = "".join(f'{{"text": "{number:05d}"}}\n' for number in range(1001))
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl.gz").write_bytes(gzip.compress(rows.encode()))  # compressed: one plan, however large
    first = collected(tmp_path / "w", tmp_path, shard_bytes=1)
    write_rows(tmp_path / "in" / "b.jsonl", [{"text": "one more"}])
    grown = collected(tmp_path / "w", tmp_path, shard_bytes=1)
    for number in (100, 101, 999, 1000):
        name = f"documents/web-00000-{number:03d}.parquet"
        assert grown.facts(name)["sha256"] == first.facts(name)["sha256"]


def test_an_entry_that_lost_bytes_is_not_taken(tmp_path: Path) -> None:
    fill(tmp_path, ["000.jsonl"])
    first = collected(tmp_path / "w", tmp_path)
    for path in (tmp_path / "w" / "collect" / ".shards").glob("*/0*"):
        data = bytearray(path.read_bytes())
        path.unlink()  # the artifact keeps its own link
        data[len(data) // 2] ^= 255
        path.write_bytes(data)
    write_rows(tmp_path / "in" / "z.jsonl", [{"text": "x" * 5000}])
    grown = collected(tmp_path / "w", tmp_path)
    name = "documents/web-00000.parquet"
    assert grown.facts(name)["sha256"] == first.facts(name)["sha256"]
    grown.verify(deep=True)


@given(st.lists(st.integers(0, 400), max_size=60))
def test_groups_hold_every_file_once_in_order(sizes: list[int]) -> None:
    files = [SourceFile(f"/{n}", f"{n}", size, "text") for n, size in enumerate(sizes)]
    groups = list(_group(files, 1000))
    assert [file for group in groups for file in group] == files
    assert all(sum(file.size for file in group) <= 1000 for group in groups)


def test_a_file_more_changes_the_groups_around_it_only() -> None:
    draw = random.Random(5)
    files = [SourceFile(f"/{n}", f"{n:05d}", draw.randint(1, 400), "text") for n in range(5000)]
    before = set(_group(files, 10_000))
    assert 100 < len(before) < 250  # of a million bytes
    changed = []
    for _ in range(50):
        at = draw.randrange(len(files))
        grown = [*files[:at], SourceFile("/new", f"{at:05d}b", draw.randint(1, 400), "text"), *files[at:]]
        changed.append(len(set(_group(grown, 10_000)) - before))
    assert max(changed) <= 20
    assert sum(changed) / len(changed) < 3
