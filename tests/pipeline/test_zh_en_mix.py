"""The bilingual recipe on the front of the real five-domain corpus: both scripts, the mixture in tokens."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
import zstandard

from headwater.core.progress import SILENT
from headwater.pipeline.runner import RunResult, run
from headwater.train.run_folder import RunFolder

RECIPE = Path(__file__).resolve().parents[2] / "recipes" / "zh-en-mix.yaml"
DOMAINS = {"web": 45, "books": 25, "code": 15, "papers": 8, "other": 7}
ROWS = 120

pytestmark = pytest.mark.shared_data


@pytest.fixture(scope="module")
def result(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    """The recipe run on the first rows of each domain, with a tiny model."""
    folder = tmp_path_factory.mktemp("mix")
    (folder / "corpus").mkdir()
    for domain in DOMAINS:
        with open(shared_data / "corpora" / f"{domain}.jsonl.zst", "rb") as file:
            lines = io.TextIOWrapper(zstandard.ZstdDecompressor().stream_reader(file), encoding="utf-8")
            rows = [line for line, _ in zip(lines, range(ROWS), strict=False)]
        (folder / "corpus" / f"{domain}.jsonl.zst").write_bytes(zstandard.compress("".join(rows).encode()))
    settings = [
        f"collect.root={folder / 'corpus'}", "tokenizer.vocab_size=4096", "tokenizer.sample_bytes=2e6",
        "model={hidden_size: 32, num_hidden_layers: 1, num_attention_heads: 2, max_position_embeddings: 256}",
        "train.tokens=25600", "train.seq_len=64", "train.global_batch=100", "train.schedule.warmup_steps=0",
        "evaluate={max_tokens: 400, sample_tokens: 8, baselines: [unigram]}", "executor.kind=inline",
    ]  # fmt: skip
    return run(RECIPE, workspace=folder / "w", overrides=settings, reporter=SILENT)


def test_all_five_domains_come_through_in_both_languages(result: RunResult) -> None:
    counts = result.stages[1].counts
    assert set(counts["splits"]["train"]) == set(DOMAINS)
    assert set(counts["splits"]) == {"train", "validation", "test"}
    report = json.loads((result.path("curate") / "report.json").read_text())
    assert {"zh", "en"} <= set(report["by_language"])
    for measure in ("documents", "bytes", "units"):
        dropped = sum(lost[measure] for lost in counts["dropped"].values())
        assert counts["in"][measure] == counts[measure] + dropped + counts["edited"].get(measure, 0)


def test_the_mixture_is_kept_in_tokens(result: RunResult) -> None:
    rows = list(RunFolder.open(result.run_folder).metrics())
    read = rows[-1]["domain_tokens"]
    assert sum(read.values()) == 25600
    for domain, share in DOMAINS.items():
        assert read[domain] == pytest.approx(25600 * share / 100, abs=64)


def test_validation_and_evaluation_are_by_domain(result: RunResult) -> None:
    final = RunFolder.open(result.run_folder).final_record
    assert set(final["metrics"]["val_bits_per_byte"]) <= {"all", *DOMAINS}
    evaluation = json.loads((result.path("evaluate") / "results.json").read_text())
    kinds = {(piece["kind"], piece["name"]) for piece in evaluation["rows"][0]["slices"]}
    assert ("language", "zh") in kinds
    assert ("language", "en") in kinds
    assert {("domain", domain) for domain in DOMAINS} <= kinds
