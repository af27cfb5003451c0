"""`headwater doctor RUN --step N`: whose fault a bad step was: its data's, the weights', or the hardware's.

In: what a replay measured (`headwater.diagnose.replaying`). Out: an `Autopsy` with the documents of the step, the worst
first, and a verdict in plain words. Pure functions; no torch.

    print(autopsy_text(autopsy_of(measured)))
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from statistics import median
from typing import Any, Literal

Cause = Literal["data", "state", "data on this state", "hardware", "nothing"]
Reproduced = Literal["bitwise", "closely", "no", "unknown"]

CLOSE = 1e-3
"""Relative difference of losses that other roundings (another layout, device, micro-batch) explain."""

OUTLIER, LEAST = 6.0, 0.1
"""A loss is bad so many robust standard deviations, and nats, above where it belongs."""
LEVEL = 12
"""Recorded steps whose median is where a loss belongs: more than half of them are from before most troubles."""

SHOWN = 10
EXCERPT = 160


@dataclass(frozen=True, slots=True)
class Document:
    """A document's part in the step. `first`: its token at which the part begins; `loss` in nats a predicted token.
    Shares are of the step's whole: of predicted tokens, of nats, and of the sum of gradient norms of all parts."""

    id: str
    source: str
    lang: str
    domain: str
    sample: int
    first: int
    tokens: int
    loss: float
    token_share: float
    loss_share: float
    gradient_share: float
    text: str

    @property
    def weight(self) -> float:
        """The geometric mean of its shares of loss and gradient; what documents are ranked by."""
        return math.sqrt(self.loss_share * self.gradient_share)


@dataclass(frozen=True, slots=True)
class Measured:
    """What a replay found. Losses are in nats a token, None where they could not be had.

    `recorded`: of the step, at the time; `replayed`: now. `others`: other batches under the weights before the step.
    `earlier`: the step's batch under the weights of the checkpoint `earlier_step`, `earlier_others` others there.
    `usual`: recorded losses of the steps before. `same_machine`: device, threads, precision and layout are those of the
    run, so that the replay must be bitwise. `undone`: a rewind has gone back behind this step since."""

    run: str
    step: int
    checkpoint: int
    recorded: float | None
    recorded_norm: float | None
    replayed: float
    replayed_norm: float
    others: tuple[float, ...]
    earlier_step: int | None
    earlier: float | None
    earlier_others: tuple[float, ...]
    usual: tuple[float, ...]
    same_machine: bool
    undone: bool
    documents: tuple[Document, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Autopsy:
    """`cause` and `why` it is thought so, one sentence a piece of evidence."""

    measured: Measured
    cause: Cause
    reproduced: Reproduced
    why: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "cause": self.cause,
            "reproduced": self.reproduced,
            "why": list(self.why),
            **asdict(self.measured),
        }


def shares(values: Sequence[float]) -> list[float]:
    """Each value's share of their sum; where some are not finite, they have it all between them."""
    endless = sum(1 for value in values if not math.isfinite(value))
    if endless:
        return [0.0 if math.isfinite(value) else 1 / endless for value in values]
    whole = sum(values) or 1.0
    return [value / whole for value in values]


def reproduced(measured: Measured) -> Reproduced:
    """Whether the replay's loss is the recorded one."""
    then, now = measured.recorded, measured.replayed
    if then is None:
        return "unknown"
    if then == now or (not math.isfinite(then) and not math.isfinite(now)):
        return "bitwise"
    return "closely" if math.isclose(then, now, rel_tol=CLOSE) else "no"


def is_bad(loss: float, beside: Sequence[float], usual: Sequence[float]) -> bool:
    """Whether a loss lies far above others, given how widely losses spread from step to step (a trend does not count:
    1.4826 x the median difference of neighbours, over the root of two, estimates their deviation)."""
    beside = [value for value in beside if math.isfinite(value)]
    if not beside or not math.isfinite(loss):
        return not math.isfinite(loss)
    changes = [abs(after - before) for before, after in pairwise(usual)]
    spread = 1.4826 * median(changes) / math.sqrt(2) if changes else 0.0
    return loss > median(beside) + max(LEAST, OUTLIER * spread)


def autopsy_of(measured: Measured) -> Autopsy:
    """The verdict. A loss that the same computation does not give again is the hardware's (or of code outside the
    trainer); a batch that is bad under other weights too is the data's; weights under which other batches are bad too
    are the state's; and a batch that is bad only here is bad on this state, as most spikes of large runs are."""
    again, why = reproduced(measured), []
    level = measured.usual[-LEVEL:]
    others_bad = bool(level and measured.others) and is_bad(median(measured.others), level, measured.usual)
    bad_here = is_bad(measured.replayed, measured.others or level, measured.usual)
    bad_before = measured.earlier is not None and is_bad(
        measured.earlier, measured.earlier_others or level, measured.usual
    )
    same = "on the same device, threads, precision and layout" if measured.same_machine else "on another setting"
    if again == "unknown":
        why.append(f"no loss is recorded for step {measured.step:,}, so the hardware cannot be judged")
    else:
        words = {"bitwise": "the recorded loss, bit for bit", "closely": "the recorded loss, up to rounding"}
        told = words.get(again, f"not the recorded loss {measured.recorded:.6g}")
        why.append(f"the replay, {same}, gives {measured.replayed:.6g}: {told}")
        if again == "closely" and measured.same_machine:
            why.append("not bit for bit, with the same settings: other versions or kernels, or a small fault")
    if measured.others:
        why.append(
            f"other batches under the same weights: {median(measured.others):.3f}"
            + (f"; the steps before: {median(level):.3f}" if level else "")
        )
    if measured.earlier is not None:
        beside = f", others {median(measured.earlier_others):.3f}" if measured.earlier_others else ""
        why.append(
            f"the step's batch under the weights of step {measured.earlier_step:,}: {measured.earlier:.3f}{beside}"
        )
    cause: Cause = "nothing"
    if again == "no":
        cause = "hardware"
    elif others_bad:
        cause = "state"
    elif bad_here and measured.earlier is None:
        cause = "data"
        why.append("there is no earlier checkpoint to try the batch on: on other weights it may do no harm")
    elif bad_here:
        cause = "data" if bad_before else "data on this state"
    return Autopsy(measured, cause, again, tuple(why))


VERDICTS: dict[Cause, str] = {
    "data": "the data: the batch is bad under other weights too; read the documents below",
    "state": "the state: other batches are as bad under these weights; look at the steps before, or go back further",
    "data on this state": "the data on this state: the batch is bad here and not under earlier weights; going back and "
    "leaving it out helps",
    "hardware": "the hardware, or something outside the trainer: the same computation does not give the recorded loss",
    "nothing": "nothing: the step is not worse than others",
}


def visible(text: str, limit: int = EXCERPT) -> str:
    """Text for a terminal: what a terminal would obey or hide is written as an escape."""
    shown = "".join(
        character if not unicodedata.category(character).startswith(("C", "Zl", "Zp")) else _escaped(character)
        for character in text[:limit]
    )
    return shown + ("..." if len(text) > limit else "")


def _escaped(character: str) -> str:
    known = {"\n": "\\n", "\t": "\\t", "\r": "\\r"}
    code = ord(character)
    return known.get(character) or (
        f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" if code < 65536 else f"\\U{code:08x}"
    )


def autopsy_text(autopsy: Autopsy) -> str:
    """For a terminal."""
    found = autopsy.measured
    undone = " (undone by a rewind since)" if found.undone else ""
    lines = [
        f"{found.run}: step {found.step:,}{undone}, replayed from {_origin(found.checkpoint)}",
        f"loss {found.replayed:.3f}, gradient norm {found.replayed_norm:.3g}",
        "",
        f"it was {VERDICTS[autopsy.cause]}",
        *(f"  {sentence}" for sentence in autopsy.why),
        "",
        f"documents of the step, the worst of {len(found.documents):,} first (shares of tokens, loss, gradient):",
    ]
    for document in found.documents[:SHOWN]:
        end = document.first + document.tokens
        lines += [
            f"  {document.id}  loss {document.loss:.3f}  {document.token_share:.1%} {document.loss_share:.1%} "
            f"{document.gradient_share:.1%}  sample {document.sample:,}",
            f"    {document.domain}, {visible(document.source)}, tokens {document.first:,}-{end:,}",
            f"    {visible(document.text)}",
        ]
    if len(found.documents) > SHOWN:
        lines.append(f"  ... {len(found.documents) - SHOWN:,} more: --json has all")
    return "\n".join([*lines, *(f"note: {note}" for note in found.notes)])


def _origin(checkpoint: int) -> str:
    return f"the checkpoint of step {checkpoint:,}" if checkpoint else "the beginning of the run"
