"""Quality of deduplication: recall on labelled editions, paraphrases that must stay, and false removals on corpora.

    python benchmarks/dedup_quality.py DATA [--sample 40]        # DATA: the folder with corpora/ and dedup/

1. Editions: share of labelled pairs of which not both are kept, by exact Jaccard similarity, in English and Chinese.
2. Paraphrases that are no duplicates: pairs that would be merged at 0.8, and at 0.7.
3. Corpora: `exact,minhash` over all files; how many go, and what scores say. With `--sample` it writes that many
   removals, drawn at random, beside the document kept, to read: whether each is a duplicate is for a person to say.
"""

from __future__ import annotations

import argparse
import gzip
import json
import tempfile
import time
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import orjson
import zstandard

from headwater.curate.dedup.compare import jaccard
from headwater.curate.dedup.engine import deduplicate
from headwater.curate.dedup.files import dedup_files
from headwater.curate.dedup.settings import DedupSettings

BANDS_OF_SIMILARITY = (0.2, 0.5, 0.6, 0.7, 0.8, 0.9, 1.01)


def rows_of(path: Path) -> list[dict[str, Any]]:
    if path.suffix == ".zst":
        with open(path, "rb") as file:
            return [orjson.loads(line) for line in zstandard.ZstdDecompressor().stream_reader(file).read().splitlines()]
    with gzip.open(path, "rb") if path.suffix == ".gz" else open(path, "rb") as lines:
        return [orjson.loads(line) for line in lines]


def editions(folder: Path) -> None:
    documents = rows_of(folder / "editions_docs.jsonl.gz")
    pairs = rows_of(folder / "editions_pairs.jsonl")
    names = [row["id"] for row in documents]
    for methods in (("exact", "minhash"), ("exact", "simhash"), ("exact", "minhash", "simhash")):
        removals = deduplicate([row["text"] for row in documents], names, settings=DedupSettings(methods=methods))
        gone = {names[removal.row] for removal in removals}
        print(f"\nEditions, {'+'.join(methods)}: {len(removals)} of {len(names)} go, lowest score "
              f"{min(removal.score for removal in removals):.4f}")  # fmt: skip
        for lang in ("en", "zh"):
            total: Counter[float] = Counter()
            hit: Counter[float] = Counter()
            for pair in pairs:
                if pair["lang"] == lang:
                    low = max((edge for edge in BANDS_OF_SIMILARITY if edge <= pair["jaccard5"]), default=0.0)
                    total[low] += 1
                    hit[low] += pair["id1"] in gone or pair["id2"] in gone
            cells = [f"{low:.1f}: {hit[low]}/{total[low]} = {hit[low] / total[low]:.3f}" for low in sorted(total)]
            print(f"  {lang}  " + "   ".join(cells))


def paraphrases(folder: Path) -> None:
    print("\nPairs labelled as no duplicates, with a score of 0.7 or more")
    for name in ("pan_pairs.jsonl.gz", "msrp_pairs.jsonl.gz"):
        rows = [row for row in rows_of(folder / name) if not row["label"]]
        near = [(jaccard(row["s1"], row["s2"]), row) for row in rows]
        listed = [f"{row['id']} {score:.3f}" for score, row in near if score >= 0.7]
        print(f"  {name}: {', '.join(listed) or 'none'} (of {len(rows)})")
    answers = rows_of(folder / "short_answers.jsonl")
    merged = deduplicate([row["text"] for row in answers])
    print("  short answers merged: " + ", ".join(
        f"{answers[m.row]['id']} ({answers[m.row]['category']}) with {answers[m.kept_row]['id']} {m.score:.3f}"
        for m in merged
    ))  # fmt: skip


def corpora(folder: Path, sample: int) -> None:
    files = sorted(folder.glob("*.jsonl.zst"))
    with tempfile.TemporaryDirectory() as place:
        wall, cpu = time.monotonic(), time.process_time()
        report = dedup_files(files, place)
        wall, cpu = time.monotonic() - wall, time.process_time() - cpu
        removed = rows_of(Path(place) / "removed.jsonl.zst")
    size = report["bytes"]["documents"] / 1e6
    print(f"\nCorpora: {report['rows']['documents']} documents, {size:.0f} MB, {report['rows']['removed']} go; "
          f"{cpu:.1f} CPU s, {size / cpu:.1f} MB a CPU-second from JSON to JSON")  # fmt: skip
    scores = Counter(int(row["score"] * 20) / 20 for row in removed)
    print("  by score: " + "   ".join(f"{score:.2f}: {count}" for score, count in sorted(scores.items())))
    texts = {row["id"]: row["text"] for path in files for row in rows_of(path)}
    worst = max(abs(row["score"] - jaccard(texts[row["id"]], texts[row["kept_id"]])) for row in removed)
    print(f"  every removal compared again: largest difference of scores {worst:.5f}")
    for row in Random(0).sample(removed, min(sample, len(removed))):
        print(json.dumps({key: row[key] for key in ("id", "kept_id", "score", "spans_total")}, ensure_ascii=False))
        for side in ("id", "kept_id"):
            text = texts[row[side]]
            print(f"    {side:<8}{len(text):>8}  {text[:300]!r}\n{'':>18}{text[len(text) // 2 :][:200]!r}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--sample", type=int, default=0)
    options = parser.parse_args()
    editions(options.data / "dedup")
    paraphrases(options.data / "dedup")
    corpora(options.data / "corpora", options.sample)


if __name__ == "__main__":
    main()
