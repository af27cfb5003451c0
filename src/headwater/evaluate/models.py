"""A model opened for evaluation: it scores documents and continues texts.

model = open_model("workspace/runs/4f2a", EvaluateConfig(stride=128))
model.score([np.array([17, 4, 99])])       # it is a TokenScorer
model.complete(["Once upon a time"], SamplingParams(seed=1))
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headwater.core.errors import InputError
from headwater.engine import Completion, Engine, SamplingParams, load_model
from headwater.evaluate.config import EvaluateConfig
from headwater.evaluate.scorer import NeuralScorer
from headwater.model import Decoder
from headwater.tokenizer import Tokenizer
from headwater.train.run_folder import RunFolder


class EvaluatedModel:
    """A decoder with its tokenizer and the scoring protocol. `facts`: step, parameters ... for the result."""

    def __init__(
        self,
        name: str,
        decoder: Decoder,
        tokenizer: Tokenizer,
        config: EvaluateConfig,
        *,
        trained_context: int | None = None,
        facts: dict[str, Any] | None = None,
    ) -> None:
        """trained_context: longest sample seen in training, None if unknown. Raises InputError for a window longer
        than the model's context or a prefix the tokenizer does not have."""
        self.name, self.decoder, self.tokenizer = name, decoder, tokenizer
        self.vocab_size = decoder.config.true_vocab_size
        limit = decoder.config.max_position_embeddings
        self.window = config.window if config.window is not None else min(limit, trained_context or limit)
        if self.window > limit:
            raise InputError(
                f"a window of {self.window:,} tokens exceeds the model's context of {limit:,}",
                where="evaluate.window",
                mend=f"use at most {limit:,}, or leave it out",
            )
        self.stride = config.stride if config.stride is not None else self.window
        if self.stride > self.window:
            raise InputError(
                f"a stride of {self.stride:,} tokens exceeds the window of {self.window:,}",
                where="evaluate.stride",
                mend=f"use at most {self.window:,}, or leave it out",
            )
        self.prefix, self.prefix_id = choose_prefix(config.prefix, tokenizer)
        self._batch_tokens = config.batch_tokens
        self.facts = {
            "parameters": decoder.config.parameter_count().total,
            "context": limit,
            "trained_context": trained_context,
            **(facts or {}),
        }

    def score(
        self, documents: list[NDArray[np.integer]], on_progress: Callable[[int], None] | None = None
    ) -> list[NDArray[np.float64]]:
        """ln p of every token; `on_progress` is told how many tokens were scored. See `NeuralScorer`."""
        scorer = NeuralScorer(
            self.decoder,
            vocab_size=self.vocab_size,
            window=self.window,
            stride=self.stride,
            prefix_id=self.prefix_id,
            batch_tokens=self._batch_tokens,
            on_progress=on_progress,
        )
        return scorer.score(documents)

    @property
    def protocol(self) -> dict[str, Any]:
        """All that decides a score besides weights and text."""
        return {
            "tokens": "each scored once; a document's closing end-of-document token is not scored",
            "window": self.window,
            "stride": self.stride,
            "context_of_later_windows": self.window - self.stride + 1,
            "first_token": self.prefix,
            "tokenizer": self.tokenizer.sha256[:16],
        }

    @cached_property
    def engine(self) -> Engine:
        return Engine(self.decoder, self.tokenizer)

    def complete(self, prompts: Sequence[str | Sequence[int]], params: SamplingParams) -> list[Completion]:
        """Continue prompts. Errors as `headwater.engine.Engine.stream`."""
        return self.engine.generate(prompts, params)


def choose_prefix(policy: str, tokenizer: Tokenizer) -> tuple[str, int | None]:
    """What a document's first token is predicted from: in words, and its id (None: nothing, charged ln(vocabulary)).

    auto: what the model's documents begin with (`Tokenizer.document_prefix`); where that is nothing, bos if there is
    one, else eos, as lm-evaluation-harness does.
    """
    if policy == "auto":
        policy = "bos" if tokenizer.bos_id is not None else "eos"
    if policy == "uniform":
        return "charged ln(vocabulary) nats", None
    if policy == "eos":
        return "predicted from eos", tokenizer.eos_id
    if tokenizer.bos_id is None:
        raise InputError("the tokenizer has no bos token", where="evaluate.prefix", mend="use eos or uniform")
    return "predicted from bos", tokenizer.bos_id


def open_model(path: Path | str, config: EvaluateConfig | None = None, *, device: str = "auto") -> EvaluatedModel:
    """Load a run, a checkpoint, an export or a Hugging Face folder. Errors as `load_model` and `EvaluatedModel`."""
    path = Path(path)
    model, tokenizer = load_model(path, device=device)
    run = RunFolder.of(path) if not (path / "config.json").is_file() else None
    context, facts = None, {}
    if run is not None:
        from headwater.train.weights import find_checkpoint

        context, facts = longest_sample(run), {"step": find_checkpoint(path).step}
    return EvaluatedModel(
        run.run_id if run is not None else path.resolve().name,
        model,
        tokenizer,
        config or EvaluateConfig(),
        trained_context=context,
        facts=facts,
    )


def longest_sample(run: RunFolder) -> int:
    """Tokens of the longest samples a run was trained on: positions beyond them were never learned."""
    train = run.record["train"]
    return max(phase.get("seq_len") or train["seq_len"] for phase in [{}, *train.get("phases", ())])
