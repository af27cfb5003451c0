"""How the next token is chosen: parameters, and pure functions from logits to a token.

In: logits `[rows, vocab]`, each row with its own `SamplingParams`, its prompt and the tokens so far. Out: one token id
a row. The order is Hugging Face's: bias, penalties, temperature, top_k, top_p, min_p, then a draw. The random
number of a step is a hash of (seed, sample, step), so a request's text depends on nothing else in the batch.

    params = SamplingParams(temperature=0.8, top_p=0.95, seed=1, stop=("\\n\\n",))
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from headwater.core.errors import UserError

MIN_TEMPERATURE = 1e-5
"""Divided by less, float32 logits overflow."""

MAX_LOGPROBS = 100
"""Most alternatives listed a token."""

CANDIDATES = 256
"""Likeliest tokens looked at first where top_k, top_p or min_p are on: ordering a whole vocabulary takes longer than a
step of a small model (64 rows of 8000: 62 ms a step for two sorts)."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """What a request asks for. Raises UserError, naming the field, for values that make no sense."""

    max_tokens: int | None = 256
    """Most tokens to generate; None: up to the model's context. Generation ends at the context in any case."""
    temperature: float = 1.0
    """Logits are divided by it; 0 always takes the likeliest token (greedy)."""
    top_k: int = 0
    """Only the k likeliest tokens; 0: all."""
    top_p: float = 1.0
    """Only the fewest likeliest tokens that together reach this probability (nucleus, arXiv 1904.09751)."""
    min_p: float = 0.0
    """Only tokens at least this times as likely as the likeliest (arXiv 2407.01082)."""
    repetition_penalty: float = 1.0
    """Logits of tokens in prompt or text are divided by it if positive, multiplied if negative (arXiv 1909.05858)."""
    presence_penalty: float = 0.0
    """Subtracted from logits of tokens generated before (OpenAI)."""
    frequency_penalty: float = 0.0
    """Subtracted for each time a token was generated before (OpenAI)."""
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    """Added to the logits of these token ids."""
    seed: int | None = None
    """Fixes the draws; None: other ones each time."""
    n: int = 1
    """Completions of each prompt."""
    stop: tuple[str, ...] = ()
    """Text ends before the first of these; one string stands for itself."""
    stop_token_ids: tuple[int, ...] = ()
    """Tokens that end the text, besides the model's own end of text."""
    ignore_eos: bool = False
    """Go on past the model's end of text."""
    logprobs: int | None = None
    """Give each token's log-probability and those of this many likeliest ones, as the model has them, before any of the
    above; None: none."""

    def __post_init__(self) -> None:
        if isinstance(self.stop, str):
            object.__setattr__(self, "stop", (self.stop,))
        object.__setattr__(self, "stop", tuple(self.stop))
        object.__setattr__(self, "stop_token_ids", tuple(self.stop_token_ids))
        _check(
            self.max_tokens is None or _whole(self.max_tokens, 1), "max_tokens", self.max_tokens, "at least 1, or null"
        )
        _check(
            _number(self.temperature, 0) and not 0 < self.temperature < MIN_TEMPERATURE,
            "temperature",
            self.temperature,
            f"0 (greedy), or at least {MIN_TEMPERATURE:g}",
        )
        _check(_whole(self.top_k, 0), "top_k", self.top_k, "0 (off) or more")
        _check(_number(self.top_p, 0, 1) and self.top_p > 0, "top_p", self.top_p, "above 0 and at most 1")
        _check(_number(self.min_p, 0, 1), "min_p", self.min_p, "from 0 to 1")
        _check(
            _number(self.repetition_penalty, 0) and self.repetition_penalty > 0,
            "repetition_penalty",
            self.repetition_penalty,
            "above 0 (1 is off)",
        )
        _check(_number(self.presence_penalty, -2, 2), "presence_penalty", self.presence_penalty, "from -2 to 2")
        _check(_number(self.frequency_penalty, -2, 2), "frequency_penalty", self.frequency_penalty, "from -2 to 2")
        _check(_whole(self.n, 1), "n", self.n, "at least 1")
        _check(self.seed is None or _whole(self.seed, None), "seed", self.seed, "a whole number, or null")
        _check(all(isinstance(s, str) and s for s in self.stop), "stop", self.stop, "texts of at least one character")
        _check(all(_whole(i, 0) for i in self.stop_token_ids), "stop_token_ids", self.stop_token_ids, "token ids")
        _check(
            self.logprobs is None or (_whole(self.logprobs, 0) and self.logprobs <= MAX_LOGPROBS),
            "logprobs",
            self.logprobs,
            f"from 0 to {MAX_LOGPROBS}, or null",
        )
        for token, bias in self.logit_bias.items():
            _check(_whole(token, 0) and _number(bias, -100, 100), "logit_bias", {token: bias}, "id: from -100 to 100")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    @property
    def truncates(self) -> bool:
        """Whether some tokens are left out."""
        return bool(self.top_k or self.top_p < 1 or self.min_p)

    @property
    def adjusts(self) -> bool:
        """Whether logits change with what came before, or by a bias."""
        return bool(self.logit_bias or self.repetition_penalty != 1 or self.presence_penalty or self.frequency_penalty)


def _whole(value: object, least: int | None) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and (least is None or value >= least)


def _number(value: object, least: float, most: float = math.inf) -> bool:
    return (
        isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most and value < math.inf
    )


def _check(right: bool, name: str, value: object, allowed: str) -> None:
    if not right:
        raise UserError(f"{name} is {value!r}; it must be {allowed}", where=name)


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Natural log-probability of a token, and of the likeliest ones at its place, likeliest first."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


_MASK = (1 << 64) - 1


def uniform(seed: int, sample: int, step: int) -> float:
    """A number in [0, 1) out of (seed, sample, step): SplitMix64's finaliser, three times."""
    state = 0
    for value in (seed, sample, step):
        state = (state + value + 0x9E3779B97F4A7C15) & _MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
        state ^= state >> 31
    return (state >> 11) / (1 << 53)


def adjusted(logits: Tensor, params: SamplingParams, prompt: Sequence[int], generated: Sequence[int]) -> Tensor:
    """One row's logits [vocab] after bias and penalties; a new tensor."""
    logits = logits.clone()
    for token, bias in params.logit_bias.items():
        logits[token] += bias
    if params.repetition_penalty != 1 and (prompt or generated):
        seen = torch.tensor(sorted({*prompt, *generated}), device=logits.device)
        old = logits[seen]
        logits[seen] = torch.where(old > 0, old / params.repetition_penalty, old * params.repetition_penalty)
    if generated and (params.presence_penalty or params.frequency_penalty):
        tokens, counts = torch.tensor(generated, device=logits.device).unique(return_counts=True)
        logits[tokens] -= params.presence_penalty + params.frequency_penalty * counts
    return logits


def candidates(
    logits: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, count: int = CANDIDATES
) -> tuple[Tensor, Tensor]:
    """What top_k, top_p and min_p leave of each row: logits, likeliest first, -inf where left out, and their ids.

    logits [rows, vocab] (temperature applied); the others [rows], top_k 0 where off. The likeliest always stays. Only
    the `count` likeliest are ordered, and all of them only if a row keeps more.
    """
    vocab = logits.shape[-1]
    partial = count < vocab and int(top_k.max()) <= count
    ordered, ids = logits.topk(count) if partial else logits.sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(ordered.shape[-1], device=logits.device)
    drop = rank >= torch.where(top_k > 0, top_k, vocab)[:, None]
    # Each rule sees the distribution the one before left; a rule that drops a token drops all less likely ones.
    probabilities = (ordered.double() - logits.double().logsumexp(-1, keepdim=True)).exp()
    left = torch.where(top_k > 0, probabilities.masked_fill(drop, 0).sum(-1), 1.0)[:, None]
    drop |= probabilities.cumsum(-1) - probabilities >= top_p[:, None] * left
    drop |= probabilities < min_p[:, None] * probabilities[:, :1]
    drop[:, 0] = False
    if partial and not bool(drop[:, -1].all()):
        return candidates(logits, top_k, top_p, min_p, vocab)
    return ordered.masked_fill(drop, float("-inf")), ids


def draw(logits: Tensor, uniforms: Tensor) -> Tensor:
    """Places [rows] by inverting each row's cumulative distribution (float64) at uniforms [rows]."""
    cumulative = logits.double().softmax(-1).cumsum(-1)
    total = cumulative[:, -1:]
    place = torch.searchsorted(cumulative, uniforms.double()[:, None] * total, right=True)
    last = (cumulative < total).sum(-1, keepdim=True)  # the last place of any probability, against rounding
    return torch.minimum(place, last)[:, 0]


def choose(
    logits: Tensor,
    params: Sequence[SamplingParams],
    prompts: Sequence[Sequence[int]],
    generated: Sequence[Sequence[int]],
    keys: Sequence[tuple[int, int]],
) -> list[int]:
    """The next token of each row. logits: float [rows, vocab]; keys: (seed, sample) of each row."""
    if any(p.adjusts for p in params):
        rows = zip(logits, params, prompts, generated, strict=True)
        logits = torch.stack([adjusted(row, p, *past) if p.adjusts else row for row, p, *past in rows])
    tokens: list[int] = logits.argmax(-1).tolist()
    for truncate in (False, True):
        places = [i for i, p in enumerate(params) if not p.greedy and p.truncates == truncate]
        if not places:
            continue
        uniforms = [uniform(*keys[i], len(generated[i])) for i in places]
        drawn = _draw_rows(logits[places], [params[i] for i in places], uniforms, truncate)
        for place, token in zip(places, drawn, strict=True):
            tokens[place] = token
    return tokens


def _draw_rows(
    logits: Tensor, params: Sequence[SamplingParams], uniforms: Sequence[float], truncate: bool
) -> list[int]:
    def column(values: Sequence[float], dtype: torch.dtype = torch.float64) -> Tensor:
        return torch.tensor(values, dtype=dtype, device=logits.device)

    logits = logits / column([p.temperature for p in params], logits.dtype)[:, None]
    if not truncate:
        return draw(logits, column(uniforms)).tolist()
    kept, ids = candidates(
        logits,
        column([p.top_k for p in params], torch.int64),
        column([p.top_p if p.top_p < 1 else 2.0 for p in params]),  # rounding must not drop the last token
        column([p.min_p for p in params]),
    )
    return ids.gather(-1, draw(kept, column(uniforms))[:, None])[:, 0].tolist()


def logprobs_of(logits: Tensor, tokens: Sequence[int], counts: Sequence[int | None]) -> list[TokenLogprob | None]:
    """Log-probabilities of the rows that ask for them (`counts` not None). logits: the model's own, [rows, vocab]."""
    result: list[TokenLogprob | None] = [None] * len(tokens)
    for row, (token, count) in enumerate(zip(tokens, counts, strict=True)):
        if count is None:
            continue
        logprobs = logits[row].float().log_softmax(-1)
        values, ids = logprobs.topk(min(count, logprobs.numel())) if count else (logprobs[:0], logprobs[:0])
        top = tuple((int(i), float(v)) for i, v in zip(ids.tolist(), values.tolist(), strict=True))
        result[row] = TokenLogprob(token, float(logprobs[token]), top)
    return result
