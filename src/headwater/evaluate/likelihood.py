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

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headwater.core.errors import InputError
from headwater.model import Decoder, KVCache
from headwater.tokenizer import Tokenizer

SHARED_TOKENS = 32
"""A beginning shared by a batch is run apart from this length on; below it the extra pass costs more than it saves."""
FULL_ENOUGH = 0.85
FEW_TOKENS = 256
FEW_TOKENS_OF_ACCELERATORS = 8192
"""A batch ends before a row shorter than this share of the first one, if it holds this many tokens already: with fewer,
the time goes into reading the weights (measured on one core of a CPU; others need more to be busy)."""
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
        self._few = FEW_TOKENS if self._device.type == "cpu" else FEW_TOKENS_OF_ACCELERATORS
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

    def _batches(self, groups: list[_Group]) -> Iterator[list[_Group]]:
        """Contexts with the same long beginning together, the others by length, so that little is padding."""
        begins = Counter(_beginning(group) for group in groups)
        shared = {begin for begin, count in begins.items() if begin and count > 1}
        batch: list[_Group] = []
        rows = width = 0
        bucket: Tokens = ()
        for group in sorted(groups, key=lambda g: _order(g, shared)):
            begin = _beginning(group) if _beginning(group) in shared else ()
            size = len(group.context) + max(len(tokens) for _, tokens in group.wanted)
            wider, more = max(width, size), rows + len(group.wanted)
            full = wider * more > self.batch_tokens
            slack = size < FULL_ENOUGH * width and width * rows >= self._few
            if batch and (full or slack or begin != bucket):
                yield batch
                batch, wider, more = [], size, len(group.wanted)
            batch.append(group)
            rows, width, bucket = more, wider, begin
        if batch:
            yield batch

    @torch.inference_mode()
    def _run(self, batch: list[_Group]) -> Iterator[tuple[int, Likelihood]]:
        config, device = self.model.config, self._device
        longest = max(len(group.context) for group in batch)
        shared = _common([group.context[:-1] for group in batch]) if len(batch) > 1 else 0
        start = shared if shared >= SHARED_TOKENS else 0
        if start:
            once = KVCache(config, 1, capacity=start)
            self._extend(once, [batch[0].context[:start]], 0)
            cache = once.take(torch.zeros(len(batch), dtype=torch.int64, device=device), longest)
        else:
            cache = KVCache(config, len(batch), capacity=longest)
        hidden = self._extend(cache, [group.context[start:] for group in batch], start)
        last = torch.stack([hidden[row, len(group.context) - start - 1] for row, group in enumerate(batch)])
        # The first token of each continuation is predicted at its context's last position; the others need a pass.
        wanted = [(row, place, tokens) for row, group in enumerate(batch) for place, tokens in group.wanted]
        states = [last[row : row + 1] for row, _, _ in wanted]
        for slice_ in _by_length([(index, len(tokens) - 1) for index, (_, _, tokens) in enumerate(wanted)], self._few):
            rows = [wanted[index][0] for index in slice_]
            begins = [len(batch[row].context) for row in rows]
            more = max(begin + len(wanted[index][2]) for begin, index in zip(begins, slice_, strict=True))
            part = cache.take(torch.tensor(rows, device=device), more)
            hidden = self._extend(part, [wanted[index][2][:-1] for index in slice_], begins)
            for line, index in enumerate(slice_):
                states[index] = torch.cat((states[index], hidden[line, : len(wanted[index][2]) - 1]))
        logs, greedy = self._log_probabilities(torch.cat(states), [t for _, _, tokens in wanted for t in tokens])
        at = 0
        for row, place, tokens in wanted:
            end = at + len(tokens)
            yield place, Likelihood(sum(logs[at:end]), len(tokens), all(greedy[at:end]), batch[row].dropped)
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


def _beginning(group: _Group) -> Tokens:
    """What may be run once for several contexts; empty where there is too little."""
    return group.context[:SHARED_TOKENS] if len(group.context) > SHARED_TOKENS else ()


def _order(group: _Group, shared: set[Tokens]) -> tuple[Tokens, int]:
    begin = _beginning(group)
    return (begin if begin in shared else (), -len(group.context))


def _by_length(lengths: Sequence[tuple[int, int]], few: int) -> Iterator[list[int]]:
    """Indices of what has a length, longest first, in slices of which little is padding."""
    part: list[int] = []
    width = 0
    for index, length in sorted(lengths, key=lambda pair: -pair[1]):
        if not length:
            continue
        if part and length < FULL_ENOUGH * width and width * len(part) >= few:
            yield part
            part = []
        width = width if part else length
        part.append(index)
    if part:
        yield part


def _common(rows: Sequence[Tokens]) -> int:
    """Length of the beginning that all share."""
    first, last = min(rows), max(rows)
    for place, (a, b) in enumerate(zip(first, last, strict=False)):
        if a != b:
            return place
    return min(len(first), len(last))


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
