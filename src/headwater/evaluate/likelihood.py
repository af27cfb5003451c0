"""How likely a model finds continuations of contexts: what multiple choice and cloze tasks are scored by.

In: pairs (context, continuation). Out: ln p of each continuation given its context, and whether greedy decoding would
have written it. A context that several continuations share runs through the model once, and so does a beginning that
the contexts of a batch share (few-shot examples). Many contexts go through it together, without padding (`tree`).

    scorer = ContinuationScorer(decoder, tokenizer)
    scorer.score([("The sky is", " blue"), ("The sky is", " green")])

Pairs are cut into tokens as lm-evaluation-harness does: trailing spaces of a context go to the continuation, the whole
is encoded once, and the continuation is what lies beyond the context's own length. What is too long loses its left end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from headwater.core.errors import InputError
from headwater.evaluate.tree import Tokens, Tree, run_trees
from headwater.model import Decoder, KVCache
from headwater.model.cache import common_beginning
from headwater.tokenizer import Tokenizer

SHARED_TOKENS = 32
"""A shared beginning is run apart from this length on; below it the extra pass costs more than it saves."""
TOKENS_AT_ONCE = 512
TOKENS_AT_ONCE_ON_ACCELERATORS = 2048
"""Tokens of one pass, unless one context with its continuations has more: enough to be busy (one core of a CPU takes
4.5 ms a token of a 135M model at 60 tokens, 2.8 at 300, 2.6 at 1,000), and few enough that attention, which looks at
all pairs of them, costs little beside the rest."""
LOGIT_ROWS = 512
"""Positions whose logits exist at once."""


@dataclass(frozen=True, slots=True)
class Likelihood:
    """Of one continuation. `nats` is ln p, at most 0; `greedy`: each token was the likeliest; `dropped` tokens of the
    context did not fit."""

    nats: float
    tokens: int
    greedy: bool
    dropped: int = 0


@dataclass(slots=True)
class _Group:
    """One context and its continuations: (place in the answer, tokens)."""

    context: Tokens
    dropped: int
    wanted: list[tuple[int, Tokens]]

    @property
    def tokens(self) -> int:
        return len(self.context) + sum(len(tokens) - 1 for _, tokens in self.wanted)


class ContinuationScorer:
    """A decoder and its tokenizer.

    prefix: what stands before every context (default: what stands before the model's documents). An empty context is
    predicted from `start`: bos, or eos where the tokenizer has no bos. tokens_at_once lowers the usual number of a
    pass: it bounds memory, never the result.
    """

    def __init__(
        self,
        model: Decoder,
        tokenizer: Tokenizer,
        *,
        prefix: Sequence[int] | None = None,
        tokens_at_once: int | None = None,
    ) -> None:
        self.model, self.tokenizer = model.eval(), tokenizer
        self.prefix = tokenizer.document_prefix if prefix is None else tuple(prefix)
        self.context = model.config.max_position_embeddings
        self._device = next(model.parameters()).device
        usual = TOKENS_AT_ONCE if self._device.type == "cpu" else TOKENS_AT_ONCE_ON_ACCELERATORS
        self.tokens_at_once = usual if tokens_at_once is None else min(usual, tokens_at_once)
        self.start = tokenizer.bos_id if tokenizer.bos_id is not None else tokenizer.eos_id

    def score(
        self, pairs: Sequence[tuple[str, str]], on_progress: Callable[[int], None] | None = None
    ) -> list[Likelihood]:
        """Likelihoods in the order of the pairs; `on_progress` is told how many were scored.

        Raises InputError for a continuation that is empty or alone longer than the model's context.
        """
        found: list[Likelihood | None] = [None] * len(pairs)
        for begin, groups in _buckets(self._groups(pairs)):
            held = self._hold(groups[0].context[:begin])
            for batch in self._passes(groups, begin):
                for place, likelihood in self._run(batch, held, begin):
                    found[place] = likelihood
                if on_progress is not None:
                    on_progress(sum(len(group.wanted) for group in batch))
        return [likelihood for likelihood in found if likelihood is not None]

    def encode_pair(self, context: str, continuation: str) -> tuple[Tokens, Tokens]:
        """See `cut_pair`."""
        return cut_pair(self.tokenizer, context, continuation, prefix=self.prefix, start=self.start)

    def _groups(self, pairs: Sequence[tuple[str, str]]) -> list[_Group]:
        groups: dict[tuple[Tokens, int], _Group] = {}
        for place, (context, continuation) in enumerate(pairs):
            before, after = self.encode_pair(context, continuation)
            if not after:
                raise InputError(f"the continuation {continuation!r} has no tokens of its own", where=f"pair {place}")
            if len(after) > self.context:
                raise InputError(
                    f"a continuation of {len(after):,} tokens exceeds the model's context of {self.context:,}",
                    where=f"pair {place}",
                )
            dropped = max(0, len(before) + len(after) - 1 - self.context)
            dropped = min(dropped, len(before) - 1)  # something must be left to predict from
            key = (before[dropped:], dropped)
            groups.setdefault(key, _Group(key[0], dropped, [])).wanted.append((place, after))
        return list(groups.values())

    @torch.inference_mode()
    def _hold(self, beginning: Tokens) -> KVCache | None:
        """The keys and values of what many contexts begin with."""
        if not beginning:
            return None
        held = KVCache(self.model.config, 1, capacity=len(beginning))
        positions = torch.arange(len(beginning), device=self._device)[None]
        self.model(torch.tensor([beginning], device=self._device), positions, cache=held)
        return held

    def _passes(self, groups: list[_Group], begin: int) -> Iterator[list[_Group]]:
        """As many groups as make one pass, apart from the tokens they begin with."""
        batch: list[_Group] = []
        tokens = 0
        for group in groups:
            more = group.tokens - begin
            if batch and tokens + more > self.tokens_at_once:
                yield batch
                batch, tokens = [], 0
            batch.append(group)
            tokens += more
        yield batch

    @torch.inference_mode()
    def _run(self, batch: list[_Group], held: KVCache | None, begin: int) -> Iterator[tuple[int, Likelihood]]:
        # The first token of a continuation is predicted where its context ends, the last one predicts nothing.
        trees = [Tree(group.context[begin:], tuple(tokens[:-1] for _, tokens in group.wanted)) for group in batch]
        states = [
            state
            for context, *branches in run_trees(self.model, trees, held, begin)
            for branch in branches
            for state in (context[-1:], branch)
        ]
        wanted = [(group, place, tokens) for group in batch for place, tokens in group.wanted]
        logs, greedy = self._log_probabilities(torch.cat(states), [t for _, _, tokens in wanted for t in tokens])
        at = 0
        for group, place, tokens in wanted:
            end = at + len(tokens)
            yield place, Likelihood(sum(logs[at:end]), len(tokens), all(greedy[at:end]), group.dropped)
            at = end

    def _log_probabilities(self, hidden: Tensor, targets: list[int]) -> tuple[list[float], list[bool]]:
        logs: list[float] = []
        greedy: list[bool] = []
        for start in range(0, len(targets), LOGIT_ROWS):
            logits = self.model.logits(hidden[start : start + LOGIT_ROWS]).float()
            target = torch.tensor(targets[start : start + LOGIT_ROWS], device=self._device)
            own = torch.log_softmax(logits, -1).gather(1, target[:, None])[:, 0]
            logs += own.double().tolist()
            greedy += (logits.argmax(-1) == target).tolist()
        return logs, greedy


def _buckets(groups: list[_Group]) -> list[tuple[int, list[_Group]]]:
    """Contexts that begin alike, with the number of tokens they share; those that share too little, with 0.

    A context joins those before it unless more tokens are run once by beginning anew with the one after it: the
    examples of another subject begin alike for a few words only, and all would lose by the first of them.
    """
    order = sorted(groups, key=lambda each: each.context)  # neighbours share the most
    after = [_common(one, other) for one, other in pairwise(order)] + [0]
    buckets: list[tuple[int, list[_Group]]] = []
    for group, ahead in zip(order, after, strict=True):
        shared, bucket = buckets[-1] if buckets else (0, [])
        common = _common(bucket[0], group) if bucket else 0
        joined = len(bucket) * common + min(common, ahead)
        apart = (len(bucket) - 1) * shared + ahead
        if common >= SHARED_TOKENS and joined >= apart:
            bucket.append(group)
            buckets[-1] = common, bucket
        else:
            buckets.append((0, [group]))
    alone = [group for shared, bucket in buckets if not shared for group in bucket]
    return [*(each for each in buckets if each[0]), *([(0, alone)] if alone else [])]


def _common(one: _Group, other: _Group) -> int:
    """Tokens that two contexts begin with; the last of a context is always run, for it predicts."""
    return common_beginning([one.context[:-1], other.context[:-1]])


def cut_pair(
    tokenizer: Tokenizer, context: str, continuation: str, *, prefix: Tokens, start: int
) -> tuple[Tokens, Tokens]:
    """(tokens of the context, tokens of the continuation), untruncated, the prefix included. `start` stands before a
    continuation without context where there is no prefix."""
    spaces = len(context) - len(context.rstrip())
    if spaces:
        context, continuation = context[:-spaces], context[-spaces:] + continuation
    if not context:
        return prefix or (start,), tuple(tokenizer.encode(continuation))
    own, whole = tokenizer.encode_batch([context, context + continuation])
    return (*prefix, *own), tuple(whole[len(own) :])
