"""What tasks ask of a model: likelihoods of continuations, and texts. A model on this machine here; a server in
`server_backend`.

    backend = LocalBackend.open("workspace/export/0123456789abcdef")
    backend.likelihoods([("The sky is", " blue")]); backend.complete(["Once"], stop=("\\n",), max_tokens=20)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from headwater.engine import Engine, SamplingParams, load_model
from headwater.engine.load import stop_tokens
from headwater.evaluate.likelihood import ContinuationScorer, Likelihood

Progress = Callable[[int], None]


class Backend(Protocol):
    """A model as tasks see it."""

    @property
    def name(self) -> str: ...

    @property
    def facts(self) -> dict[str, Any]:
        """What identifies model, tokenizer and protocol: part of every result's fingerprint."""
        ...

    def likelihoods(
        self, pairs: Sequence[tuple[str, str]], on_progress: Progress | None = None
    ) -> list[Likelihood]: ...

    def complete(
        self,
        prompts: Sequence[str],
        *,
        stop: Sequence[str],
        max_tokens: int,
        temperature: float = 0.0,
        top_p: float = 1.0,
        n: int = 1,
        seed: int = 0,
        on_progress: Progress | None = None,
    ) -> list[list[str]]:
        """`n` texts for each prompt, without the stop string that ended them. Temperature 0 is greedy."""
        ...


class LocalBackend:
    """A decoder and its tokenizer in this process. `facts` adds to what the result says of the model."""

    def __init__(
        self, name: str, engine: Engine, *, batch_tokens: int = 16384, facts: dict[str, Any] | None = None
    ) -> None:
        self.name, self.engine = name, engine
        self.scorer = ContinuationScorer(engine.model, engine.tokenizer, batch_tokens=batch_tokens)
        self.facts = {
            "parameters": engine.model.config.parameter_count().total,
            "context": engine.context,
            "begins_with": list(self.scorer.prefix),
            "tokenizer": engine.tokenizer.sha256[:16],
            "dtype": str(next(engine.model.parameters()).dtype).removeprefix("torch."),
            **(facts or {}),
        }

    @classmethod
    def open(
        cls, path: Path | str, *, device: str = "auto", dtype: str = "auto", batch_tokens: int = 16384
    ) -> LocalBackend:
        """From a run, a checkpoint, an export or a Hugging Face folder. Errors as `load_model`."""
        model, tokenizer = load_model(path, device=device, dtype=dtype)
        engine = Engine(model, tokenizer, stop_ids=stop_tokens(path))
        return cls(Path(path).resolve().name, engine, batch_tokens=batch_tokens)

    def likelihoods(self, pairs: Sequence[tuple[str, str]], on_progress: Progress | None = None) -> list[Likelihood]:
        return self.scorer.score(pairs, on_progress)

    def complete(
        self,
        prompts: Sequence[str],
        *,
        stop: Sequence[str],
        max_tokens: int,
        temperature: float = 0.0,
        top_p: float = 1.0,
        n: int = 1,
        seed: int = 0,
        on_progress: Progress | None = None,
    ) -> list[list[str]]:
        params = SamplingParams(
            max_tokens=max_tokens, temperature=temperature, top_p=top_p, n=n, seed=seed, stop=tuple(stop)
        )
        # What is too long for the context loses its left end, as in the likelihoods.
        room = max(1, self.engine.context - max_tokens)
        ids = [self.engine.encode(prompt)[-room:] for prompt in prompts]
        texts: list[list[str]] = [[] for _ in prompts]
        order = sorted(range(len(prompts)), key=lambda place: -len(ids[place]))
        rows = max(1, self.engine.max_rows // n)
        for start in range(0, len(order), rows):
            places = order[start : start + rows]
            for done in self.engine.generate([ids[place] for place in places], params):
                texts[places[done.prompt]].append(done.text)
            if on_progress is not None:
                on_progress(len(places))
        return texts
