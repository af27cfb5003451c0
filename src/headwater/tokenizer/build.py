"""The tokenizer stage: from the curated corpus to a vocabulary, and its report.

In: artifact `curate`. Out: `tokenizer.model`, `hf/` (Hugging Face files), `meta.json` (what it is, and the sample's
sizes), `report.json` (compression on held-out text).

    build(TokenizerConfig(vocab_size=4096), {"curate": corpus}, out, context)
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headwater.core.artifacts import Artifact
from headwater.core.config import identity
from headwater.core.documents import Corpus, Document
from headwater.core.executor import Executor
from headwater.core.jsonl import pretty_json
from headwater.core.progress import Reporter
from headwater.core.shards import ShardFolder
from headwater.core.stage import StageContext
from headwater.tokenizer import sample
from headwater.tokenizer.backends import SentencePieceBackend
from headwater.tokenizer.config import TokenizerConfig
from headwater.tokenizer.hf_export import hf_files
from headwater.tokenizer.report import compression
from headwater.tokenizer.tokenizer import MODEL, Tokenizer
from headwater.tokenizer.training import train_model

HELD_OUT_BYTES = 256 << 10
"""Held-out text of each domain and language that the report measures on."""

EMBEDDING_MULTIPLE = 128


def build(
    config: TokenizerConfig, inputs: dict[str, Artifact], out: ShardFolder, context: StageContext
) -> dict[str, Any]:
    """Sample, train, export, measure. Returns counts: vocabulary, sample, and bytes a token."""
    corpus = Corpus.open(inputs["curate"])
    return build_from_shards(
        config,
        corpus.shards("train"),
        corpus.shards("validation"),
        out,
        executor=context.executor,
        reporter=context.reporter,
    )


def build_from_shards(
    config: TokenizerConfig,
    train: Sequence[Path],
    held_out: Sequence[Path],
    out: ShardFolder,
    *,
    executor: Executor,
    reporter: Reporter,
) -> dict[str, Any]:
    """The stage on document shards. Without held-out shards the report uses documents outside the sample, or if there
    are none the sample itself, and says so."""
    found = sample.survey(train, config.sample_bytes + HELD_OUT_BYTES, executor)
    budgets = sample.share_out(found.bytes, config)
    chosen = sample.choose(found, budgets)
    documents = sample.read(train, chosen, executor)
    sizes = _sizes(documents)
    sample_mb = sizes["all"]["bytes"] / 1e6
    reporter.decide(
        f"{config.model_type} vocabulary of {config.vocab_size:,} tokens from {sample_mb:,.1f} MB of text",
        why=", ".join(f"{name} {size['bytes'] / 1e6:,.1f} MB" for name, size in sizes.items() if name != "all"),
    )
    with reporter.progress(f"train {config.model_type}", unit="") as bar:
        model = train_model((document.text for document in documents), config)
        bar.advance(1)
    measured_on, texts = _held_out(found, chosen, documents, train, held_out, executor)
    tokenizer = Tokenizer(SentencePieceBackend(model, out.dir / MODEL), out.dir)
    report = compression(tokenizer, texts)
    meta = {
        "format": 1,
        "model_type": config.model_type,
        "vocab_size": tokenizer.vocab_size,
        "embedding_rows": -(-tokenizer.vocab_size // EMBEDDING_MULTIPLE) * EMBEDDING_MULTIPLE,
        "sha256": tokenizer.sha256,
        "specials": list(tokenizer.special_names),
        "config": identity(config),
        "sample": sizes,
        "sample_sha256": _digest(documents),
    }
    out.write(MODEL, model)
    for name, data in hf_files(model).items():
        out.write(f"hf/{name}", data)
    out.write("meta.json", pretty_json(meta))
    out.write("report.json", pretty_json({"measured_on": measured_on, "compression": report}))
    for name, row in report.items():
        reporter.info(
            f"{name}: {row['bytes_per_token']:.2f} bytes, {row['characters_per_token']:.2f} characters a token"
        )
    overall = report.get("all", {})
    return {
        "vocab_size": tokenizer.vocab_size,
        "sample_documents": len(documents),
        "sample_bytes": sizes["all"]["bytes"],
        "bytes_per_token": overall.get("bytes_per_token", 0.0),
        "measured_on": measured_on,
    }


def _held_out(
    found: sample.Survey,
    chosen: list[sample.Candidate],
    documents: list[Document],
    train: Sequence[Path],
    held_out: Sequence[Path],
    executor: Executor,
) -> tuple[str, list[Document]]:
    if held_out:
        other = sample.survey(held_out, HELD_OUT_BYTES, executor)
        budgets = dict.fromkeys(other.bytes, HELD_OUT_BYTES)
        return "validation split", sample.read(held_out, sample.choose(other, budgets), executor)
    budgets = dict.fromkeys(found.bytes, HELD_OUT_BYTES)
    rest = sample.choose(found, budgets, skip=chosen)
    if rest:
        return "training documents outside the sample", sample.read(train, rest, executor)
    return "the sample itself", documents


def _sizes(documents: Sequence[Document]) -> dict[str, dict[str, int]]:
    """Documents and bytes of the sample by "DOMAIN/LANG", and "all"."""
    sizes: dict[str, dict[str, int]] = {"all": {"documents": 0, "bytes": 0}}
    for document in documents:
        for name in ("all", f"{document.domain}/{document.lang or 'unknown'}"):
            size = sizes.setdefault(name, {"documents": 0, "bytes": 0})
            size["documents"] += 1
            size["bytes"] += len(document.text.encode())
    return dict(sorted(sizes.items()))


def _digest(documents: Sequence[Document]) -> str:
    """SHA-256 of the sample: ids and texts in order."""
    digest = hashlib.sha256()
    for document in documents:
        text = document.text.encode()
        digest.update(f"{document.id} {len(text)}\n".encode())
        digest.update(text)
    return digest.hexdigest()
