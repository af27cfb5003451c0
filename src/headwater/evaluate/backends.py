"""What tasks ask of a model: likelihoods of continuations and of whole texts, and texts. A model on this machine here;
a server in `server_backend`.

    backend = LocalBackend.open("workspace/export/0123456789abcdef")
    backend.likelihoods([("The sky is", " blue")]); backend.complete(["Once"], SamplingParams(max_tokens=20))
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from headwater.core.errors import InputError
from headwater.engine import Engine, SamplingParams, load_model
from headwater.engine.load import stop_tokens
from headwater.evaluate.likelihood import ContinuationScorer, Likelihood
from headwater.evaluate.scorer import NeuralScorer

Progress = Callable[[int], None]


class Written(list[str]):
    """The texts written for one prompt; `dropped` tokens of the prompt did not fit before them, `finish` says why each
    text ended (stop, length)."""

    def __init__(self, texts: Iterable[str], *, dropped: int = 0, finish: Sequence[str] = ()) -> None:
        super().__init__(texts)
        self.dropped, self.finish = dropped, tuple(finish)


@dataclass(frozen=True, slots=True)
class TextLikelihood:
    """Of a whole text. `nats` is ln p; `windows` the passes it was cut into."""

    nats: float
    tokens: int
    windows: int = 1


class Backend(Protocol):
    """A model as tasks see it."""

    @property
    def name(self) -> str: ...

    @property
    def facts(self) -> dict[str, Any]:
        """How it reads text: context, what stands first, tokenizer, dtype. Part of every protocol's fingerprint."""
        ...

    @property
    def model(self) -> dict[str, Any]:
        """Which model it is: its weights, their number. Records of another model are not continued."""
        ...

    def likelihoods(
        self, pairs: Sequence[tuple[str, str]], on_progress: Progress | None = None
    ) -> list[Likelihood]: ...

    def texts(
        self,
        texts: Sequence[str],
        *,
        window: int | None = None,
        stride: int | None = None,
        on_progress: Progress | None = None,
    ) -> list[TextLikelihood]:
        """ln p of whole texts, in rolling windows of at most `window` tokens; `stride` new ones each."""
        ...

    def complete(
        self, prompts: Sequence[str], params: SamplingParams, on_progress: Progress | None = None
    ) -> Sequence[list[str]]:
        """`params.n` texts for each prompt (`Written`), without the stop string that ended them."""
        ...


class LocalBackend:
    """A decoder and its tokenizer in this process. `facts` and `model` add to what the result says of them."""

    def __init__(
        self,
        name: str,
        engine: Engine,
        *,
        batch_tokens: int = 16384,
        facts: dict[str, Any] | None = None,
        model: dict[str, Any] | None = None,
    ) -> None:
        self.name, self.engine, self.batch_tokens = name, engine, batch_tokens
        self.scorer = ContinuationScorer(engine.model, engine.tokenizer, tokens_at_once=batch_tokens)
        self.facts = {
            "context": engine.context,
            "begins_with": list(self.scorer.prefix),
            "starts_empty_from": self.scorer.start,
            "tokenizer": engine.tokenizer.sha256[:16],
            "dtype": str(next(engine.model.parameters()).dtype).removeprefix("torch."),
            **(facts or {}),
        }
        self.model = {"parameters": engine.model.config.parameter_count().total, **(model or {})}

    @classmethod
    def open(
        cls, path: Path | str, *, device: str = "auto", dtype: str = "auto", batch_tokens: int = 16384
    ) -> LocalBackend:
        """From a run, a checkpoint, an export or a Hugging Face folder. Errors as `load_model`."""
        model, tokenizer = load_model(path, device=device, dtype=dtype)
        engine = Engine(model, tokenizer, stop_ids=stop_tokens(path))
        return cls(Path(path).resolve().name, engine, batch_tokens=batch_tokens, model={"weights": weights_hash(path)})

    def likelihoods(self, pairs: Sequence[tuple[str, str]], on_progress: Progress | None = None) -> list[Likelihood]:
        return self.scorer.score(pairs, on_progress)

    def texts(
        self,
        texts: Sequence[str],
        *,
        window: int | None = None,
        stride: int | None = None,
        on_progress: Progress | None = None,
    ) -> list[TextLikelihood]:
        """A text's first token is predicted from bos, or eos where the tokenizer has none. InputError for a window
        longer than the context, or a text without a finite likelihood."""
        size = self.engine.context if window is None else window
        if size > self.engine.context:
            raise InputError(
                f"a window of {size:,} tokens exceeds the model's context of {self.engine.context:,}",
                where="window",
                mend=f"use at most {self.engine.context:,}, or leave it out",
            )
        step = size if stride is None else min(stride, size)
        scorer = NeuralScorer(
            self.engine.model,
            vocab_size=self.engine.model.config.true_vocab_size,
            window=size,
            stride=step,
            prefix_id=self.scorer.start,
            batch_tokens=self.batch_tokens,
            on_progress=on_progress,
        )
        encoded = [np.asarray(tokens, dtype=np.int64) for tokens in self.engine.tokenizer.encode_batch(list(texts))]
        found = []
        for tokens, logs in zip(encoded, scorer.score(list(encoded)), strict=True):
            nats = float(np.sum(logs, dtype=np.float64))
            if not np.isfinite(nats):
                raise InputError("the model gives a token of the text no finite probability", where=self.name)
            later = max(0, len(tokens) - size)
            found.append(TextLikelihood(nats, len(tokens), 1 + -(-later // step)))
        return found

    def complete(
        self, prompts: Sequence[str], params: SamplingParams, on_progress: Progress | None = None
    ) -> list[Written]:
        # What is too long for the context loses its left end, as in the likelihoods, and the answer says how much.
        room = max(1, self.engine.context - (params.max_tokens or 0))
        whole = [self.engine.encode(prompt) for prompt in prompts]
        ids = [tokens[-room:] for tokens in whole]
        texts: list[list[str]] = [[] for _ in prompts]
        finish: list[list[str]] = [[] for _ in prompts]
        order = sorted(range(len(prompts)), key=lambda place: -len(ids[place]))
        rows = max(1, self.engine.max_rows // params.n)
        for start in range(0, len(order), rows):
            places = order[start : start + rows]
            for done in self.engine.generate([ids[place] for place in places], params):
                texts[places[done.prompt]].append(done.text)
                finish[places[done.prompt]].append(done.finish)
            if on_progress is not None:
                on_progress(len(places))
        return [
            Written(texts[place], dropped=len(whole[place]) - len(ids[place]), finish=finish[place])
            for place in range(len(prompts))
        ]


def weights_hash(path: Path | str) -> str:
    """16 hex digits that tell one model folder's weights from another's.

    Of a run or checkpoint its manifest's, which holds the hash of every file; else of the weight files' bytes.
    """
    folder = Path(path)
    digest = hashlib.sha256()
    if (folder / "config.json").is_file():
        files = sorted(folder.glob("*.safetensors"))
    else:
        from headwater.train.weights import find_checkpoint

        files = [find_checkpoint(folder).path / "manifest.json"]
    for file in files:
        with open(file, "rb") as opened:
            while chunk := opened.read(1 << 22):
                digest.update(chunk)
    return digest.hexdigest()[:16]
