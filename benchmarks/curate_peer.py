"""datatrove's curation of one language, for `curate_whole.py`, which runs this with the interpreter that has it.

    VENV/bin/python benchmarks/curate_peer.py SOURCE OUT zh 2    # language, rounds; prints CPU seconds of each as JSON

JSONL reader, Gopher, C4 and FineWeb rules, MinHash with 20 bands of 6 in four stages, JSONL writer. Chinese gets limits
for words of its length (with those for English every page goes) and spaCy's jieba as word splitter. Each stage is run
in this process by a loop over its tasks: `LocalPipelineExecutor.run` copies the pipeline before each task, and a word
splitter that is in use cannot be copied ("cannot pickle module"). Importing and a first round do not count.
"""

from __future__ import annotations

import json
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.dedup import MinhashDedupSignature
from datatrove.pipeline.dedup.minhash import (
    MinhashConfig,
    MinhashDedupBuckets,
    MinhashDedupCluster,
    MinhashDedupFilter,
)
from datatrove.pipeline.filters import (
    C4QualityFilter,
    FineWebQualityFilter,
    GopherQualityFilter,
    GopherRepetitionFilter,
)
from datatrove.pipeline.readers import JsonlReader
from datatrove.pipeline.writers.jsonl import JsonlWriter
from datatrove.utils.hashing import HashConfig
from loguru import logger

CODES = {"en": "eng", "zh": "cmn_Hani"}  # for "zho" it splits at white space alone
GOPHER: dict[str, dict[str, Any]] = {
    "en": {},
    "zh": {
        "min_avg_word_length": 1, "max_non_alpha_words_ratio": 0.6, "stop_words": list("的是在了和有不我中一"),
    },
}  # fmt: skip
C4: dict[str, dict[str, Any]] = {"en": {}, "zh": {"min_words_per_line": -1}}  # it counts by white space there
FINEWEB: dict[str, dict[str, Any]] = {"en": {}, "zh": {"short_line_length": 10, "char_duplicates_ratio": 0.1}}


def curate(source: str, out: str, lang: str) -> int:
    """One round; returns how many documents stay."""
    code = CODES[lang]
    config = MinhashConfig(hash_config=HashConfig(precision=64), num_buckets=20, hashes_per_bucket=6)
    stages = [
        [JsonlReader(source), GopherRepetitionFilter(language=code), GopherQualityFilter(language=code, **GOPHER[lang]),
         C4QualityFilter(filter_no_terminal_punct=False, min_num_sentences=-1, language=code, **C4[lang]),
         FineWebQualityFilter(language=code, **FINEWEB[lang]), JsonlWriter(f"{out}/good", compression=None)],
        [JsonlReader(f"{out}/good"), MinhashDedupSignature(f"{out}/sig", config=config, language=code)],
        [MinhashDedupBuckets(f"{out}/sig", f"{out}/buckets", config=config)],
        [MinhashDedupCluster(f"{out}/buckets", f"{out}/remove", config=config)],
        [JsonlReader(f"{out}/good"), MinhashDedupFilter(f"{out}/remove"),
         JsonlWriter(f"{out}/final", compression=None)],
    ]  # fmt: skip
    for number, stage in enumerate(stages):
        tasks = config.num_buckets if number == 2 else 1
        executor = LocalPipelineExecutor(stage, tasks=tasks, workers=1, logging_dir=f"{out}/logs{number}")
        for rank in range(tasks):
            executor._run_for_rank(rank)
    return sum(path.read_bytes().count(b"\n") for path in Path(out, "final").glob("*"))


def main() -> None:
    source, out, lang, rounds = sys.argv[1:]
    logger.remove()
    seconds, kept = [], 0
    for number in range(int(rounds) + 1):  # the first loads dictionaries and does not count
        began = time.process_time()
        kept = curate(source, f"{out}/{number}", lang)
        seconds.append(time.process_time() - began)
    print(json.dumps({"version": version("datatrove"), "seconds": seconds[1:], "kept": kept}))


if __name__ == "__main__":
    main()
