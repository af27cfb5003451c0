"""A whole evaluation: the model's perplexities, the baselines beside it, generated samples.

In: a model and held-out text. Out: an `EvaluationResult`, which becomes JSON and Markdown.

    result = evaluate_model("workspace/runs/4f2a", "workspace/dataset/0123456789abcdef")
    print(result.markdown())
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headwater.core.errors import InputError
from headwater.core.progress import SILENT, Reporter
from headwater.dataset import TokenDataset
from headwater.engine import SamplingParams
from headwater.evaluate.baselines import baseline_rows
from headwater.evaluate.config import EvaluateConfig
from headwater.evaluate.heldout import HeldOut, HeldOutDocument
from headwater.evaluate.models import EvaluatedModel, open_model
from headwater.evaluate.perplexity import measure
from headwater.evaluate.results import EvaluationResult, data_of, row_of_report, with_fingerprint
from headwater.evaluate.sources import held_out_of, is_dataset

PROMPT_TOKENS = 32
"""Of a held-out document's opening, where the recipe names no prompts."""


def evaluate_model(
    model: Path | str,
    data: Path | str | Sequence[Path | str],
    config: EvaluateConfig | None = None,
    *,
    device: str = "auto",
    reporter: Reporter = SILENT,
) -> EvaluationResult:
    """Evaluate a model straight on files, or on a packed dataset's held-out split.

    model: a run, a checkpoint, an export or a Hugging Face folder. data: a packed dataset, whose training split the
    baselines learn from; or corpus folders, Parquet, JSON Lines and text files, which have none. Raises InputError for
    what cannot be read, or a dataset packed with another tokenizer.
    """
    config = config or EvaluateConfig()
    opened = open_model(model, config, device=device)
    held_out = held_out_of(data, opened.tokenizer, config)
    paths = [data] if isinstance(data, Path | str) else list(data)
    dataset = TokenDataset.open(paths[0]) if len(paths) == 1 and is_dataset(paths[0]) else None
    return evaluate(opened, held_out, config, dataset=dataset, reporter=reporter)


def evaluate(
    model: EvaluatedModel,
    held_out: HeldOut,
    config: EvaluateConfig,
    *,
    dataset: TokenDataset | None = None,
    reporter: Reporter = SILENT,
) -> EvaluationResult:
    """Score an opened model and, with a `dataset` to learn from, the baselines. Raises InputError for text that another
    tokenizer cut."""
    if held_out.tokenizer_sha256 != model.tokenizer.sha256:
        raise InputError(
            f"the text was tokenized with {held_out.tokenizer_sha256[:16]}, the model's is "
            f"{model.tokenizer.sha256[:16]}",
            where=held_out.source,
            mend="tokenize it with the model's own tokenizer",
        )
    reporter.decide(
        f"windows of {model.window:,} tokens, {model.stride:,} new ones each",
        why=f"a document's first token is {model.prefix}",
    )
    with reporter.progress("score", total=held_out.tokens, unit="tokens") as bar:
        report = measure(_WithProgress(model, bar.advance), held_out)
    rows, notes = baseline_rows(config, held_out, dataset, reporter)
    data = data_of(held_out)
    protocol = with_fingerprint({**model.protocol, "data": data["fingerprint"]})
    return EvaluationResult(
        model={"name": model.name, **model.facts},
        data=data,
        protocol=protocol,
        rows=(row_of_report("model", "model", model.name, report), *rows),
        samples=tuple(_samples(model, held_out, config)),
        notes=tuple(notes),
    )


class _WithProgress:
    """The model as a scorer that moves a bar."""

    def __init__(self, model: EvaluatedModel, advance: Any) -> None:
        self._model, self._advance = model, advance
        self.vocab_size = model.vocab_size

    def score(self, documents: list[NDArray[np.integer]]) -> list[NDArray[np.float64]]:
        return self._model.score(documents, self._advance)


def _samples(model: EvaluatedModel, held_out: HeldOut, config: EvaluateConfig) -> list[dict[str, Any]]:
    if config.sample_tokens == 0:
        return []
    prompts: list[tuple[str, list[int]]]
    if config.sample_prompts:
        prompts = [("", model.engine.encode(text)) for text in config.sample_prompts]
    else:
        start = list(model.tokenizer.document_prefix)
        prompts = [(name, start + _opening(held_out, name)) for name in held_out.domains]
    params = SamplingParams(
        max_tokens=config.sample_tokens, temperature=config.sample_temperature, seed=config.sample_seed
    )
    return [
        {
            "domain": domain,
            "prompt": model.tokenizer.decode(ids),
            "text": completion.text,
            "tokens": len(completion.token_ids),
            "finish": completion.finish,
            "temperature": config.sample_temperature,
            "seed": config.sample_seed,
        }
        for (domain, ids), completion in zip(prompts, model.complete([ids for _, ids in prompts], params), strict=True)
    ]


def _opening(held_out: HeldOut, domain: str) -> list[int]:
    """The first tokens of the domain's first document that has more than that, else of its longest."""
    documents: list[HeldOutDocument] = [item for item in held_out.documents if item.domain == domain]
    longest = max(documents, key=lambda item: len(item.tokens))
    chosen = next((item for item in documents if len(item.tokens) >= 2 * PROMPT_TOKENS), longest)
    return chosen.tokens[: min(PROMPT_TOKENS, max(1, len(chosen.tokens) // 2))].tolist()
