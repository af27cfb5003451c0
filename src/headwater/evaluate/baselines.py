"""What the model is measured beside: models trained on the same tokens, and a compressor.

    rows = baseline_rows(config, held_out, dataset, SILENT)

The unigram and n-gram models learn from the dataset's training split and score the same documents with the same
tokenizer, so their bits per byte and token perplexities compare directly with the model's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from headwater.core.progress import Reporter
from headwater.dataset import TokenDataset
from headwater.evaluate.compressors import xz_bits_per_byte
from headwater.evaluate.config import EvaluateConfig
from headwater.evaluate.heldout import HeldOut
from headwater.evaluate.kneser_ney import KneserNey
from headwater.evaluate.perplexity import measure
from headwater.evaluate.results import Row, row_of_report, rows_of_xz
from headwater.evaluate.sources import training_stream
from headwater.evaluate.unigram import ADDED, Unigram


def baseline_rows(
    config: EvaluateConfig, held_out: HeldOut, dataset: TokenDataset | None, reporter: Reporter
) -> tuple[list[Row], list[str]]:
    """Rows of the baselines asked for, and notes on what could not be had. Without a dataset nothing can be trained."""
    trained = [name for name in ("unigram", "ngram") if name in config.baselines]
    rows: list[Row] = []
    notes: list[str] = []
    if trained and (dataset is None or "train" not in dataset.splits):
        notes.append(f"no {' and no '.join(trained)} baseline: only a packed dataset has a training split")
    elif trained and dataset is not None:
        rows += _trained(config, trained, held_out, dataset, reporter)
    if "xz" in config.baselines:
        with reporter.progress("xz -9e", total=held_out.bytes / 1e6, unit="MB") as bar:
            results = {}
            for name, texts in _slices(held_out):
                results[name] = xz_bits_per_byte(texts)
                bar.advance(sum(map(len, texts)) / 1e6 if name else 0)
        rows += rows_of_xz(results)
    return rows, notes


def _trained(
    config: EvaluateConfig, names: Sequence[str], held_out: HeldOut, dataset: TokenDataset, reporter: Reporter
) -> Iterator[Row]:
    stream, used = training_stream(dataset, config.baseline_max_tokens)
    if used["training_tokens"] < used["training_tokens_available"]:
        reporter.warn(
            f"the baselines learn from {used['training_tokens']:,} of {used['training_tokens_available']:,} training "
            "tokens (evaluate.baseline_max_tokens)"
        )
    with reporter.progress("baselines", total=len(names), unit="models") as bar:
        if "unigram" in names:
            unigram = Unigram.fit(stream, vocab_size=dataset.vocab_size)
            details: dict[str, Any] = {"added_to_each_count": ADDED, **used}
            yield row_of_report("unigram", "baseline", "token frequencies", measure(unigram, held_out), **details)
            bar.advance(1)
        if "ngram" in names:
            order = config.ngram_order
            model = KneserNey.fit(stream, vocab_size=dataset.vocab_size, boundary=dataset.eos_id, order=order)
            details = {
                "distinct_by_length": model.distinct,
                "discounts_by_length": model.discounts,
                "lengths_with_fallback_discounts": model.fallback_orders,
                **used,
            }
            description = "interpolated modified Kneser-Ney over tokens"
            yield row_of_report(f"{order}-gram", "baseline", description, measure(model, held_out), **details)
            bar.advance(1)


def _slices(held_out: HeldOut) -> Iterator[tuple[str, list[bytes]]]:
    """Texts of all documents ("") and of each domain; one domain is all there is."""
    texts = [(document.domain, document.text.encode("utf-8", "surrogatepass")) for document in held_out.documents]
    yield "", [text for _, text in texts]
    for name in held_out.domains:
        yield name, [text for domain, text in texts if domain == name]
