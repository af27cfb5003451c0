"""Deduplication within a recipe over 10^5 to 10^7 synthetic documents: time, and memory of the deciding process.

    python benchmarks/curate_scale.py --documents 100000 300000 1000000       # 10000000 takes an hour and 15 GB of disk

Each document has 40 made-up words; 30 % are near-duplicates (one word changed) of an earlier one, 5 % copies. Shards of
20,000 documents are cleaned and hashed by one worker process; memory is the anonymous memory (RssAnon) of the process
that decides, above that of the same process after a small run, divided by documents.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from dedup_scale import Peak, batches

from headwater.core.documents import Document, DocumentWriter, document_id
from headwater.core.executor import ProcessExecutor
from headwater.core.shards import ShardFolder
from headwater.core.stage import StageContext
from headwater.curate.config import CurateConfig
from headwater.curate.decisions import decide_corpus

SHARD = 20_000


def shards(documents: int, folder: Path) -> list[tuple[str, Path]]:
    """Document shards on disk."""
    made: list[tuple[str, Path]] = []
    writer: DocumentWriter | None = None
    written = 0
    for batch in batches(documents):
        for text in batch.texts:
            if written % SHARD == 0:
                if writer is not None:
                    writer.close()
                made.append((f"all-{len(made):05d}", folder / f"all-{len(made):05d}.parquet"))
                writer = DocumentWriter(made[-1][1])
            assert writer is not None
            writer.add(Document(document_id("all", "x", written), text.decode(), "all", "en", "web"))
            written += 1
    if writer is not None:
        writer.close()
    return made


def decide(documents: int, executor: ProcessExecutor) -> tuple[dict[str, int], float, float]:
    """(counts, CPU seconds of this process, wall seconds)."""
    config = CurateConfig(
        quality={"rules": []}, language={"accepted": []}, clean={"boilerplate": False, "pii": []},
        canaries={"documents": 0},
    )  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="headwater-scale-") as place:
        folder = Path(place)
        made = shards(documents, folder)
        wall, cpu = time.monotonic(), time.process_time()
        context = StageContext(folder, executor)
        outcome = decide_corpus(config, made, ShardFolder(folder / "out"), context)
        used = time.process_time() - cpu, time.monotonic() - wall
    gone = sum(row[0] for facts in outcome.placed for row in facts["dropped"].values())
    return {**outcome.compared, "removed": gone}, *used


def one(documents: int) -> dict[str, float]:
    with ProcessExecutor(1) as executor:
        decide(4_000, executor)  # compiles, and loads what it needs
        peak = Peak()
        peak.start()
        counts, cpu, wall = decide(documents, executor)
        peak.running = False
        peak.join()
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "documents": documents,
        **counts,
        "cpu_s": cpu,
        "workers_cpu_s": children.ru_utime + children.ru_stime,
        "wall_s": wall,
        "us_per_document": cpu / documents * 1e6,
        "bytes_per_document": (peak.highest - peak.first) / documents,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, nargs="+", default=[100_000, 300_000])
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
            f"{row['documents']:>12,} documents {row['removed']:>10,} removed {row['pairs_compared']:>11,} pairs  "
            f"{row['cpu_s']:8.1f} CPU s to decide, {row['workers_cpu_s']:8.1f} in workers  "
            f"{row['us_per_document']:6.1f} us and {row['bytes_per_document']:6.0f} bytes a document",
            flush=True,
        )


if __name__ == "__main__":
    main()
