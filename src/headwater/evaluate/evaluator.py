"""One call from a model and held-out text to named values.

    Evaluator("workspace/runs/4f2a").run("held-out.jsonl")["bits_per_byte"]

A metric is anything with a `name` and `evaluate(model, test_data)`. What it gets as `model` is an `EvaluatedModel`,
which scores documents, has the tokenizer and continues prompts.

    class Documents:
        name = "documents"
        def evaluate(self, model, test_data): return float(len(test_data.documents))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from headwater.core.errors import UserError
from headwater.evaluate.config import EvaluateConfig
from headwater.evaluate.heldout import HeldOut
from headwater.evaluate.models import EvaluatedModel, open_model
from headwater.evaluate.perplexity import Perplexity, TokenScorer
from headwater.evaluate.sources import held_out_of

TestData = HeldOut | Path | str | Sequence[Path | str]


class Metric(Protocol):
    """Gives one value, or several by name."""

    @property
    def name(self) -> str: ...

    def evaluate(self, model: Any, test_data: Any, /) -> float | Mapping[str, float]: ...


class Evaluator:
    """A model and the metrics to take of it; the default metric is `Perplexity`."""

    def __init__(
        self,
        model: EvaluatedModel | TokenScorer | Path | str,
        metrics: Sequence[Metric] | None = None,
        *,
        config: EvaluateConfig | None = None,
        device: str = "auto",
    ) -> None:
        """model: a path, an opened model, or any other scorer of tokens (an n-gram model). `config` says how to score
        and which split of a dataset."""
        self._config = config or EvaluateConfig()
        self.model = open_model(model, self._config, device=device) if isinstance(model, Path | str) else model
        self.metrics: Sequence[Metric] = metrics if metrics is not None else [Perplexity()]

    def run(self, test_data: TestData) -> dict[str, float]:
        """{name: value}. test_data: `HeldOut`, a packed dataset, or files and folders of text; metrics get it as
        `HeldOut`. Where no metric needs text (`needs_text = False`) it is passed on as it is.

        Raises UserError if two metrics give the same name, or a scorer without a tokenizer is given files.
        """
        read = any(getattr(metric, "needs_text", True) for metric in self.metrics)
        if read and not isinstance(test_data, HeldOut):
            if not isinstance(self.model, EvaluatedModel):
                raise UserError(
                    f"a {type(self.model).__name__} has no tokenizer to read files with",
                    mend="make the test data with headwater.evaluate.held_out_of(paths, tokenizer)",
                )
            test_data = held_out_of(test_data, self.model.tokenizer, self._config)
        values: dict[str, float] = {}
        for metric in self.metrics:
            found = metric.evaluate(self.model, test_data)
            named = found if isinstance(found, Mapping) else {metric.name: found}
            if clash := values.keys() & named.keys():
                raise UserError(f"two metrics give {', '.join(sorted(clash))}", mend="rename one")
            values |= named
        return values
