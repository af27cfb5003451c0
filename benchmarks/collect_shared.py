"""One large file read by several workers, beside the same file read by one: wall and CPU seconds, and the same bytes.

    python benchmarks/collect_shared.py FOLDER --format zst gz --megabytes 1000 --workers 1 2      # FOLDER/*.jsonl.zst

The rows of the folder's files are repeated until there are so many megabytes, and packed as one stream: `zst` one frame
of level 3, `gz` one member of level 6, `bz2` streams of 4 MB; `frame` is the time of taking the stream apart into lines
alone, which each worker spends. `--shares 4 16` gives the CPU seconds of one of 4 and one of 16 workers, without the
joining, for machines with so many cores.
"""

from __future__ import annotations

import argparse
import bz2
import hashlib
import json
import resource
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

import zstandard

from headwater.core.executor import make_executor
from headwater.core.progress import SILENT
from headwater.core.shards import ShardFolder
from headwater.core.stage import StageContext
from headwater.curate.collect import CollectTask
from headwater.curate.config import CollectConfig
from headwater.curate.lines import split_lines
from headwater.curate.share_tasks import ShareTask, read_share
from headwater.curate.sources import plan_shards
from headwater.curate.stage import collect_into
from headwater.curate.streams import RawStream

PIECE = 4 << 20


def pieces(folder: Path, size: int) -> Iterator[bytes]:
    """Rows in pieces of about 4 MB, `size` bytes in all."""
    files = sorted(folder.glob("*.jsonl.zst"))
    if not files:
        sys.exit(f"no *.jsonl.zst in {folder}")
    held = b""
    for path in cycle(files):
        for chunk in RawStream(path).chunks():
            held += chunk[: size - len(held)]
            if len(held) >= min(PIECE, size):
                yield held
                size -= len(held)
                held = b""
            if not size:
                return


def pack(folder: Path, size: int, form: str, path: Path) -> None:
    gzip, zst = zlib.compressobj(6, wbits=31), zstandard.ZstdCompressor(level=3).compressobj()
    with open(path, "wb") as file:
        for piece in pieces(folder, size):
            if form == "bz2":
                file.write(bz2.compress(piece))
            else:
                file.write((gzip if form == "gz" else zst).compress(piece))
        if form != "bz2":
            file.write((gzip if form == "gz" else zst).flush())


def collected(path: Path, workers: int) -> dict[str, Any]:
    """Wall and CPU seconds of collecting the file, the memory of the largest process in MB, and a hash of all that is
    written."""
    config = CollectConfig(root=str(path.parent), sources=({"name": "big", "paths": [path.name]},))
    with tempfile.TemporaryDirectory(prefix="headwater-shared-", dir=path.parent) as place:
        out = ShardFolder(Path(place))
        start = time.monotonic()
        with make_executor("process", workers) as executor:
            collect_into(out, config, StageContext(out.dir, executor, SILENT))
        wall = time.monotonic() - start
        used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        digest = hashlib.sha256(json.dumps([out.done(name) for name in out.shards()]).encode()).hexdigest()
    cpu = sum(one.ru_utime + one.ru_stime for one in used)
    return {"wall": wall, "cpu": cpu, "rss": used[1].ru_maxrss / 1000, "bytes": digest}


def shared(path: Path, of: int) -> float:
    """CPU seconds of one share."""
    config = CollectConfig(root=str(path.parent), sources=({"name": "big", "paths": [path.name]},))
    (plan,) = plan_shards(config)
    with tempfile.TemporaryDirectory(prefix="headwater-shared-", dir=path.parent) as place:
        task = CollectTask(plan, ShardFolder(Path(place)), config.shard_bytes)
        read_share(ShareTask(task, 0, 10**6))  # loads what it needs
        start = time.process_time()
        read_share(ShareTask(task, 0, of))
        return time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--format", nargs="+", choices=("zst", "gz", "bz2"), default=["zst", "gz"])
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--workers", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--shares", nargs="*", type=int, default=[])
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(collected(options.folder, int(options.one))))
        return
    for form in options.format:
        with tempfile.TemporaryDirectory(prefix="headwater-shared-") as place:
            path = Path(place) / f"rows.jsonl.{form}"
            pack(options.folder, options.megabytes * 10**6, form, path)
            start = time.process_time()
            stream = RawStream(path)
            lines = sum(1 for _ in split_lines(stream.chunks(), 32 << 20))
            frame = time.process_time() - start
            print(f"{form}: {stream.total / 1e6:,.0f} MB, {path.stat().st_size / 1e6:,.0f} packed, {lines:,} lines, "
                  f"frame {frame:.1f} s", flush=True)  # fmt: skip
            first: dict[str, Any] = {}
            for workers in options.workers:
                command = [sys.executable, __file__, str(path), "--one", str(workers)]
                done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
                row = json.loads(done.stdout)
                first = first or row
                same = "the same bytes" if row["bytes"] == first["bytes"] else "OTHER BYTES"
                times = first["wall"] / row["wall"]
                used = (
                    f"{row['wall']:6.1f} s wall, {row['cpu']:6.1f} CPU s, {row['rss']:4.0f} MB in the largest process"
                )
                print(f"  {workers} workers: {used}, {times:.2f} times as fast, {same}", flush=True)
                if row["bytes"] != first["bytes"]:
                    sys.exit(1)
            for of in options.shares:
                print(f"  one share of {of}: {shared(path, of):.1f} CPU s", flush=True)


if __name__ == "__main__":
    main()
