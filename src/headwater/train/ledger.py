"""The run ledger: everything that changes over a run, as an append-only, hash-chained JSON Lines file.

In: entries (`order`, `dataset`, `skip`, `hold`, `lr`, `rewind`). Out: for any step, the settings its batch is read
with, the samples it must not see, the factor on its learning rate, and whether its update is held back. An entry takes
effect at `step`, which must lie after `at`, the last step done when it was recorded: what is done is never altered, and
a batch depends only on entries recorded before it. A `rewind` marks what was recorded after its target, and what was
held back after it, as superseded; the entries stay in the file.

    ledger = RunLedger(path); ledger.append("order", step=1, at=0, data={"seq_len": 256, "global_batch": 32})

Each line holds the hash of the one before, so a line that was lost or edited shows when the file is opened.
A torn last line, left by a kill in the middle of a write, was never acknowledged and is dropped; so is a torn group:
entries that belong together are written at once, and the first says how many follow it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from headwater.core.errors import CorruptArtifactError
from headwater.core.jsonl import JsonlLog, canonical_json, read_jsonl
from headwater.train.phases import RunPlan

if TYPE_CHECKING:
    from headwater.dataset.steps import StepSegment

EntryKind = Literal["run", "dataset", "order", "skip", "hold", "lr", "rewind"]
GENESIS = "0" * 64
THEN = "then"
"""In the data of the first entry of a group: how many more belong to it."""


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """One line. `number` counts from 0; `step` is the first step affected; `at` the last step done when recorded.

    `data` by kind: `run` {seed, format}; `dataset` {fingerprint}; `order` any of {phase, seq_len, global_batch,
    mixture, rope_theta}; `skip` {domain, draws}; `hold` {why, onset}: the step is read but its update is not made;
    `lr` {factor, until}; `rewind` {to, rung, why, onset}.
    """

    number: int
    kind: EntryKind
    step: int
    at: int
    data: dict[str, Any]
    previous: str
    hash: str

    def body(self) -> dict[str, Any]:
        """What the hash covers."""
        return {
            "number": self.number,
            "kind": self.kind,
            "step": self.step,
            "at": self.at,
            "data": self.data,
            "previous": self.previous,
        }

    def line(self) -> dict[str, Any]:
        return {**self.body(), "hash": self.hash}


@dataclass(frozen=True, slots=True)
class NewEntry:
    """What is to be recorded; see `LedgerEntry`."""

    kind: EntryKind
    step: int
    at: int
    data: dict[str, Any]


@dataclass(frozen=True, slots=True)
class OrderSetting:
    """How batches are read from `step` on, until the next setting."""

    step: int
    phase: str
    seq_len: int
    global_batch: int
    mixture: dict[str, float] | None
    rope_theta: float | None


class RunLedger:
    """The ledger of one run folder; opening it checks the whole chain (CorruptArtifactError with the line)."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._entries: list[LedgerEntry] = []
        previous = GENESIS
        for number, row in enumerate(read_jsonl(path, on_broken=self._broken) if path.exists() else ()):
            entry = _parse(row, path, number)
            if entry.number != number or entry.previous != previous or entry.hash != _digest(entry.body()):
                raise CorruptArtifactError(
                    f"the run ledger's hash chain is broken at entry {number}",
                    where=f"{path}:{number + 1}",
                    mend="restore the file from a copy: without it nobody can say which data the run has seen",
                )
            previous = entry.hash
            self._entries.append(entry)
        self._torn = self._drop_torn_group()

    def _drop_torn_group(self) -> bool:
        """Forget a group at the end that is not whole; whether there was one."""
        for first in reversed(self._entries):
            if first.data.get(THEN, 0) > len(self._entries) - first.number - 1:
                del self._entries[first.number :]
                return True
        return False

    def _broken(self, line: int, offset: int, reason: str) -> None:
        raise CorruptArtifactError(
            f"the run ledger cannot be read: {reason}",
            where=f"{self.path}:{line}",
            mend="restore the file from a copy: without it nobody can say which data the run has seen",
        )

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[LedgerEntry]:
        return iter(self._entries)

    @property
    def head(self) -> str:
        """Hash of the last entry, 64 hex digits; zeros for an empty ledger."""
        return self._entries[-1].hash if self._entries else GENESIS

    def append(self, kind: EntryKind, *, step: int, at: int, data: dict[str, Any]) -> LedgerEntry:
        """Record one entry, durably. An equal entry already in force is returned as it is, so that a step repeated
        after a resume records its decision once. ValueError if `step` is already done.
        """
        for entry in self.effective():
            if (entry.kind, entry.step, entry.at, entry.data) == (kind, step, at, data):
                return entry
        return self.append_group([NewEntry(kind, step, at, data)])[0]

    def append_group(self, wanted: Sequence[NewEntry]) -> list[LedgerEntry]:
        """Record entries that belong together, durably: a kill leaves all of them or none. ValueError as `append`."""
        made: list[LedgerEntry] = []
        previous = self.head
        for place, new in enumerate(wanted):
            if new.step <= new.at:
                raise ValueError(
                    f"a ledger entry for step {new.step} would alter a batch that is already done (step {new.at})"
                )
            data = {**new.data, THEN: len(wanted) - 1} if place == 0 and len(wanted) > 1 else new.data
            body = LedgerEntry(len(self._entries) + place, new.kind, new.step, new.at, data, previous, "").body()
            made.append(LedgerEntry(**body, hash=_digest(body)))
            previous = made[-1].hash
        if self._torn:
            whole = sum(len(canonical_json(entry.line())) + 1 for entry in self._entries)
            os.truncate(self.path, whole)
            self._torn = False
        with JsonlLog(self.path, fsync=True) as log:
            log.append(*(entry.line() for entry in made))
        self._entries += made
        return made

    def follow(self, entries: Sequence[LedgerEntry]) -> None:
        """Take over, in memory, what rank 0 has recorded in the file."""
        self._entries += entries[max(0, len(self._entries) - entries[0].number) :] if entries else []

    def superseded(self) -> frozenset[int]:
        """Numbers of the entries that a later rewind went back behind."""
        gone: set[int] = set()
        for entry in self.rewinds():
            to = entry.data["to"]
            for earlier in self._entries[: entry.number]:
                if earlier.at > to or (earlier.kind == "hold" and earlier.step > to):
                    gone.add(earlier.number)
        return frozenset(gone)

    def as_of(self, number: int) -> RunLedger:
        """The ledger before entry `number` was recorded, to read from."""
        earlier = copy(self)
        earlier._entries = self._entries[:number]
        return earlier

    def rewinds(self) -> list[LedgerEntry]:
        """All rewinds, in the order recorded; none is ever undone."""
        return [entry for entry in self._entries if entry.kind == "rewind"]

    def effective(self) -> list[LedgerEntry]:
        """Entries in force, in the order recorded."""
        gone = self.superseded()
        return [entry for entry in self._entries if entry.number not in gone]

    def contains(self, head: str) -> bool:
        """Whether `head` is the hash of one of the entries: whether a checkpoint belongs to this history."""
        return head == GENESIS or any(entry.hash == head for entry in self._entries)

    def leads_on_from(self, step: int, head: str) -> bool:
        """Whether a checkpoint of `step`, made when the ledger ended with `head`, lies on the way the run has taken: no
        rewind since has gone back behind it. False for another history's."""
        number = next((entry.number for entry in self._entries if entry.hash == head), -1)
        if number < 0 and head != GENESIS:
            return False
        return all(entry.data["to"] >= step for entry in self.rewinds() if entry.number > number)

    def held(self, step: int) -> bool:
        """Whether the step's update is not made."""
        return any(entry.kind == "hold" and entry.step == step for entry in self.effective())

    def order_settings(self) -> list[OrderSetting]:
        """The order entries in force merged into a timeline: a field holds until the next entry, by step, sets it;
        of two entries for one step the later recorded wins.
        """
        entries = sorted((e for e in self.effective() if e.kind == "order"), key=lambda e: (e.step, e.number))
        timeline: list[OrderSetting] = []
        fields: dict[str, Any] = {"mixture": None, "rope_theta": None}
        for entry in entries:
            fields.update(entry.data)
            setting = OrderSetting(step=entry.step, **fields)
            if timeline and timeline[-1].step == entry.step:
                timeline[-1] = setting
            else:
                timeline.append(setting)
        return timeline

    def step_segments(self) -> list[StepSegment]:
        """The timeline as the data order wants it: a segment wherever a setting or a skip begins."""
        from headwater.dataset.steps import StepSegment

        settings = self.order_settings()
        skips = [entry for entry in self.effective() if entry.kind == "skip"]
        segments = []
        for step in sorted({setting.step for setting in settings} | {entry.step for entry in skips}):
            setting = [s for s in settings if s.step <= step][-1]
            skipped: dict[str, list[int]] = {}
            for entry in skips:
                if entry.step == step:
                    skipped.setdefault(entry.data["domain"], []).extend(entry.data["draws"])
            segments.append(StepSegment(step, setting.global_batch, setting.seq_len, setting.mixture, skipped))
        return segments

    def lr_factor(self, step: int) -> float:
        """Product of the learning-rate interventions in force at `step`; 1.0 without any."""
        factor = 1.0
        for entry in self.effective():
            if entry.kind == "lr" and entry.step <= step <= entry.data["until"]:
                factor *= entry.data["factor"]
        return factor


def record_plan(ledger: RunLedger, plan: RunPlan, *, seed: int, dataset_fingerprint: str) -> RunLedger:
    """Write the plan's segments at the start of a run, before step 1; a second call changes nothing. Returns the
    ledger."""
    ledger.append("run", step=1, at=0, data={"seed": seed, "format": 1})
    ledger.append("dataset", step=1, at=0, data={"fingerprint": dataset_fingerprint})
    for segment in plan.segments:
        data = {
            "phase": segment.phase,
            "seq_len": segment.seq_len,
            "global_batch": segment.global_batch,
            "mixture": segment.mixture,
            "rope_theta": segment.rope_theta,
        }
        ledger.append("order", step=segment.first_step, at=0, data=data)
    return ledger


def _digest(body: dict[str, Any]) -> str:
    return hashlib.sha256(canonical_json(body)).hexdigest()


def _parse(row: Any, path: Path, number: int) -> LedgerEntry:
    try:
        entry = LedgerEntry(**row)
        if entry.kind not in get_args(EntryKind):
            raise ValueError(entry.kind)
        return entry
    except (TypeError, ValueError) as error:
        raise CorruptArtifactError(
            f"not a ledger entry: {str(row)[:100]}",
            where=f"{path}:{number + 1}",
            mend="restore the file from a copy, or upgrade Headwater if a newer version wrote it",
        ) from error
