"""Whole curation, from JSON Lines to a corpus: read, clean, rules, language, deduplication with verification, write.

    python benchmarks/curate_whole.py DATA [--repeat 3] [--megabytes 0] [--datatrove VENV/bin/python]

DATA is a folder of *.jsonl or *.jsonl.zst. Everything runs in one process with one thread; CPU time is that of the
process, and the first round, which compiles, does not count. With `--datatrove`, the interpreter of an environment that
has datatrove, its pipeline (JSONL reader, Gopher, C4 and FineWeb rules, MinHash in four stages, JSONL writer) reads the
same documents, and the ratio is printed. It has no language filter there, as its model would have to be fetched, and
only English documents are compared: its executor (0.10.1) cannot copy a pipeline that holds its Chinese word splitter.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Container
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import orjson

from headwater.core.artifacts import ArtifactStore
from headwater.core.stage import StageContext
from headwater.curate.config import CollectConfig, CurateConfig
from headwater.curate.stage import build_collect, build_curate
from headwater.curate.streams import RawStream

DATATROVE = """
import sys
from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.dedup import MinhashDedupSignature
from datatrove.pipeline.dedup.minhash import (MinhashConfig, MinhashDedupBuckets, MinhashDedupCluster,
                                              MinhashDedupFilter)
from datatrove.pipeline.filters import (C4QualityFilter, FineWebQualityFilter, GopherQualityFilter,
                                        GopherRepetitionFilter)
from datatrove.pipeline.readers import JsonlReader
from datatrove.pipeline.writers.jsonl import JsonlWriter
from datatrove.utils.hashing import HashConfig

def main(source, out, lang):
    config = MinhashConfig(hash_config=HashConfig(precision=64), num_buckets=20, hashes_per_bucket=6)
    steps = [
        [JsonlReader(source), GopherRepetitionFilter(language=lang), GopherQualityFilter(language=lang),
         C4QualityFilter(filter_no_terminal_punct=False, language=lang), FineWebQualityFilter(language=lang),
         JsonlWriter(f"{out}/good", compression=None)],
        [JsonlReader(f"{out}/good"), MinhashDedupSignature(f"{out}/sig", config=config, language=lang)],
        [MinhashDedupBuckets(f"{out}/sig", f"{out}/buckets", config=config)],
        [MinhashDedupCluster(f"{out}/buckets", f"{out}/remove", config=config)],
        [JsonlReader(f"{out}/good"), MinhashDedupFilter(f"{out}/remove"),
         JsonlWriter(f"{out}/final", compression=None)],
    ]
    for number, step in enumerate(steps):
        tasks = config.num_buckets if number == 2 else 1
        LocalPipelineExecutor(step, tasks=tasks, workers=1, logging_dir=f"{out}/logs{number}").run()

if __name__ == "__main__":
    main(*sys.argv[1:])
"""
LANGUAGES = {"en": "eng"}


def documents(folder: Path, most: int, langs: Container[str] | None = None) -> list[dict[str, Any]]:
    """Rows of all files, file by file in turn, up to so many bytes of text (0: all), in some languages."""
    streams = [iter(b"".join(RawStream(path).chunks()).splitlines()) for path in sorted(folder.glob("*.jsonl*"))]
    rows: list[dict[str, Any]] = []
    size = 0
    while streams and (not most or size < most):
        for stream in list(streams):
            line = next(stream, None)
            if line is None:
                streams.remove(stream)
                continue
            row = orjson.loads(line)
            if langs is not None and row.get("lang") not in langs:
                continue
            size += len(row["text"].encode())
            rows.append(row)
    return rows


def headwater(raw: Path, place: Path) -> dict[str, float]:
    """CPU seconds of each stage, and what came of it."""
    store = ArtifactStore(place)
    context = StageContext(place)
    source = {"name": "all", "paths": "*.jsonl"}
    collect, curate = CollectConfig(root=str(raw), sources=(source,)), CurateConfig()
    began = time.process_time()
    with store.writer("collect", "0" * 16, version=1, identity={}, inputs={}) as out:
        collected = out.commit(build_collect(collect, {}, out, context))
    middle = time.process_time()
    with store.writer("curate", "1" * 16, version=1, identity={}, inputs={}) as out:
        curated = out.commit(build_curate(curate, {"collect": collected}, out, context))
    end = time.process_time()
    return {
        "mb": collected.counts["bytes"] / 1e6,
        "documents": collected.counts["documents"],
        "kept": curated.counts["documents"],
        "collect_s": middle - began,
        "curate_s": end - middle,
        "rate": collected.counts["bytes"] / 1e6 / (end - began),
    }


def datatrove(python: Path, rows: list[dict[str, Any]], place: Path, limit: float) -> dict[str, float] | None:
    """CPU seconds of datatrove over the same documents, language by language as its rules need."""
    script = place / "pipeline.py"
    script.write_text(DATATROVE)
    size, cpu = 0, 0.0
    for lang, code in LANGUAGES.items():
        mine = [row for row in rows if row.get("lang") == lang]
        if not mine:
            continue
        source = place / lang / "raw"
        source.mkdir(parents=True)
        (source / "rows.jsonl").write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in mine))
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        try:
            subprocess.run(
                [python, script, source, place / lang / "out", code], check=True, timeout=limit,
                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return None
        except subprocess.CalledProcessError as error:
            sys.exit(f"datatrove failed: {error.stderr.decode()[-2000:]}")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu += after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        size += sum(len(row["text"].encode()) for row in mine)
    return {"mb": size / 1e6, "cpu_s": cpu, "rate": size / 1e6 / cpu}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--megabytes", type=float, default=0)
    parser.add_argument("--datatrove", type=Path)
    parser.add_argument("--limit", type=float, default=900, help="seconds of datatrove for each language")
    options = parser.parse_args()
    rows = documents(options.data, int(options.megabytes * 1e6), LANGUAGES if options.datatrove else None)
    with tempfile.TemporaryDirectory(prefix="headwater-whole-") as folder:
        place = Path(folder)
        raw = place / "raw"
        raw.mkdir()
        (raw / "rows.jsonl").write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
        found = [headwater(raw, place / f"round-{number}") for number in range(options.repeat + 1)][1:]
        ours = statistics.median(row["rate"] for row in found)
        print(json.dumps(found[-1]))
        print(f"headwater: {found[-1]['mb']:.1f} MB, median of {options.repeat}: {ours:.1f} MB a CPU-second "
              f"(lowest {min(row['rate'] for row in found):.1f})")  # fmt: skip
        if options.datatrove:
            theirs = datatrove(options.datatrove, rows, place, options.limit)
            if theirs is None:
                print(f"datatrove: not done in {options.limit:.0f} s")
            else:
                ratio = ours / theirs["rate"]
                print(f"datatrove: {theirs['mb']:.1f} MB, {theirs['rate']:.2f} MB a CPU-second; ratio {ratio:.1f}")


if __name__ == "__main__":
    main()
