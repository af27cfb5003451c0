"""Generation in batches, with a cache of keys and values, streamed as text.

In: a model, its tokenizer, prompts (texts or token ids) of any lengths, `SamplingParams` for all or for each. Out:
pieces of text as they become certain, or whole completions. A request's text does not depend on what else is in the
batch: rows have their own positions and random numbers (products of other sizes may round float32 differently, in the
7th digit).

    engine = Engine.load("workspace/export/0123456789abcdef")
    for piece in engine.stream(["Once upon"], SamplingParams(temperature=0.8, seed=1)): print(piece.text, end="")
"""

from __future__ import annotations

import secrets
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from headwater.core.errors import InputError
from headwater.engine.load import load_model, stop_tokens
from headwater.engine.sampling import SamplingParams, TokenLogprob, choose, logprobs_of
from headwater.engine.text_stream import TextStream
from headwater.model import Decoder, KVCache
from headwater.model.cache import common_beginning
from headwater.tokenizer import Tokenizer

Prompt = str | Sequence[int]
FinishReason = Literal["stop", "length"]

PREFILL_TOKENS = 8192
"""Tokens of prompts run through the model at once: bounds the memory of long prompts in large batches."""

SHARED_TOKENS = 16
"""A beginning that all prompts of a batch share (the examples of a benchmark) is run once, from so many tokens on."""


@dataclass(frozen=True, slots=True)
class Piece:
    """What one step added to one completion. `prompt` and `sample` say which; `finish` is set in its last piece."""

    prompt: int
    sample: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...]
    finish: FinishReason | None


@dataclass(frozen=True, slots=True)
class Completion:
    """One whole completion. `token_ids` has all generated tokens, one that ended the text included; `logprobs` one
    entry a token if asked for. `finish`: stop (end of text, stop string or token) or length."""

    prompt: int
    sample: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...]
    finish: FinishReason
    prompt_tokens: int


class _Row:
    """One completion on its way."""

    def __init__(
        self,
        prompt: int,
        sample: int,
        ids: list[int],
        params: SamplingParams,
        seed: int,
        limit: int,
        ends: frozenset[int],
    ) -> None:
        self.prompt, self.sample, self.ids, self.params = prompt, sample, ids, params
        self.key = (seed, sample)
        self.limit, self.ends = limit, ends
        self.generated: list[int] = []
        self.finish: FinishReason | None = None
        self._stream = TextStream(params.stop)
        self._unsent: list[int] = []
        self._logprobs: list[TokenLogprob] = []

    def take(self, token: int, logprob: TokenLogprob | None, tokenizer: Tokenizer) -> Piece | None:
        """Add a token; a piece if there is text to show or the completion ends."""
        self.generated.append(token)
        self._unsent.append(token)
        if logprob is not None:
            self._logprobs.append(logprob)
        text = ""
        if token in self.ends:
            self.finish = "stop"
        elif token not in tokenizer.special_ids:
            text = self._stream.push(tokenizer.token_bytes(token))
        if self._stream.stopped:
            self.finish = "stop"
        elif self.finish is None and len(self.generated) >= self.limit:
            self.finish = "length"
        if self.finish is not None:
            text += self._stream.finish()
        if not text and self.finish is None:
            return None
        piece = Piece(self.prompt, self.sample, text, tuple(self._unsent), tuple(self._logprobs), self.finish)
        self._unsent, self._logprobs = [], []
        return piece


class Engine:
    """A model and its tokenizer, ready to generate. Holds no state between calls."""

    def __init__(
        self, model: Decoder, tokenizer: Tokenizer, *, stop_ids: Iterable[int] = (), max_rows: int = 64
    ) -> None:
        """stop_ids: tokens that end a text besides the tokenizer's end of text. max_rows: completions computed
        together; more wait for the ones before."""
        if tokenizer.vocab_size > model.config.true_vocab_size:
            raise InputError(
                f"the tokenizer has {tokenizer.vocab_size:,} ids, the model {model.config.true_vocab_size:,}",
                where=str(tokenizer.path),
                mend="use the tokenizer the model was trained with",
            )
        self.model, self.tokenizer, self.max_rows = model.eval(), tokenizer, max_rows
        self.stop_ids = frozenset(stop_ids) | {tokenizer.eos_id}
        self.context = model.config.max_position_embeddings
        self._device = next(model.parameters()).device

    @classmethod
    def load(cls, path: Path | str, *, device: str = "auto", dtype: str = "auto", max_rows: int = 64) -> Engine:
        """From anything `load_model` loads."""
        model, tokenizer = load_model(path, device=device, dtype=dtype)
        return cls(model, tokenizer, stop_ids=stop_tokens(path), max_rows=max_rows)

    def encode(self, prompt: Prompt) -> list[int]:
        """Token ids of a prompt. A text begins as the model's documents do (`Tokenizer.document_prefix`); where they
        begin with nothing, an empty prompt becomes the end-of-text token, after which a document begins."""
        if isinstance(prompt, str):
            prompt = [*self.tokenizer.document_prefix, *self.tokenizer.encode(prompt)]
        return list(prompt) or [self.tokenizer.eos_id]

    def generate(
        self, prompts: Sequence[Prompt], params: SamplingParams | Sequence[SamplingParams]
    ) -> list[Completion]:
        """Completions of all prompts, in order, `n` of each. Errors as `stream`."""
        pieces: dict[tuple[int, int], list[Piece]] = {}
        rows = self._rows(prompts, params)
        for piece in self._run_all(rows):
            pieces.setdefault((piece.prompt, piece.sample), []).append(piece)
        return [_joined(pieces[row.prompt, row.sample], len(row.ids)) for row in rows]

    def stream(
        self,
        prompts: Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams],
        *,
        dropped: Container[int] = (),
    ) -> Iterator[Piece]:
        """Pieces of all completions as they come; closing the iterator ends the work.

        dropped: numbers of prompts nobody waits for any more, looked at in every step, so it may grow meanwhile; their
        completions leave the batch without a last piece.

        Raises InputError, before the first piece, for a prompt that leaves no room in the context or has ids the model
        does not know.
        """
        return self._run_all(self._rows(prompts, params), dropped)

    def _rows(self, prompts: Sequence[Prompt], params: SamplingParams | Sequence[SamplingParams]) -> list[_Row]:
        each = [params] * len(prompts) if isinstance(params, SamplingParams) else list(params)
        if len(each) != len(prompts):
            raise InputError(f"{len(prompts)} prompts and {len(each)} sampling parameters")
        rows = []
        for number, (prompt, wanted) in enumerate(zip(prompts, each, strict=True)):
            ids = self.encode(prompt)
            self._check(ids, wanted, number)
            room = self.context - len(ids)
            limit = room if wanted.max_tokens is None else min(room, wanted.max_tokens)
            ends = frozenset(wanted.stop_token_ids) | (frozenset() if wanted.ignore_eos else self.stop_ids)
            seed = secrets.randbits(63) if wanted.seed is None else wanted.seed
            rows += [_Row(number, sample, ids, wanted, seed, limit, ends) for sample in range(wanted.n)]
        return rows

    def _check(self, ids: list[int], params: SamplingParams, number: int) -> None:
        if len(ids) >= self.context:
            raise InputError(
                f"the prompt has {len(ids):,} tokens and the model's context {self.context:,}",
                where=f"prompt {number}",
                mend="shorten the prompt",
            )
        vocab = self.model.config.true_vocab_size
        for name, tokens in (
            ("prompt", ids),
            ("logit_bias", params.logit_bias),
            ("stop_token_ids", params.stop_token_ids),
        ):
            wrong = next((token for token in tokens if not 0 <= token < vocab), None)
            if wrong is not None:
                raise InputError(f"{name} has token {wrong}; ids go from 0 to {vocab - 1:,}", where=f"prompt {number}")

    def _run_all(self, rows: list[_Row], dropped: Container[int] = ()) -> Iterator[Piece]:
        for start in range(0, len(rows), self.max_rows):
            batch = [row for row in rows[start : start + self.max_rows] if row.prompt not in dropped]
            if batch:
                yield from self._run(batch, dropped)

    def _run(self, rows: list[_Row], dropped: Container[int]) -> Iterator[Piece]:
        distinct = list({id(row.ids): row.ids for row in rows}.values())  # samples of a prompt share its list
        cache, hidden = self._prefill(distinct)
        places = {id(ids): place for place, ids in enumerate(distinct)}
        if len(rows) > len(distinct):
            hidden = self._select([places[id(row.ids)] for row in rows], cache, hidden)
        while True:
            tokens, logprobs = self._choose(rows, hidden)
            for row, token, logprob in zip(rows, tokens, logprobs, strict=True):
                piece = row.take(token, logprob, self.tokenizer)
                if piece is not None:
                    yield piece
            alive = [place for place, row in enumerate(rows) if row.finish is None and row.prompt not in dropped]
            if not alive:
                return
            if len(alive) < len(rows):
                rows = [rows[place] for place in alive]
                self._select(alive, cache, None)
            hidden = self._step(rows, cache)

    @torch.inference_mode()
    def _prefill(self, prompts: list[list[int]]) -> tuple[KVCache, Tensor]:
        """Run prompts of any lengths through the model: their cache, and the hidden state after each one's last token,
        [rows, dim]."""
        shared = _shared_tokens(prompts)
        cache = KVCache(self.model.config, 1 if shared else len(prompts))
        for start in range(0, shared, PREFILL_TOKENS):
            tokens = torch.tensor([prompts[0][start : min(start + PREFILL_TOKENS, shared)]], device=self._device)
            self.model(tokens, torch.arange(start, start + tokens.shape[1], device=self._device)[None], cache=cache)
        if shared:
            self._select([0] * len(prompts), cache, None)
        lengths = torch.tensor([len(ids) for ids in prompts], device=self._device)
        longest = int(lengths.max())
        # Padding on the right: stored in slots that are overwritten before any query may see them.
        tokens = torch.tensor([ids + [0] * (longest - len(ids)) for ids in prompts], device=self._device)
        last: Tensor | None = None
        width = max(1, PREFILL_TOKENS // len(prompts))
        for start in range(shared, longest, width):
            end = min(start + width, longest)
            positions = torch.arange(start, end, device=self._device).expand(len(prompts), -1)
            hidden = self.model(tokens[:, start:end], positions, cache=cache)
            inside = (lengths - 1 >= start) & (lengths - 1 < end)
            if last is None:
                last = hidden.new_zeros(len(prompts), hidden.shape[-1])
            last[inside] = hidden[inside, lengths[inside] - 1 - start]
        assert last is not None
        return cache, last

    @torch.inference_mode()
    def _step(self, rows: list[_Row], cache: KVCache) -> Tensor:
        tokens = torch.tensor([[row.generated[-1]] for row in rows], device=self._device)
        positions = torch.tensor([[len(row.ids) + len(row.generated) - 1] for row in rows], device=self._device)
        return self.model(tokens, positions, cache=cache)[:, 0]

    @torch.inference_mode()
    def _choose(self, rows: list[_Row], hidden: Tensor) -> tuple[list[int], list[TokenLogprob | None]]:
        logits = self.model.logits(hidden).float()
        if self._device.type == "mps":
            logits = logits.cpu()  # drawing needs float64, which MPS lacks
        params = [row.params for row in rows]
        tokens = choose(
            logits, params, [row.ids for row in rows], [row.generated for row in rows], [row.key for row in rows]
        )
        return tokens, logprobs_of(logits, tokens, [p.logprobs for p in params])

    @torch.inference_mode()
    def _select(self, places: list[int], cache: KVCache, hidden: Tensor | None) -> Tensor:
        index = torch.tensor(places, device=self._device)
        cache.select(index)
        return index if hidden is None else hidden[index]


def _shared_tokens(prompts: list[list[int]]) -> int:
    """How many tokens all prompts begin with and each goes on after; 0 where running them once saves little."""
    shared = min(common_beginning(prompts), min(map(len, prompts)) - 1)
    return shared if len(prompts) > 1 and shared >= SHARED_TOKENS else 0


def _joined(pieces: list[Piece], prompt_tokens: int) -> Completion:
    finish = pieces[-1].finish
    assert finish is not None
    return Completion(
        pieces[0].prompt,
        pieces[0].sample,
        "".join(piece.text for piece in pieces),
        tuple(token for piece in pieces for token in piece.token_ids),
        tuple(logprob for piece in pieces for logprob in piece.logprobs),
        finish,
        prompt_tokens,
    )


def generate(
    source: Path | str,
    prompts: Sequence[Prompt],
    params: SamplingParams | Sequence[SamplingParams] | None = None,
    *,
    device: str = "auto",
    dtype: str = "auto",
) -> list[Completion]:
    """Load a model and complete prompts with it: one call for `headwater generate` and scripts.

    source: a run, a checkpoint, an export or any Hugging Face folder of a supported kind. Errors as `load_model` and
    `Engine.stream`.
    """
    return Engine.load(source, device=device, dtype=dtype).generate(prompts, params or SamplingParams())
