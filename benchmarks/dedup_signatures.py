"""MinHash signatures: megabytes of UTF-8 a CPU-second, tokenising and shingling included, beside datasketch and rensa.

    python benchmarks/dedup_signatures.py DATA            # DATA: the folder with corpora/ and dedup/

Tools take turns on the same documents, `--repeats` times; printed are medians of CPU time and the ratio to datasketch.
datasketch and rensa get the same units from a regular expression (`pip install datasketch rensa`); they are left out
if they are not installed. The second and third table are recall, on the labelled editions and on made pairs of texts
of a few to many units: Headwater's one-permutation hashing beside classic MinHash with a map for each value.
"""

from __future__ import annotations

import argparse
import gzip
import importlib
import io
import itertools
import json
import platform
import re
import statistics
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import zstandard
from numba import njit

from headwater.curate.dedup.compare import jaccard
from headwater.curate.dedup.folding import fold_table
from headwater.curate.dedup.minhash import BANDS, ROWS, WIDTH, arrow_views, minhash_keys
from headwater.curate.dedup.simhash import simhash_of
from headwater.curate.dedup.tokens import mix, scratch, shingle, tokenize

PERMUTATIONS = BANDS * ROWS
UNIT = re.compile(r"[\u3005\u3007\u3400-\u9fff\uf900-\ufaff\u3041-\u30ff\uac00-\ud7a3]|\w+(?:['’]\w+)*")


@njit(nogil=True)
def classic(
    data: Any,
    offsets: Any,
    table: Any,
    width: Any,
    rows: Any,
    factors: Any,
    addends: Any,
    hashes: Any,
    starts: Any,
    ends: Any,
    keys: Any,
) -> None:
    """The least of each shingle under one random map a x + b mod 2**32 for each value (Broder 1997)."""
    minima = np.empty(factors.size, np.uint32)
    for document in range(offsets.size - 1):
        count = tokenize(data, offsets[document], offsets[document + 1], table, hashes, starts, ends)
        minima[:] = np.uint32(0xFFFFFFFF)
        for index in range(shingle(hashes, count, width)):
            low = np.uint32(hashes[index] >> np.uint64(32))
            for row in range(minima.size):
                minima[row] = min(minima[row], np.uint32(factors[row] * low + addends[row]))
        for band in range(keys.shape[0]):
            key = np.uint64(band + 1)
            for row in range(band * rows, (band + 1) * rows):
                key = mix(key * np.uint64(0x9E3779B97F4A7C15) + np.uint64(minima[row]))
            keys[band, document] = key


def classic_keys(texts: pa.Array) -> Any:
    data, offsets = arrow_views(texts)
    keys = np.empty((BANDS, len(texts)), np.uint64)
    random = np.random.Generator(np.random.PCG64(1))
    factors = random.integers(0, 1 << 32, PERMUTATIONS, np.uint32) | np.uint32(1)
    addends = random.integers(0, 1 << 32, PERMUTATIONS, np.uint32)
    work = scratch(int(np.diff(offsets).max()))
    classic(data, offsets, fold_table(), WIDTH, ROWS, factors, addends, *work, keys)
    return keys


def regular_shingles(text: str) -> list[str]:
    units = UNIT.findall(text.lower())
    return [" ".join(units[at : at + WIDTH]) for at in range(len(units) - WIDTH + 1)]


def peers() -> dict[str, tuple[str, Callable[[list[str]], None]]]:
    """Name -> (version, function over texts)."""
    found: dict[str, tuple[str, Callable[[list[str]], None]]] = {}

    def installed(name: str) -> Any:
        try:
            return importlib.import_module(name)
        except ImportError:
            return None

    if (datasketch := installed("datasketch")) is not None:

        def with_datasketch(texts: list[str]) -> None:
            for text in texts:
                signature = datasketch.MinHash(num_perm=PERMUTATIONS)
                signature.update_batch([part.encode() for part in set(regular_shingles(text))])

        found["datasketch"] = version("datasketch"), with_datasketch
    if (rensa := installed("rensa")) is not None:

        def with_rensa(texts: list[str]) -> None:
            for text in texts:
                signature = rensa.RMinHash(num_perm=PERMUTATIONS, seed=42)
                signature.update(regular_shingles(text))
                signature.digest()

        found["rensa"] = version("rensa"), with_rensa
    return found


def texts_of(path: Path, lang: str, most: int) -> list[str]:
    texts, size = [], 0
    with open(path, "rb") as file:
        for line in io.TextIOWrapper(zstandard.ZstdDecompressor().stream_reader(file), encoding="utf-8"):
            row = json.loads(line)
            if row["lang"] == lang:
                texts.append(row["text"])
                size += len(row["text"].encode())
                if size >= most:
                    break
    return texts


def speed(data: Path, repeats: int) -> None:
    others = peers()
    print(f"\n{PERMUTATIONS} permutations, {WIDTH}-unit shingles; MB of UTF-8 a CPU-second, median of {repeats}")
    for lang in ("en", "zh"):
        texts = texts_of(data / "corpora" / "web.jsonl.zst", lang, 12_000_000)
        large = pa.array(texts, pa.large_string())
        views = arrow_views(large)
        few, size = [], 0
        for text in texts:  # the slow ones take a part, the same each time
            few.append(text)
            size += len(text.encode())
            if size > 400_000:
                break
        whole = sum(len(text.encode()) for text in texts)
        tools: dict[str, tuple[int, Callable[[], Any]]] = {
            "headwater minhash": (whole, lambda large=large: minhash_keys(large)),
            "classic minhash": (whole, lambda large=large: classic_keys(large)),
            "headwater simhash": (whole, lambda views=views: simhash_of(*views)),
            **{name: (size, lambda run=run, few=few: run(few)) for name, (_, run) in others.items()},
        }
        times: dict[str, list[float]] = {name: [] for name in tools}
        for _, run in tools.values():
            run()
        for _ in range(repeats):
            for name, (_, run) in tools.items():
                began = time.process_time()
                run()
                times[name].append(time.process_time() - began)
        rates = {name: tools[name][0] / statistics.median(values) / 1e6 for name, values in times.items()}
        for name, rate in rates.items():
            release = f" {others[name][0]}" if name in others else ""
            ratio = f"{rate / rates['datasketch']:8.1f}x datasketch" if "datasketch" in rates else ""
            print(f"  {lang}  {name + release:<22} {rate:8.1f} MB/s {ratio}")


def recall(data: Path) -> None:
    print("\nShare of labelled pairs that share a key (20 bands of 6), by exact Jaccard similarity")
    with gzip.open(data / "dedup" / "editions_docs.jsonl.gz", "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    place = {row["id"]: number for number, row in enumerate(rows)}
    texts = pa.array([row["text"] for row in rows], pa.large_string())
    keys = {"headwater": minhash_keys(texts)[0], "classic": classic_keys(texts)}
    edges = (0.5, 0.6, 0.7, 0.8, 0.9, 1.01)
    pairs = [json.loads(line) for line in (data / "dedup" / "editions_pairs.jsonl").read_text("utf-8").splitlines()]
    for lang in ("en", "zh"):
        for name, made in keys.items():
            cells = []
            for low, high in itertools.pairwise(edges):
                mine = [pair for pair in pairs if pair["lang"] == lang and low <= pair["jaccard5"] < high]
                hit = sum(bool((made[:, place[a["id1"]]] == made[:, place[a["id2"]]]).any()) for a in mine)
                cells.append(f"{low:.1f}: {hit / len(mine):.3f} of {len(mine)}" if mine else f"{low:.1f}: none")
            print(f"  {lang}  {name:<16} " + "   ".join(cells))


def recall_by_length() -> None:
    print("\nShare of made pairs with Jaccard similarity 0.7 to 0.8 that share a key, by units in the text")
    random = Random(0)
    for size in (12, 20, 40, 80, 160, 320, 640):
        first: list[str] = []
        second: list[str] = []
        scores: list[float] = []
        while len(first) < 2000:
            units = [f"w{random.randrange(10**6)}" for _ in range(size)]
            if random.random() < 0.5:
                other = units[round(size * random.uniform(0.05, 0.28)) :]
            else:
                other = list(units)
                for place in random.sample(range(size), max(1, round(size * random.uniform(0.01, 0.06)))):
                    other[place] = f"x{random.randrange(10**6)}"
            score = jaccard(" ".join(units), " ".join(other))
            if 0.7 <= score < 0.8:
                first.append(" ".join(units))
                second.append(" ".join(other))
                scores.append(score)
        sides = pa.array(first, pa.large_string()), pa.array(second, pa.large_string())
        made = (minhash_keys(sides[0])[0] == minhash_keys(sides[1])[0]).any(0).mean()
        other_made = (classic_keys(sides[0]) == classic_keys(sides[1])).any(0).mean()
        theory = statistics.fmean(1 - (1 - score**ROWS) ** BANDS for score in scores)
        print(f"  {size:>4} units   headwater {made:.3f}   classic {other_made:.3f}   theory {theory:.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    try:
        numba = version("numba")
    except PackageNotFoundError:
        numba = "?"
    print(f"Python {platform.python_version()}, numba {numba}, {platform.machine()}")
    speed(options.data, options.repeats)
    recall(options.data)
    recall_by_length()


if __name__ == "__main__":
    main()
