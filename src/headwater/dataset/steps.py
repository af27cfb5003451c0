"""From steps to samples: which range of samples an optimizer step reads, with batches that may change on the way.

In: `StepSegment`s, one for each stretch of steps with the same batch, sequence length, mixture and skips, as the run
ledger tells them. Out: `StepOrder`, whose `batch(step)` names every sample of a step. Steps count from 1.

    order = StepOrder({"web": 10_000}, seed=1, segments=[StepSegment(first_step=1, global_batch=8, seq_len=128)])
    order.range(3)              # range(16, 24)
    order.step_of(17)           # 3
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from headwater.core.errors import RecipeError
from headwater.dataset.order import DomainUse, Order, OrderSegment, SampleRef


@dataclass(frozen=True)
class StepSegment:
    """Steps from `first_step` on, until the next segment: samples a step, tokens a sample, weights and skips as in
    `OrderSegment`."""

    first_step: int
    global_batch: int
    seq_len: int
    weights: Mapping[str, float] | None = None
    skipped: Mapping[str, Sequence[int]] = field(default_factory=dict)


class StepOrder:
    """The order of a run by steps. Immutable. Raises as `Order` does, and ValueError for segments out of order."""

    def __init__(self, streams: Mapping[str, int], *, seed: int, segments: Sequence[StepSegment]) -> None:
        if not segments or segments[0].first_step != 1:
            raise ValueError("the first segment must begin at step 1")
        self.segments = tuple(segments)
        self._first_samples = [0]
        for before, after in pairwise(segments):
            steps = after.first_step - before.first_step
            if steps < 1:
                raise ValueError(f"two segments begin at or before step {after.first_step}")
            self._first_samples.append(self._first_samples[-1] + steps * before.global_batch)
        if any(segment.global_batch < 1 for segment in segments):
            raise ValueError("global_batch must be at least 1")
        self.order = Order(
            streams,
            seed=seed,
            segments=[
                OrderSegment(first, segment.seq_len, segment.weights, segment.skipped)
                for first, segment in zip(self._first_samples, segments, strict=True)
            ],
        )

    def segment(self, step: int) -> StepSegment:
        """The segment of a step >= 1."""
        return self.segments[self._index(step)]

    def range(self, step: int) -> range:
        """Samples of a step."""
        index = self._index(step)
        segment = self.segments[index]
        first = self._first_samples[index] + (step - segment.first_step) * segment.global_batch
        return range(first, first + segment.global_batch)

    def batch(self, step: int) -> list[SampleRef]:
        """The samples of a step, named."""
        return self.order.samples(self.range(step))

    def step_of(self, sample: int) -> int:
        """The step that reads a sample: the inverse of `range`."""
        if sample < 0:
            raise ValueError(f"sample {sample} does not exist")
        index = bisect_right(self._first_samples, sample) - 1
        segment = self.segments[index]
        return segment.first_step + (sample - self._first_samples[index]) // segment.global_batch

    def samples_until(self, step: int) -> int:
        """Samples read once `step` is done; 0 for step 0."""
        return self.range(step).stop if step > 0 else 0

    def use(self, last_step: int) -> dict[str, DomainUse]:
        """What steps 1 to `last_step` use of every domain."""
        return self.order.use(self.samples_until(last_step))

    def _index(self, step: int) -> int:
        if step < 1:
            raise ValueError(f"step {step} does not exist: steps count from 1")
        return bisect_right(self.segments, step, key=lambda segment: segment.first_step) - 1


def rank_slice(samples: range, rank: int, world: int) -> range:
    """The contiguous part of a batch that data-parallel rank `rank` of `world` reads.

    Parts in rank order make up the batch; sizes differ by at most one. ValueError for a rank outside.
    """
    if not 0 <= rank < world:
        raise ValueError(f"rank {rank} is outside a world of {world}")
    size = len(samples)
    return samples[size * rank // world : size * (rank + 1) // world]


def describe_use(use: Mapping[str, DomainUse]) -> list[str]:
    """One line a domain for the person: share of the tokens read, size, and how often it is repeated."""
    total = sum(domain.tokens_read for domain in use.values()) or 1
    return [
        f"{name}: {domain.tokens_read / total:.1%} of the tokens, {domain.tokens_read:,} from {domain.tokens:,}, "
        f"{domain.epochs:.2f} epochs"
        for name, domain in use.items()
    ]


REPEATS_WORTH_A_WARNING = 4.0
"""Up to four epochs repeated tokens are nearly as good as new ones (Muennighoff et al. 2023, arXiv 2305.16264)."""


def check_epochs(use: Mapping[str, DomainUse], max_epochs: float | None) -> list[str]:
    """Warnings about domains read more than four times or not at all; RecipeError, with the numbers, above
    `max_epochs`."""
    warnings = []
    for name, domain in use.items():
        if not domain.samples:
            warnings.append(f"domain {name!r} with {domain.tokens:,} tokens is not read: no weight, or no whole window")
            continue
        numbers = f"domain {name!r} has {domain.tokens:,} tokens and would be read {domain.epochs:.2f} times"
        if max_epochs is not None and domain.epochs > max_epochs:
            raise RecipeError(
                f"{numbers}, above max_epochs {max_epochs:g}",
                where="train.max_epochs",
                mend="lower its weight in the mixture, add text to it, train on fewer tokens, or raise max_epochs",
            )
        if domain.epochs > REPEATS_WORTH_A_WARNING:
            warnings.append(f"{numbers}; beyond {REPEATS_WORTH_A_WARNING:g} epochs repeated text teaches little")
    return warnings
