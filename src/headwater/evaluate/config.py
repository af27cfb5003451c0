"""The recipe's `evaluate` section: which held-out text is scored, how, and beside what.

Imports no torch, so that a recipe loads in milliseconds.
"""

from __future__ import annotations

from typing import Literal, Self

from pydantic import model_validator

from headwater.core.config import Section, field

Baseline = Literal["unigram", "ngram", "xz"]
Prefix = Literal["auto", "bos", "eos", "uniform"]


class DuringTraining(Section):
    """Benchmarks while a model is trained, on the weights where they are: no export, every rank takes part. Figures are
    in the run's record as `eval`, `TASK/METRIC` each; the run's weights do not depend on it."""

    tasks: tuple[str, ...] = field((), kind="operational")
    """Tasks by name or YAML file: multiple choice and cloze. None: no benchmarks during training."""

    data: str | None = field(None, kind="operational")
    """Folder with the tasks' files; null takes the Hugging Face hub."""

    every: int | None = field(None, kind="operational", ge=0, unit="steps")
    """Steps between two times; 0: only at the end; default: five times over the run."""

    limit: int = field(64, kind="operational", ge=1, unit="items")
    """First items of each task that are scored; a few hundred forward passes of one row each cost seconds."""


class EvaluateConfig(Section):
    """Held-out evaluation: perplexity and bits per byte by domain and language, beside simple baselines."""

    split: Literal["validation", "test"] = field("validation")
    """Which held-out split of the dataset is scored."""

    max_tokens: int | None = field(None, unit="tokens", ge=1)
    """Score each domain's first documents until they hold this many tokens; null scores all. The result states how many
    documents were left out."""

    window: int | None = field(None, unit="tokens", ge=2)
    """Longest input of one forward pass; null takes the context the model was trained with."""

    stride: int | None = field(None, unit="tokens", ge=1)
    """New tokens a window after the first scores; null equals the window (disjoint windows with one token of
    context, as lm-evaluation-harness does). Half the window gives lower, fairer perplexity at twice the cost."""

    prefix: Prefix = field("auto")
    """What a document's first token is predicted from: the bos token, the eos token, or nothing, in which case it is
    charged ln(vocabulary) nats. auto: bos if the tokenizer has one, else eos."""

    baselines: tuple[Baseline, ...] = field(("unigram", "ngram", "xz"))
    """Scored beside the model on the same documents: unigram and n-gram models trained on the same training split
    with the same tokenizer, and xz -9e of the same bytes."""

    ngram_order: int = field(5, unit="tokens", ge=1, le=8)
    """Length of the n-gram baseline's longest n-gram (interpolated modified Kneser-Ney)."""

    baseline_max_tokens: int | None = field(30_000_000, unit="tokens", ge=1)
    """The unigram and n-gram models are trained on at most this many tokens, taken from each domain in proportion; null
    takes all. 30 million need 2 GB of memory. The result states what was used."""

    sample_prompts: tuple[str, ...] = field(())
    """Texts the model continues for the report; none: the opening of one held-out document of each domain."""

    sample_tokens: int = field(96, unit="tokens", ge=0)
    """Length of each generated continuation; 0 generates none."""

    sample_temperature: float = field(0.8, ge=0.0)
    """Sampling temperature of the continuations; 0 takes the likeliest token."""

    sample_seed: int = field(0)
    """Seed of the continuations."""

    during_training: DuringTraining = field(default_factory=DuringTraining, kind="operational")
    """Benchmarks in the course of the run."""

    batch_tokens: int = field(16384, unit="tokens", kind="operational", ge=1)
    """Most tokens in one forward pass, padding included; a window, or a question with its choices, that is longer is a
    pass of its own, and so is what many questions begin with. Changes memory and speed, not the result."""

    device: Literal["auto", "cpu", "cuda", "mps"] = field("auto", kind="operational")
    """Where to score; `auto`: CUDA, else MPS, else CPU."""

    @model_validator(mode="after")
    def _stride_fits(self) -> Self:
        if self.window is not None and self.stride is not None and self.stride > self.window:
            raise ValueError(f"stride {self.stride} is above window {self.window}: tokens between would not be scored")
        return self
