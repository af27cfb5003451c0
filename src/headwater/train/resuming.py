"""Where a run goes on from: the newest good checkpoint on the way that its ledger describes.

In: a trainer, the store, the ledger. Out: the trainer in that state, the record cut back to it, the data in the order
the ledger gives. A process that starts and one that goes back in the middle of a run do the same, so a kill in between
changes nothing.

    Resuming(run, ledger, store, data, plan, ranks, reporter, facts).start(trainer)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headwater.core.errors import CorruptArtifactError
from headwater.core.progress import Reporter
from headwater.dataset import StepOrder
from headwater.monitor.record import cut_after
from headwater.parallel.agreement import Ranks
from headwater.train.checkpoint import CheckpointStore
from headwater.train.checkpoint_format import read_tensors
from headwater.train.checkpoint_load import LoadedCheckpoint
from headwater.train.checkpoint_targets import targets_for
from headwater.train.data import RunData
from headwater.train.ledger import RunLedger
from headwater.train.phases import RunPlan
from headwater.train.recovery import BEGINS_ANEW, STOPPED
from headwater.train.run_folder import CheckpointRef, RunFolder
from headwater.train.trainer import Trainer

SHOWN_STEPS = 200
"""Figures of undone steps that an event keeps, as the record loses them."""


class Resuming:
    """See the module. `facts` tells what this process computes with, whose change means other roundings."""

    def __init__(
        self,
        run: RunFolder,
        ledger: RunLedger,
        store: CheckpointStore,
        data: RunData,
        plan: RunPlan,
        ranks: Ranks,
        reporter: Reporter,
        facts: Callable[[], dict[str, Any]],
    ) -> None:
        self._run, self._ledger, self._store, self._data, self._plan = run, ledger, store, data, plan
        self._ranks, self._reporter, self._facts = ranks, reporter, facts

    def start(self, trainer: Trainer) -> None:
        """Load the newest good checkpoint and cut the record back to it; without one, begin."""
        loaded = self._load(trainer)
        dropped = self._ranks.on_first(lambda: self._cut(trainer.step))
        if self._ranks.first and (self._run.path / STOPPED).exists():
            if loaded is None:
                self._reporter.warn(f"the run had stopped itself: it {BEGINS_ANEW} (see `headwater doctor`)")
            (self._run.path / STOPPED).unlink()
        if loaded is None:
            self._run.event("started", **self._facts())
            return
        self._run.event("resumed", step=trainer.step, records_dropped=len(dropped), **self._facts())
        again = f"; {len(dropped):,} later steps are trained again" if dropped else ""
        self._reporter.info(f"going on from step {trainer.step:,} of {self._plan.steps:,}{again}")
        self._tell_of_other_machine()

    def go_back(self, trainer: Trainer) -> None:
        """The same in the middle of a run, once the ledger says so. CorruptArtifactError if nothing is whole."""
        before = trainer.step
        if self._load(trainer) is None:
            raise CorruptArtifactError(
                "the checkpoint to go back to is gone",
                where=str(self._run.checkpoints_dir),
                mend="run again: training begins anew, with the samples skipped that the ledger names",
            )
        self._data.follow(
            StepOrder(
                self._data.order.order.streams, seed=self._data.order.order.seed, segments=self._ledger.step_segments()
            )
        )
        dropped = self._ranks.on_first(lambda: self._cut(trainer.step))
        self._run.event("rewound", step=before, to=trainer.step, undone=dropped[:SHOWN_STEPS])

    def _load(self, trainer: Trainer) -> LoadedCheckpoint | None:
        loaded = self._store.newest_good(self._leads_on)
        if loaded is None:
            return None
        if not self._ledger.contains(str(loaded.state["ledger"])):
            raise CorruptArtifactError(
                f"checkpoint {loaded.ref.name} belongs to another history than the run's ledger",
                where=str(self._run.ledger_path),
                mend="restore the ledger the checkpoint was made with, or delete the run folder and train anew",
            )
        tensors = targets_for(loaded.ref.path, trainer.module.parameters)
        read_tensors(loaded.ref.path, tensors)
        trainer.load_state(tensors, loaded.state)
        self._store.forget(lambda ref: not self._leads_on(ref))
        return loaded

    def _leads_on(self, ref: CheckpointRef) -> bool:
        """Not one that a rewind went back behind. One that cannot be read, or is of another history, is looked at: it
        is an error, which should be seen."""
        try:
            head = str(ref.manifest().get("ledger"))
        except CorruptArtifactError:
            return True
        return not self._ledger.contains(head) or self._ledger.leads_on_from(ref.step, head)

    def _cut(self, step: int) -> list[dict[str, Any]]:
        """Drop what the record has after a step; step, loss and gradient norm of its lines."""
        dropped = [
            {key: row.get(key) for key in ("step", "loss", "grad_norm")}
            for row in self._run.metrics()
            if row.get("step", 0) > step
        ]
        cut_after(self._run.samples_path, step)
        cut_after(self._run.metrics_path, step)
        return dropped

    def _tell_of_other_machine(self) -> None:
        facts = {key: value for key, value in self._facts().items() if key != "parallel"}  # `layout` says it in words
        starts = [event for event in self._run.events() if event["event"] in ("started", "resumed")]
        before = {key: starts[-2].get(key) for key in facts} if len(starts) > 1 else facts
        changed = [f"{key} {before[key]} before, {facts[key]} now" for key in facts if before[key] != facts[key]]
        if changed:
            self._reporter.info(f"not bitwise what it would have been: {', '.join(changed)}")
