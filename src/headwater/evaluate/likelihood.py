"""How likely a model finds continuations of contexts: what multiple choice and cloze tasks are scored by.

In: pairs (context, continuation). Out: ln p of each continuation given its context, and whether greedy decoding would
have written it. A context that several continuations share runs through the model once, and so does a beginning that
the contexts of a batch share (few-shot examples): keys and values are kept and given to every row that needs them.

    scorer = ContinuationScorer(decoder, tokenizer)
    scorer.score([("The sky is", " blue"), ("The sky is", " green")])

Pairs are cut into tokens as lm-evaluation-harness does: trailing spaces of a context go to the continuation, the whole
is encoded once, and the continuation is what lies beyond the context's own length. What is too long loses its left end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headwater.core.errors import InputError
from headwater.model import Decoder, KVCache
from headwater.tokenizer import Tokenizer

SHARED_TOKENS = 32
"""A beginning shared by a batch is run apart from this length on; below it the extra pass costs more than it saves."""
LOGIT_ROWS = 512
"""Positions whose logits exist at once."""

Tokens = tuple[int, ...]


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
    def cost(self) -> int:
        """Tokens of keys and values it needs."""
        return len(self.wanted) * (len(self.context) + max(len(tokens) for _, tokens in self.wanted))


class ContinuationScorer:
    """A decoder and its tokenizer.

    prefix: what stands before every context (default: what stands before the model's documents). An empty context is
    predicted from `start`: bos, or eos where the tokenizer has no bos. batch_tokens bounds memory, never the result.
    """

    def __init__(
        self, model: Decoder, tokenizer: Tokenizer, *, prefix: Sequence[int] | None = None, batch_tokens: int = 16384
    ) -> None:
        self.model, self.tokenizer = model.eval(), tokenizer
        self.prefix = tokenizer.document_prefix if prefix is None else tuple(prefix)
        self.context = model.config.max_position_embeddings
        self.batch_tokens = batch_tokens
        self._device = next(model.parameters()).device
        self.start = tokenizer.bos_id if tokenizer.bos_id is not None else tokenizer.eos_id

    def score(
        self, pairs: Sequence[tuple[str, str]], on_progress: Callable[[int], None] | None = None
    ) -> list[Likelihood]:
        """Likelihoods in the order of the pairs; `on_progress` is told how many were scored.

        Raises InputError for a continuation that is empty or alone longer than the model's context.
        """
        found: list[Likelihood | None] = [None] * len(pairs)
        for batch in self._batches(self._groups(pairs)):
            for place, likelihood in self._run(batch):
                found[place] = likelihood
            if on_progress is not None:
                on_progress(sum(len(group.wanted) for group in batch))
        return [likelihood for likelihood in found if likelihood is not None]

    def encode_pair(self, context: str, continuation: str) -> tuple[Tokens, Tokens]:
        """(tokens of the context, tokens of the continuation), untruncated, the prefix included."""
        spaces = len(context) - len(context.rstrip())
        if spaces:
            context, continuation = context[:-spaces], context[-spaces:] + continuation
        if not context:
            tokens = tuple(self.tokenizer.encode(continuation))
            return self.prefix or (self.start,), tokens
        own, whole = self.tokenizer.encode_batch([context, context + continuation])
        return (*self.prefix, *own), tuple(whole[len(own) :])

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

    def _batches(self, groups: list[_Group]) -> Iterator[list[_Group]]:
        """Contexts of similar beginning and length together, longer ones first."""
        batch: list[_Group] = []
        rows = width = 0
        for group in sorted(groups, key=lambda g: (g.context[:SHARED_TOKENS], -len(g.context))):
            size = len(group.context) + max(len(tokens) for _, tokens in group.wanted)
            wider, more = max(width, size), rows + len(group.wanted)
            if batch and wider * more > self.batch_tokens:
                yield batch
                batch, wider, more = [], size, len(group.wanted)
            batch.append(group)
            rows, width = more, wider
        if batch:
            yield batch

    @torch.inference_mode()
    def _run(self, batch: list[_Group]) -> Iterator[tuple[int, Likelihood]]:
        cache = KVCache(self.model.config, 1)
        shared = _common([group.context[:-1] for group in batch])
        start = 0
        if len(batch) > 1 and shared >= SHARED_TOKENS:
            self._extend(cache, [batch[0].context[:shared]], 0)
            start = shared
        if start:
            cache.select(torch.zeros(len(batch), dtype=torch.int64, device=self._device))
        else:
            cache = KVCache(self.model.config, len(batch))
        hidden = self._extend(cache, [group.context[start:] for group in batch], start)
        last = torch.stack([hidden[row, len(group.context) - start - 1] for row, group in enumerate(batch)])
        # The first token of each continuation is predicted at its context's last position; the others need a pass.
        wanted = [(row, place, tokens) for row, group in enumerate(batch) for place, tokens in group.wanted]
        states = [last[row : row + 1] for row, _, _ in wanted]
        longer = [index for index, (_, _, tokens) in enumerate(wanted) if len(tokens) > 1]
        if longer:
            rows = [wanted[index][0] for index in longer]
            cache.select(torch.tensor(rows, device=self._device))
            begins = [len(batch[row].context) for row in rows]
            hidden = self._extend(cache, [wanted[index][2][:-1] for index in longer], begins)
            for line, index in enumerate(longer):
                states[index] = torch.cat((states[index], hidden[line, : len(wanted[index][2]) - 1]))
        logs, greedy = self._log_probabilities(torch.cat(states), [t for _, _, tokens in wanted for t in tokens])
        at = 0
        for row, place, tokens in wanted:
            end = at + len(tokens)
            yield (
                place,
                Likelihood(sum(logs[at:end]), len(tokens), all(greedy[at:end]), batch[row].dropped),
            )
            at = end

    def _extend(self, cache: KVCache, rows: Sequence[Tokens], begin: int | list[int]) -> Tensor:
        """Run more tokens of each row, from these positions on; hidden states [rows, longest, dim]. Padding is on the
        right, in slots that later tokens overwrite before anyone may see them."""
        longest = max(len(tokens) for tokens in rows)
        padded = torch.tensor([[*tokens, *(0 for _ in range(longest - len(tokens)))] for tokens in rows])
        starts = torch.tensor([begin] * len(rows) if isinstance(begin, int) else begin)
        positions = starts[:, None] + torch.arange(longest)
        return self.model(padded.to(self._device), positions.to(self._device), cache=cache)

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


def _common(rows: Sequence[Tokens]) -> int:
    """Length of the beginning that all share."""
    first, last = min(rows), max(rows)
    for place, (a, b) in enumerate(zip(first, last, strict=False)):
        if a != b:
            return place
    return min(len(first), len(last))
