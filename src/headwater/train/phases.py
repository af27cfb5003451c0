"""The plan of a run: which step has which batch, sequence length, mixture and learning rate. Pure functions.

In: a `TrainConfig`. Out: a `RunPlan` of `Segment`s (stretches of steps that read the data in the same way) and
`PhaseSpan`s (stretches that share a learning-rate schedule). The segments go into the run ledger, which the data
order is read from.

    plan_run(TrainConfig(tokens=1_000_000, global_batch=32, seq_len=256)).steps      # 123

Steps count from 1. A run given in tokens ends with the first step that reaches them.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass

from headwater.core.errors import RecipeError
from headwater.train import schedules
from headwater.train.config import BatchRampConfig, PhaseConfig, ScheduleConfig, TrainConfig


@dataclass(frozen=True, slots=True)
class Segment:
    """Steps `first_step..last_step` (inclusive) that read `global_batch` samples of `seq_len` tokens each.

    `mixture` None means every domain as large as it is; `rope_theta` None means the model's own.
    """

    phase: str
    first_step: int
    last_step: int
    global_batch: int
    seq_len: int
    mixture: dict[str, float] | None
    rope_theta: float | None

    @property
    def steps(self) -> int:
        return self.last_step - self.first_step + 1

    @property
    def tokens_per_step(self) -> int:
        return self.global_batch * self.seq_len


@dataclass(frozen=True, slots=True)
class PhaseSpan:
    """A phase's place on its schedule: at `step`, position is `offset + step - first_step + 1` of `total`."""

    name: str
    first_step: int
    last_step: int
    schedule: ScheduleConfig
    offset: int
    total: int
    lr_ratio: float


@dataclass(frozen=True)
class RunPlan:
    """Everything that is decided about a run before its first step."""

    segments: tuple[Segment, ...]
    phases: tuple[PhaseSpan, ...]
    peak_lr: float

    @property
    def steps(self) -> int:
        return self.segments[-1].last_step

    @property
    def tokens(self) -> int:
        """Tokens the run reads (positions, whether or not they are predicted)."""
        return sum(segment.steps * segment.tokens_per_step for segment in self.segments)

    def segment(self, step: int) -> Segment:
        """The segment of a step in 1..steps; ValueError outside."""
        if not 1 <= step <= self.steps:
            raise ValueError(f"step {step} is outside 1..{self.steps}")
        return self.segments[bisect_left(self.segments, step, key=lambda segment: segment.last_step)]

    def phase(self, step: int) -> PhaseSpan:
        """The phase of a step in 1..steps; ValueError outside."""
        if not 1 <= step <= self.steps:
            raise ValueError(f"step {step} is outside 1..{self.steps}")
        return self.phases[bisect_left(self.phases, step, key=lambda phase: phase.last_step)]

    def lr_factor(self, step: int) -> float:
        """Learning rate of a step as a share of the peak."""
        phase = self.phase(step)
        position = phase.offset + step - phase.first_step + 1
        return phase.lr_ratio * schedules.factor(phase.schedule, position, phase.total, self.peak_lr * phase.lr_ratio)

    def tokens_after(self, step: int) -> int:
        """Tokens read once `step` is done; 0 for step 0."""
        done = (min(s.last_step, step) - s.first_step + 1 for s in self.segments if s.first_step <= step)
        return sum(n * s.tokens_per_step for n, s in zip(done, self.segments, strict=False))


@dataclass(frozen=True, slots=True)
class _Stretch:
    """A constant batch within a phase; `steps` None: until the phase ends."""

    global_batch: int
    steps: int | None


def plan_run(config: TrainConfig) -> RunPlan:
    """Lay out a run. RecipeError, with the field, for a length that is missing or does not fit."""
    if config.tokens is None and config.steps is None and _phases(config)[0].share is not None:
        raise RecipeError(
            "nothing says how long to train", where="train", mend="set train.tokens (for example 2e9) or train.steps"
        )
    segments: list[Segment] = []
    bounds: list[tuple[PhaseConfig, int, int]] = []
    first_step, tokens_before, share_before = 1, 0, 0.0
    rope_theta: float | None = None
    for index, phase in enumerate(_phases(config)):
        where = f"train.phases[{index}]" if config.phases else "train"
        seq_len = phase.seq_len or config.seq_len
        batch = _phase_batch(config, phase, where)
        rope_theta = phase.rope_theta or rope_theta
        share_before += phase.share or 0.0
        last = index == max(0, len(config.phases) - 1)
        steps_left, tokens_left = _length(config, phase, 1.0 if last else share_before, first_step - 1, tokens_before)
        phase_first = first_step
        for stretch in _stretches(config.batch_ramp if index == 0 else None, batch):
            per_step = stretch.global_batch * seq_len
            wanted = steps_left if tokens_left is None else math.ceil(tokens_left / per_step)
            assert wanted is not None
            if stretch.steps is not None and wanted <= stretch.steps:
                raise RecipeError(
                    f"the batch ramp takes {config.batch_ramp.steps if config.batch_ramp else 0} steps, as long as "
                    f"phase {phase.name!r} or longer",
                    where="train.batch_ramp.steps",
                    mend="shorten the ramp or lengthen the first phase",
                )
            steps = wanted if stretch.steps is None else stretch.steps
            if steps <= 0:
                raise RecipeError(
                    f"phase {phase.name!r} would have no step", where=where, mend="give it a larger share of the run"
                )
            segment = Segment(
                phase=phase.name,
                first_step=first_step,
                last_step=first_step + steps - 1,
                global_batch=stretch.global_batch,
                seq_len=seq_len,
                mixture=phase.mixture or config.mixture,
                rope_theta=rope_theta,
            )
            segments.append(segment)
            first_step += steps
            tokens_before += steps * per_step
            steps_left = None if steps_left is None else steps_left - steps
            tokens_left = None if tokens_left is None else tokens_left - steps * per_step
        bounds.append((phase, phase_first, first_step - 1))
    return RunPlan(tuple(segments), _spans(config, bounds), config.optimizer.lr)


def _phases(config: TrainConfig) -> tuple[PhaseConfig, ...]:
    return config.phases or (PhaseConfig(name="main", share=1.0),)


def _phase_batch(config: TrainConfig, phase: PhaseConfig, where: str) -> int:
    if phase.global_batch is not None:
        return phase.global_batch
    if phase.seq_len is None or phase.seq_len == config.seq_len:
        return config.global_batch
    batch, rest = divmod(config.global_batch * config.seq_len, phase.seq_len)
    if rest or not batch:
        raise RecipeError(
            f"a step of {config.global_batch} x {config.seq_len} tokens is no whole number of samples of "
            f"{phase.seq_len} tokens",
            where=f"{where}.seq_len",
            mend=f"set {where}.global_batch",
        )
    return batch


def _length(
    config: TrainConfig, phase: PhaseConfig, share_until: float, steps_before: int, tokens_before: int
) -> tuple[int | None, int | None]:
    """Steps or tokens this phase has left to do; exactly one of the two is a number."""
    if phase.steps is not None:
        return phase.steps, None
    if phase.tokens is not None:
        return None, phase.tokens
    if config.steps is not None:
        return round(config.steps * share_until) - steps_before, None
    assert config.tokens is not None
    return None, round(config.tokens * share_until) - tokens_before


def _stretches(ramp: BatchRampConfig | None, batch: int) -> list[_Stretch]:
    if ramp is None or ramp.start == batch:
        return [_Stretch(batch, None)]
    if ramp.start > batch:
        raise RecipeError(
            f"batch_ramp.start {ramp.start} is above the batch of the first phase, {batch}",
            where="train.batch_ramp.start",
            mend="a ramp only rises: start lower",
        )
    levels = list(range(ramp.start, batch, ramp.increment))
    if ramp.steps < len(levels):
        raise RecipeError(
            f"{len(levels)} batch sizes from {ramp.start} to {batch} by {ramp.increment} do not fit in "
            f"{ramp.steps} steps",
            where="train.batch_ramp",
            mend="take a larger increment or more steps",
        )
    edges = [round(i * ramp.steps / len(levels)) for i in range(len(levels) + 1)]
    stretches = [_Stretch(level, edges[i + 1] - edges[i]) for i, level in enumerate(levels)]
    return [*stretches, _Stretch(batch, None)]


def _spans(config: TrainConfig, bounds: list[tuple[PhaseConfig, int, int]]) -> tuple[PhaseSpan, ...]:
    """Phases without a schedule of their own count their steps on the run's, skipping the others."""
    shared = sum(last - first + 1 for phase, first, last in bounds if phase.schedule is None)
    spans: list[PhaseSpan] = []
    offset = 0
    for index, (phase, first, last) in enumerate(bounds):
        steps = last - first + 1
        own = phase.schedule is not None
        span = PhaseSpan(
            name=phase.name,
            first_step=first,
            last_step=last,
            schedule=phase.schedule or config.schedule,
            offset=0 if own else offset,
            total=steps if own else shared,
            lr_ratio=phase.lr_ratio,
        )
        offset += 0 if own else steps
        if span.schedule.warmup_steps > span.total:
            raise RecipeError(
                f"the warm-up takes {span.schedule.warmup_steps} steps but its schedule covers only {span.total}",
                where=f"train.phases[{index}].schedule.warmup_steps" if own else "train.schedule.warmup_steps",
                mend="shorten the warm-up or train longer",
            )
        spans.append(span)
    return tuple(spans)
