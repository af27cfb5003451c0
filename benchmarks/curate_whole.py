"""Whole curation, from JSON Lines to a corpus: read, clean, rules, language, deduplication with verification, write.

    python benchmarks/curate_whole.py DATA [--repeat 3] [--megabytes 0] [--datatrove VENV/bin/python]

DATA is a folder of *.jsonl or *.jsonl.zst with rows in English and Chinese, which are curated one language after the
other, files as they are. Everything runs in one process with one thread; CPU time is that of the process, and the first
round, which compiles, does not count. With `--datatrove`, the interpreter of an environment that has datatrove
(`pip install "datatrove[io]" spacy jieba tokenizers "xxhash<4" ftfy regex nltk tldextract`), its pipeline reads the
first `--peer-megabytes` of the same documents (see `curate_peer.py`), Headwater reads those again, and the ratio of the
two is printed. datatrove has no language filter there, as its model would have to be fetched.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import orjson

from headwater.core.artifacts import ArtifactStore
from headwater.core.stage import StageContext
from headwater.curate.config import CollectConfig, CurateConfig
from headwater.curate.stage import build_collect, build_curate
from headwater.curate.streams import RawStream

LANGUAGES = ("en", "zh")
PEER = Path(__file__).with_name("curate_peer.py")


def documents(folder: Path, most: int, lang: str) -> dict[str, list[dict[str, Any]]]:
    """Rows of each file in a language, taken from the files in turn up to so many bytes of text (0: all)."""
    streams = {path.name: iter(b"".join(RawStream(path).chunks()).splitlines()) for path in folder.glob("*.jsonl*")}
    found: dict[str, list[dict[str, Any]]] = {name.partition(".")[0]: [] for name in sorted(streams)}
    size = 0
    while streams and (not most or size < most):
        for name in sorted(streams):
            line = next(streams[name], None)
            if line is None:
                del streams[name]
                continue
            row = orjson.loads(line)
            if row.get("lang") == lang:
                size += len(row["text"].encode())
                found[name.partition(".")[0]].append(row)
    return {name: rows for name, rows in found.items() if rows}


def write(files: dict[str, list[dict[str, Any]]], folder: Path) -> Path:
    """The files as JSON Lines in a new folder."""
    folder.mkdir(parents=True)
    for name, rows in files.items():
        (folder / f"{name}.jsonl").write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    return folder


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


def median_rate(raw: Path, place: Path, repeat: int) -> dict[str, float]:
    """The round of median speed, after one that does not count."""
    rounds = [headwater(raw, place / f"round-{number}") for number in range(repeat + 1)][1:]
    return sorted(rounds, key=lambda row: row["rate"])[len(rounds) // 2]


def datatrove(python: Path, raw: Path, place: Path, lang: str, rounds: int) -> dict[str, Any]:
    """What datatrove needed for the same files."""
    done = subprocess.run([python, PEER, raw, place, lang, str(rounds)], capture_output=True, check=False)
    if done.returncode:
        sys.exit(f"datatrove failed: {done.stderr.decode()[-2000:]}")
    found: dict[str, Any] = orjson.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--megabytes", type=float, default=0, help="of each language; 0: all")
    parser.add_argument("--datatrove", type=Path)
    parser.add_argument("--peer-megabytes", type=float, default=6)
    parser.add_argument("--peer-repeat", type=int, default=1)
    options = parser.parse_args()
    print(f"headwater {version('headwater')}, Python {sys.version.split()[0]}, pyarrow {version('pyarrow')}")
    with tempfile.TemporaryDirectory(prefix="headwater-whole-") as folder:
        for lang in LANGUAGES:
            place = Path(folder, lang)
            raw = write(documents(options.data, int(options.megabytes * 1e6), lang), place / "raw")
            ours = median_rate(raw, place, options.repeat)
            print(f"{lang}: headwater {ours['mb']:.1f} MB, {ours['documents']:,} documents, {ours['kept']:,} stay: "
                  f"{ours['rate']:.2f} MB a CPU-second (collect {ours['collect_s']:.2f} s, curate "
                  f"{ours['curate_s']:.2f} s), median of {options.repeat}", flush=True)  # fmt: skip
            if not options.datatrove:
                continue
            raw = write(documents(options.data, int(options.peer_megabytes * 1e6), lang), place / "peer")
            ours = median_rate(raw, place / "same", options.repeat)
            theirs = datatrove(options.datatrove, raw, place / "datatrove", lang, options.peer_repeat)
            rate = ours["mb"] / statistics.median(theirs["seconds"])
            print(f"{lang}: the same {ours['mb']:.1f} MB: headwater {ours['rate']:.2f}, datatrove "
                  f"{theirs['version']} {rate:.3f} MB a CPU-second ({theirs['kept']:,} of {ours['documents']:,} stay, "
                  f"median of {options.peer_repeat}): ratio {ours['rate'] / rate:.1f}", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
