"""Deduplication of 10^5, 10^6, 10^7 synthetic documents: time, and memory a document.

    python benchmarks/dedup_scale.py --documents 100000 1000000

Each document has 40 made-up words; 30 % are near-duplicates (one word changed) of an earlier one, 5 % copies. Each
size runs in a process of its own. Memory is anonymous memory (RssAnon), sampled every 20 ms, above that of the started
process, divided by documents; the texts themselves lie in files, whose pages the system may drop at any time.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from headwater.curate.dedup.engine import Batch, DocumentDedup, deduplicate
from headwater.curate.dedup.settings import DedupSettings
from headwater.curate.dedup.spool import Spool

WORDS = 40
WIDTH = 7  # bytes of a word with its space
BATCH = 2_000


def anonymous_bytes() -> int:
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("RssAnon")) * 1024


class Peak(threading.Thread):
    """Highest anonymous memory while it runs."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.highest = self.first = anonymous_bytes()
        self.running = True

    def run(self) -> None:
        while self.running:
            self.highest = max(self.highest, anonymous_bytes())
            time.sleep(0.02)


def batches(documents: int) -> Iterator[Batch]:
    """Texts as rows of a matrix of bytes; a near-duplicate repeats one of the same batch or the one before."""
    random = np.random.default_rng(0)
    letters = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz", np.uint8)
    before = None
    for first in range(0, documents, BATCH):
        count = min(BATCH, documents - first)
        rows = letters[random.integers(0, 26, (count, WORDS * WIDTH))]
        rows[:, WIDTH - 1 :: WIDTH] = 32
        if before is not None:
            kind = random.random(count)
            copied = np.flatnonzero(kind < 0.35)
            rows[copied] = before[random.integers(0, len(before), copied.size)]
            changed = np.flatnonzero(kind < 0.30)
            place = random.integers(0, WORDS, changed.size) * WIDTH
            for step in range(WIDTH - 1):
                rows[changed, place + step] = letters[random.integers(0, 26, changed.size)]
        before = rows
        blob, size = rows.tobytes(), WORDS * WIDTH
        texts = [blob[at : at + size] for at in range(0, count * size, size)]
        yield Batch(texts, [b"%012d" % number for number in range(first, first + count)], [1] * count)


def one(documents: int) -> dict[str, float]:
    # Warm up: compile, and load numpy's sorting, so that neither counts.
    deduplicate([f"text {number} of some units " * 40 for number in range(400)] * 2)
    peak = Peak()
    peak.start()
    wall, cpu, making = time.monotonic(), time.process_time(), 0.0
    with tempfile.TemporaryDirectory(prefix="headwater-scale-") as place, Spool(Path(place)) as spool:
        engine = DocumentDedup(DedupSettings(), Path(place), spool)
        source = batches(documents)
        while True:
            began = time.process_time()
            batch = next(source, None)
            making += time.process_time() - began
            if batch is None:
                break
            engine.add_all([batch])
        hashed = time.process_time()
        decisions, _ = engine.decide()
        engine.close()
    used = time.process_time() - cpu - making
    peak.running = False
    peak.join()
    return {
        "documents": documents,
        "removed": int(decisions.removed.size),
        "pairs_compared": decisions.counts["pairs_compared"],
        "sweeps": decisions.counts["sweeps"],
        "text_mb": spool.text_bytes / 1e6,
        "cpu_s": used,
        "hash_cpu_s": hashed - cpu - making,
        "wall_s": time.monotonic() - wall,
        "us_per_document": used / documents * 1e6,
        "bytes_per_document": (peak.highest - peak.first) / documents,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(one(options.one)))
        return
    for count in options.documents:
        done = subprocess.run(
            [sys.executable, __file__, "--one", str(count)], check=True, stdout=subprocess.PIPE, text=True
        )
        row = json.loads(done.stdout)
        print(
            f"{row['documents']:>12,} documents  {row['text_mb']:8.0f} MB  {row['removed']:>10,} removed  "
            f"{row['pairs_compared']:>11,} pairs  {row['cpu_s']:8.1f} CPU s (hashing {row['hash_cpu_s']:.1f})  "
            f"{row['us_per_document']:6.1f} us and {row['bytes_per_document']:6.0f} bytes of memory a document"
        )


if __name__ == "__main__":
    main()
