"""Which window of which domain every sample of a run is: pure arithmetic, any sample at once, and back.

**Windows.** The token shards of a domain, in the order of their names, are one stream of N tokens. With sequence length
S it has W = (N - 1) // S windows; window w is the S + 1 tokens from w * S on, so neighbours share one token and every
token but the stream's first is a target once. The last (N - 1) % S tokens are in no window.

**Draws.** Each domain is drawn from along a permutation keyed by (seed, domain, S, epoch): draw c is place c % W of
epoch c // W. An epoch has every window once before the next begins.

**Samples.** The mixture says which domain sample i comes from (`mixture.py`); it takes that domain's next draw that is
not skipped. A run is a list of `OrderSegment`s, read from its ledger:

- a change of weights starts the quotas anew (a segment with the weights of the one before continues its quotas) and
  continues every domain's draws where they were;
- a skipped draw is replaced by its domain's next, from its segment on; draws before the segment never change;
- a change of sequence length cuts other windows, so each domain's draws of the new length start at 0: the rest of the
  running pass is left behind, and a token already seen in it may come again. Going back to a length used before
  continues its draws.

Sample i depends only on streams, seed and the segments up to i. Ranks, workers, batch sizes and restarts play no part.

    order = Order({"web": 10_000, "books": 5_000}, seed=1, segments=[OrderSegment(0, seq_len=128)])
    order.sample(7)             # SampleRef(sample=7, domain='web', draw=4, epoch=0, window=62, seq_len=128)
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from headwater.core.errors import RecipeError
from headwater.dataset.mixture import Mixture, whole_weights
from headwater.dataset.permutation import derive_key, permute, unpermute


@dataclass(frozen=True)
class OrderSegment:
    """Samples from `first_sample` on, until the next segment.

    `weights`: domain -> share in tokens, on any scale; None takes every domain as large as it is.
    `skipped`: domain -> draws (numbers as in `SampleRef.draw`, of this `seq_len`) that are left out from here on, in
    later segments too.
    """

    first_sample: int
    seq_len: int
    weights: Mapping[str, float] | None = None
    skipped: Mapping[str, Sequence[int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SampleRef:
    """One sample: tokens `start` to `stop` (exclusive; seq_len + 1 of them) of the domain's stream."""

    sample: int
    domain: str
    draw: int
    epoch: int
    window: int
    seq_len: int

    @property
    def start(self) -> int:
        return self.window * self.seq_len

    @property
    def stop(self) -> int:
        return self.start + self.seq_len + 1


@dataclass(frozen=True, slots=True)
class DomainUse:
    """How much of a domain some samples use. `epochs`: passes over its windows, summed over sequence lengths."""

    tokens: int
    samples: int
    tokens_read: int
    epochs: float


@dataclass(frozen=True)
class _Segment:
    """A segment with its running state: where the quotas began, where each domain's draws begin in this segment, and
    which draws are skipped."""

    first_sample: int
    seq_len: int
    mixture: Mixture
    quota_start: int
    cursor: dict[str, int]
    skipped: dict[str, NDArray[np.int64]]

    def domain(self, sample: int) -> str:
        """The domain of a sample of this segment."""
        return self.mixture.domain(sample - self.quota_start)

    def drawn(self, domain: str, sample: int) -> int:
        """How many samples of a domain lie in this segment before `sample`."""
        return self._until(domain, sample) - self._until(domain, self.first_sample)

    def place(self, domain: str, number: int) -> int:
        """The sample that is the domain's `number`-th (from 0) of this segment."""
        return self.quota_start + self.mixture.place(domain, self._until(domain, self.first_sample) + number)

    def _until(self, domain: str, sample: int) -> int:
        return self.mixture.count(domain, sample - self.quota_start)

    def draw(self, domain: str, number: int) -> int:
        """The domain's `number`-th draw (from 0) in this segment: the `number`-th from the cursor not skipped."""
        start, skipped = self.cursor[domain], self.skipped[domain]
        gaps = skipped - start - np.arange(len(skipped))  # how many draws are used before each skipped one
        return start + number + int(np.searchsorted(gaps, number, side="right"))

    def number(self, domain: str, draw: int) -> int | None:
        """The inverse of `draw`; None for a draw before the cursor or skipped."""
        start, skipped = self.cursor[domain], self.skipped[domain]
        before = int(np.searchsorted(skipped, draw))
        if draw < start or (before < len(skipped) and skipped[before] == draw):
            return None
        return draw - start - before


class Order:
    """The order of one run. Immutable; a changed ledger makes a new one.

    `streams`: domain -> tokens in its training stream. Raises RecipeError for a weight on a domain that does not
    exist or has less than one window; ValueError for segments out of order and for skipping a draw already used.
    """

    def __init__(self, streams: Mapping[str, int], *, seed: int, segments: Sequence[OrderSegment]) -> None:
        if not segments or segments[0].first_sample != 0:
            raise ValueError("the first segment must begin at sample 0")
        self.streams = dict(streams)
        self.seed = seed
        self.segments = tuple(segments)
        self._segments: list[_Segment] = []
        for segment in segments:
            self._append(segment)

    def windows(self, domain: str, seq_len: int) -> int:
        """Windows of `seq_len` + 1 tokens in a domain's stream."""
        return max(0, self.streams[domain] - 1) // seq_len

    def sample(self, index: int) -> SampleRef:
        """The sample `index` >= 0."""
        return self.samples([index])[0]

    def samples(self, indices: Iterable[int]) -> list[SampleRef]:
        """Many samples at once, in the order asked; about 20 microseconds each in a batch of a thousand."""
        found: list[tuple[int, str, int, int]] = []  # sample, domain, draw, seq_len
        groups: dict[tuple[str, int, int], list[int]] = {}
        for row, index in enumerate(indices):
            domain, draw, seq_len = self._draw(index)
            found.append((index, domain, draw, seq_len))
            groups.setdefault((domain, seq_len, draw // self.windows(domain, seq_len)), []).append(row)
        windows = [0] * len(found)
        for (domain, seq_len, epoch), rows in groups.items():
            size = self.windows(domain, seq_len)
            places = np.array([found[row][2] % size for row in rows], dtype=np.uint64)
            for row, window in zip(rows, permute(places, size, self._key(domain, seq_len, epoch)), strict=True):
                windows[row] = int(window)
        return [
            SampleRef(sample, domain, draw, draw // self.windows(domain, seq_len), window, seq_len)
            for (sample, domain, draw, seq_len), window in zip(found, windows, strict=True)
        ]

    def seq_len(self, index: int) -> int:
        """Sequence length of a sample."""
        return self._segment(index).seq_len

    def sample_of_draw(self, domain: str, seq_len: int, draw: int) -> int | None:
        """Which sample uses a draw; None if no segment does (skipped, before a change of length, or never)."""
        for number, segment in enumerate(self._segments):
            if segment.seq_len != seq_len or domain not in segment.mixture.weights:
                continue
            position = segment.number(domain, draw)
            if position is None:
                continue
            sample = segment.place(domain, position)
            last = number + 1 == len(self._segments)
            if last or sample < self._segments[number + 1].first_sample:
                return sample
        return None

    def draws_of(self, indices: Iterable[int]) -> dict[str, tuple[int, ...]]:
        """The draws of some samples by domain, sorted: what an `OrderSegment` takes as `skipped` to leave them out."""
        draws: dict[str, set[int]] = {}
        for index in indices:
            domain, draw, _ = self._draw(index)
            draws.setdefault(domain, set()).add(draw)
        return {domain: tuple(sorted(numbers)) for domain, numbers in sorted(draws.items())}

    def samples_of_window(self, domain: str, seq_len: int, window: int, samples: int) -> list[SampleRef]:
        """All uses of a window among the first `samples` samples, one an epoch at most, in order."""
        size = self.windows(domain, seq_len)
        if not 0 <= window < size:
            return []
        last_draw = max((end for end in self._ends(domain, seq_len, samples)), default=0)
        uses = []
        for epoch in range(-(-last_draw // size)):
            place = np.array([window], dtype=np.uint64)
            draw = epoch * size + int(unpermute(place, size, self._key(domain, seq_len, epoch))[0])
            sample = self.sample_of_draw(domain, seq_len, draw)
            if sample is not None and sample < samples:
                uses.append(SampleRef(sample, domain, draw, epoch, window, seq_len))
        return sorted(uses, key=lambda use: use.sample)

    def lengths(self) -> tuple[int, ...]:
        """All sequence lengths of the run, sorted."""
        return tuple(sorted({segment.seq_len for segment in self._segments}))

    def use(self, samples: int) -> dict[str, DomainUse]:
        """What the first `samples` samples use of every domain, by name."""
        result = {}
        for domain, tokens in sorted(self.streams.items()):
            count, read, epochs = 0, 0, 0.0
            for number, segment in enumerate(self._segments):
                drawn = segment.drawn(domain, self._end(number, samples))
                count += drawn
                read += drawn * segment.seq_len
                epochs += drawn / self.windows(domain, segment.seq_len) if drawn else 0.0
            result[domain] = DomainUse(tokens, count, read, epochs)
        return result

    def _append(self, segment: OrderSegment) -> None:
        before = self._segments[-1] if self._segments else None
        if before is not None and segment.first_sample < before.first_sample:
            raise ValueError(f"segments are out of order at sample {segment.first_sample}")
        if segment.seq_len < 1:
            raise ValueError(f"seq_len is {segment.seq_len}")
        weights = segment.weights if segment.weights is not None else self._sizes(segment.seq_len)
        mixture = Mixture(whole_weights(weights))
        continues = before is not None and before.mixture.weights == mixture.weights
        if before is not None and continues:
            mixture, quota_start = before.mixture, before.quota_start
        else:
            quota_start = segment.first_sample
        self._check_windows(mixture, segment.seq_len)
        cursor, skipped = self._carry(segment)
        for domain, draws in segment.skipped.items():
            if domain not in self.streams:
                raise ValueError(f"cannot skip draws of {domain!r}: there is no such domain")
            if draws and min(draws) < cursor[domain]:
                raise ValueError(
                    f"draw {min(draws)} of {domain} cannot be skipped from sample {segment.first_sample} on: "
                    f"draws before {cursor[domain]} are already used"
                )
            skipped[domain] = np.union1d(skipped[domain], np.asarray(draws, dtype=np.int64))
        self._segments.append(_Segment(segment.first_sample, segment.seq_len, mixture, quota_start, cursor, skipped))

    def _carry(self, segment: OrderSegment) -> tuple[dict[str, int], dict[str, NDArray[np.int64]]]:
        """Draws and skips as the last segment of the same length left them."""
        cursor = dict.fromkeys(self.streams, 0)
        skipped = {domain: np.zeros(0, dtype=np.int64) for domain in self.streams}
        for number in reversed(range(len(self._segments))):
            earlier = self._segments[number]
            if earlier.seq_len != segment.seq_len:
                continue
            following = self._segments[number + 1 :]
            end = following[0].first_sample if following else segment.first_sample
            for domain in self.streams:
                cursor[domain] = earlier.draw(domain, earlier.drawn(domain, end))
                skipped[domain] = earlier.skipped[domain][earlier.skipped[domain] >= cursor[domain]]
            break
        return cursor, skipped

    def _sizes(self, seq_len: int) -> dict[str, int]:
        """Domains weighted by their tokens. One too short for a window would be less than one sample an epoch: it is
        left out, and `check_epochs` warns that it is not read."""
        sizes = {domain: tokens for domain, tokens in self.streams.items() if self.windows(domain, seq_len)}
        if not sizes:
            have = ", ".join(f"{domain} {tokens:,}" for domain, tokens in sorted(self.streams.items())) or "none"
            raise RecipeError(
                f"no domain has the {seq_len + 1:,} tokens of one window (tokens by domain: {have})",
                where="train.seq_len",
                mend="use a shorter sequence length or more text",
            )
        return sizes

    def _check_windows(self, mixture: Mixture, seq_len: int) -> None:
        for domain in mixture.names:
            if domain not in self.streams:
                raise RecipeError(
                    f"the mixture gives weight to {domain!r}, but the training split has no such domain",
                    where="mixture",
                    mend="use the names " + ", ".join(sorted(self.streams)),
                )
            if not self.windows(domain, seq_len):
                raise RecipeError(
                    f"domain {domain!r} has {self.streams[domain]:,} tokens, less than one window of {seq_len + 1:,}",
                    where="mixture",
                    mend="add text to it, give it no weight, or use a shorter sequence length",
                )

    def _key(self, domain: str, seq_len: int, epoch: int) -> int:
        return derive_key("order", self.seed, domain, seq_len, epoch)

    def _segment(self, index: int) -> _Segment:
        if index < 0:
            raise ValueError(f"sample {index} does not exist")
        return self._segments[bisect_right(self._segments, index, key=lambda segment: segment.first_sample) - 1]

    def _draw(self, index: int) -> tuple[str, int, int]:
        segment = self._segment(index)
        domain = segment.domain(index)
        return domain, segment.draw(domain, segment.drawn(domain, index)), segment.seq_len

    def _end(self, number: int, samples: int) -> int:
        """Where segment `number` ends, if there are only the first `samples` samples."""
        end = self._segments[number + 1].first_sample if number + 1 < len(self._segments) else samples
        return max(self._segments[number].first_sample, min(end, samples))

    def _ends(self, domain: str, seq_len: int, samples: int) -> Iterable[int]:
        """For each segment of this length, the draw after the last one used."""
        for number, segment in enumerate(self._segments):
            if segment.seq_len == seq_len and (drawn := segment.drawn(domain, self._end(number, samples))):
                yield segment.draw(domain, drawn - 1) + 1
