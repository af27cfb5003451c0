"""What to do about a step that has gone wrong, decided from the run ledger alone. Pure functions.

In: the policy, the ledger, the step, the checkpoints there are. Out: a rung of the ladder, and the ledger entries that
take it. What was done before is read from the ledger, which no rewind and no kill takes back; so a run that is killed
in the middle of a recovery and goes on decides as if nothing had happened.

    rung = choose_rung(config, ledger, step=412)            # "skip", "rewind", "lower_lr" or "stop"
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal

from headwater.dataset.order import SampleRef
from headwater.train.ledger import NewEntry, RunLedger
from headwater.train.phases import RunPlan
from headwater.train.recovery_config import RecoveryConfig

Rung = Literal["skip", "rewind", "lower_lr", "stop"]

NEW_LEVEL = 32
"""Steps after a planned change of the data in which only NaN and infinity count: as long as detectors need to take a
new level for granted."""

NEAR = 8
"""Held steps with no more good ones between them are one trouble."""

OUTLIER = 6.0
"""Robust standard deviations, and LEAST nats, that a guilty sample's loss lies above that of good steps' samples."""
LEAST = 0.5


@dataclass(frozen=True, slots=True)
class Trouble:
    """Something wrong at `step`: the detectors that say so, and the first step (`onset`) that can be harmed."""

    step: int
    onset: int
    why: tuple[str, ...]

    @property
    def of_weights(self) -> bool:
        """Whether it is the weights that changed, by nobody's doing: skipping mends nothing, and no data is guilty."""
        return "changed_weights" in self.why

    @property
    def facts(self) -> dict[str, Any]:
        return {"why": list(self.why), "onset": self.onset}


def choose_rung(
    config: RecoveryConfig, ledger: RunLedger, step: int, *, can_skip: bool = True, can_go_back: bool = True
) -> Rung:
    """The first rung that is not used up. Each time a higher one is taken, steps may be skipped anew. Without a
    checkpoint to go back to there is no second rung; where the weights are broken, no first."""
    last = max((entry.number for entry in ledger if "rung" in entry.data), default=-1)
    held = [
        entry
        for entry in ledger.effective()
        if entry.kind == "hold" and entry.number > last and step - config.skip.within < entry.step < step
    ]
    if can_skip and len(held) < config.skip.times:
        return "skip"
    if can_go_back and _recent(ledger, "rewind", step - config.rewind.within) < config.rewind.times:
        return "rewind"
    if _recent(ledger, "lower_lr", step - config.lower_lr.within) < config.lower_lr.times:
        return "lower_lr"
    return "stop"


def _recent(ledger: RunLedger, rung: str, after: int) -> int:
    """How often a rung was taken by a step later than `after`: superseded entries count too."""
    return sum(1 for entry in ledger if entry.data.get("rung") == rung and entry.step > after)


def held_before(ledger: RunLedger, step: int) -> list[int]:
    """Steps of the same trouble whose updates were held back, the first first."""
    held = {entry.step for entry in ledger.effective() if entry.kind == "hold"}
    found: list[int] = []
    while near := [s for s in held if (found[0] if found else step) - NEAR <= s < (found[0] if found else step)]:
        found.insert(0, max(near))
    return found


def onset_of(ledger: RunLedger, trouble: Trouble) -> int:
    """The first step that can be harmed, of all that belong to the same trouble."""
    steps = set(held_before(ledger, trouble.step))
    onsets = [e.data["onset"] for e in ledger.effective() if e.kind == "hold" and e.step in steps]
    return min([trouble.onset, *onsets, *steps])


def times_before(ledger: RunLedger, onset: int) -> int:
    """How many rewinds went back behind a step already: each further one for it goes further."""
    return sum(1 for entry in ledger.rewinds() if entry.data["to"] < onset <= entry.step)


def planned_change(plan: RunPlan, step: int) -> bool:
    """Whether data, its mixture or its length have changed within NEW_LEVEL steps, as planned."""
    here = plan.segment(step)
    for before in plan.segments:
        if before.last_step < here.first_step and before.last_step + NEW_LEVEL >= step:
            following = plan.segment(before.last_step + 1)
            if (before.seq_len, before.mixture, before.phase, before.rope_theta) != (
                following.seq_len, following.mixture, following.phase, following.rope_theta
            ):  # fmt: skip
                return True
    return False


def stand_out(suspects: Sequence[float], reference: Sequence[float]) -> list[bool]:
    """Which samples' losses lie far above those of good steps' samples, under the same weights. One that is infinite
    does, one without a predicted token (NaN) does not."""
    known = [value for value in reference if math.isfinite(value)]
    if not known:
        return [False] * len(suspects)
    middle = median(known)
    spread = 1.4826 * median(abs(value - middle) for value in known) + 0.02 * middle
    limit = middle + max(LEAST, OUTLIER * spread)
    return [value > limit for value in suspects]


def rewind_entries(
    ledger: RunLedger,
    trouble: Trouble,
    *,
    rung: Rung,
    to: int,
    samples: Sequence[SampleRef],
    lower_lr: tuple[float, int] | None = None,
) -> list[NewEntry]:
    """A rewind and what goes with it: samples skipped from now on, those that an undone entry skipped among them;
    learning rates still lowered; and a new one, (factor, last step)."""
    at = trouble.step - 1
    undone = [entry for entry in ledger.effective() if entry.at > to]
    draws: dict[tuple[int, str], set[int]] = {}
    for sample in samples:
        draws.setdefault((_skipped_from(ledger, to, sample.seq_len), sample.domain), set()).add(sample.draw)
    for entry in undone:
        if entry.kind == "skip":
            length = _seq_len(ledger, entry.step)
            place = (_skipped_from(ledger, to, length), entry.data["domain"])
            draws.setdefault(place, set()).update(entry.data["draws"])
    entries = [NewEntry("rewind", trouble.step, at, {"to": to, "rung": rung, **trouble.facts})]
    entries += [
        NewEntry("skip", step, to, {"domain": domain, "draws": sorted(numbers)})
        for (step, domain), numbers in sorted(draws.items())
    ]
    entries += [
        NewEntry("lr", max(e.step, to + 1), to, {key: e.data[key] for key in ("factor", "until")})
        for e in undone
        if e.kind == "lr"
    ]
    if lower_lr is not None:
        entries.append(NewEntry("lr", to + 1, to, {"factor": lower_lr[0], "until": lower_lr[1]}))
    return entries


def _seq_len(ledger: RunLedger, step: int) -> int:
    return [setting.seq_len for setting in ledger.order_settings() if setting.step <= step][-1]


def _skipped_from(ledger: RunLedger, to: int, seq_len: int) -> int:
    """The first step after `to` with samples of this length: draws are numbered by length."""
    if _seq_len(ledger, to + 1) == seq_len:
        return to + 1
    return min(s.step for s in ledger.order_settings() if s.step > to and s.seq_len == seq_len)
