"""What a run does by itself when a step goes wrong: skip it, go back, slow down, and at last stop with a report.

In: what the detectors find in a step's loss and gradient, before its update is made; checkpoints; the run ledger. Out:
entries of the ledger, which trainer and loader honour, now and after any resume, and events. All ranks do the same: a
step is wrong when it is for any of them, and rank 0 decides what is done.

    callbacks = [..., detection, RecoveryCallback(config.recovery, detection, data, store), metrics, checkpoints]

Whose fault it was is asked of the weights as they are, which held steps have not touched: samples of the wrong steps
whose loss lies far above that of the steps before are left out of the repetition, and if none does, all samples of the
wrong steps are. Where the steps before are no better, it is the weights, not the data, and at first none is left out.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from contextlib import suppress

from headwater.core.errors import CorruptArtifactError, HeadwaterError
from headwater.dataset.order import SampleRef
from headwater.parallel.watchdog import beat
from headwater.train.callbacks import Callback, Rewind
from headwater.train.checkpoint import CheckpointStore
from headwater.train.data import RunData
from headwater.train.detection import DetectionCallback
from headwater.train.ledger import NewEntry
from headwater.train.outcome import Reading
from headwater.train.recovery_config import RecoveryConfig
from headwater.train.recovery_plan import (
    Rung,
    Trouble,
    choose_rung,
    held_before,
    onset_of,
    planned_change,
    rewind_entries,
    stand_out,
    times_before,
)
from headwater.train.rng import preserved_rng
from headwater.train.run_folder import CheckpointRef
from headwater.train.trainer import Trainer

STOPPED = "stopped.json"
BEGINS_ANEW = "begins anew, as there is no checkpoint, and comes to the same stop unless something is changed"
REFERENCE_STEPS = 2
"""Steps before the trouble whose samples say what a good one's loss is."""


class RecoveryStoppedError(HeadwaterError):
    """A run that cannot help itself any more; `stopped.json` in its folder says why."""

    exit_code = 3


class RecoveryCallback(Callback):
    """See the module. Comes right after `detection`. Its state is the ledger."""

    name = "recovery"

    def __init__(
        self, config: RecoveryConfig, detection: DetectionCallback, data: RunData, store: CheckpointStore
    ) -> None:
        self._config = config
        self._detection = detection
        self._data = data
        self._store = store
        self._reading: Reading | None = None

    def before_update(self, trainer: Trainer, reading: Reading) -> bool:
        if trainer.ledger.held(reading.step):  # decided by a process before this one
            return False
        own = self._look(trainer, reading)
        if not trainer.ranks.most([int(own is not None)])[0]:
            return True
        seen = [trouble for trouble in trainer.ranks.gather(own) if trouble is not None]
        trouble = Trouble(
            reading.step,
            min(one.onset for one in seen),
            tuple(sorted({name for one in seen for name in one.why})),
        )
        self._reading = reading
        return self._act(trainer, trouble)

    def _look(self, trainer: Trainer, reading: Reading) -> Trouble | None:
        """What is wrong with a step and to be acted upon."""
        wanted = set(self._config.on)
        if planned_change(trainer.plan, reading.step):
            wanted &= {"non_finite", "changed_weights"}
        found = [alert for alert in self._detection.found if alert.detector in wanted]
        names = {alert.detector for alert in found}
        if not reading.finite and "non_finite" in self._config.on:
            names.add("non_finite")
        if not names:
            return None
        onset = min((alert.onset for alert in found), default=reading.step)
        if "changed_weights" in names:  # since the last update, and perhaps before the checkpoint after it
            onset = min(onset, reading.step - 1)
        return Trouble(reading.step, onset, tuple(sorted(names)))

    def _act(self, trainer: Trainer, trouble: Trouble) -> bool:
        """Take the next rung. False: hold the step's update. Raises Rewind and RecoveryStoppedError."""
        ledger, step = trainer.ledger, trouble.step
        rung = choose_rung(self._config, ledger, step, can_skip=not trouble.of_weights)
        if rung == "skip":
            self._record(trainer, "skip", trouble, [self._hold(trouble)])
            return False
        trouble = Trouble(step, onset_of(ledger, trouble), trouble.why)
        target = self._target(trainer, trouble) if rung != "stop" else None
        if target is None and rung != "stop":
            rung = choose_rung(self._config, ledger, step, can_skip=False, can_go_back=False)
        if rung == "stop" or (rung == "lower_lr" and trouble.of_weights):  # a slower run flips as many bits
            raise self._stop(trainer, trouble)
        slower = self._config.lower_lr
        lower_lr = (slower.factor, step + slower.steps) if rung == "lower_lr" else None
        if target is None:
            assert lower_lr is not None
            data = {"factor": lower_lr[0], "until": lower_lr[1], "rung": rung}
            self._record(trainer, rung, trouble, [self._hold(trouble), NewEntry("lr", step + 1, step - 1, data)])
            return False
        beat(step, "recovery")
        samples = self._guilty(trainer, trouble)
        entries = rewind_entries(ledger, trouble, rung=rung, to=target.step, samples=samples, lower_lr=lower_lr)
        self._record(trainer, rung, trouble, entries, samples=len(samples), to=target.step)
        raise Rewind

    def _hold(self, trouble: Trouble) -> NewEntry:
        return NewEntry("hold", trouble.step, trouble.step - 1, trouble.facts)

    def _target(self, trainer: Trainer, trouble: Trouble) -> CheckpointRef | None:
        """The newest checkpoint from before the trouble; one older for each time it was not old enough."""
        refs = self._store.refs()

        def choose() -> CheckpointRef | None:
            good = [ref for ref in refs if ref.step < trouble.onset and on_the_way(trainer, ref)]
            return good[min(times_before(trainer.ledger, trouble.onset), len(good) - 1)] if good else None

        return trainer.ranks.on_first(choose)

    def _guilty(self, trainer: Trainer, trouble: Trouble) -> list[SampleRef]:
        """Samples that are not to be read again."""
        if trouble.of_weights:
            return []
        order = self._data.order
        wrong = [*held_before(trainer.ledger, trouble.step), trouble.step]
        before = range(max(1, wrong[0] - REFERENCE_STEPS), wrong[0])
        suspects = [sample for step in wrong for sample in order.batch(step)]
        losses, reference = self._losses(trainer, wrong), self._losses(trainer, before)
        if reference and not any(map(math.isfinite, reference)) and not times_before(trainer.ledger, trouble.onset):
            return []  # the weights are broken: nothing speaks against the data yet
        out = trainer.ranks.from_first(stand_out(losses, reference))
        return [sample for sample, guilty in zip(suspects, out, strict=True) if guilty] or suspects

    def _losses(self, trainer: Trainer, steps: Sequence[int]) -> list[float]:
        """Losses of the samples of some steps under the weights as they are."""
        found: list[float] = []
        with preserved_rng(), trainer.module.evaluation(averaged=False):
            for step in steps:
                found += trainer.module.sample_losses(trainer.batch(step))
        return found

    def _record(
        self,
        trainer: Trainer,
        rung: Rung,
        trouble: Trouble,
        entries: Sequence[NewEntry],
        *,
        samples: int = 0,
        to: int | None = None,
    ) -> None:
        """Write an action into the ledger, on all ranks, and say it."""
        made = trainer.ranks.on_first(lambda: trainer.ledger.append_group(entries))
        trainer.ledger.follow(made)
        facts = {"action": rung, "step": trouble.step, **trouble.facts, "to": to, "samples": samples}
        if self._reading is not None:  # a step that is undone has no line in the record
            facts |= {"loss": self._reading.loss, "grad_norm": self._reading.grad_norm}
        trainer.run.event("recovery", **facts, entries=[entry.number for entry in made])
        if trainer.ranks.first:
            trainer.reporter.warn(f"step {trouble.step:,}: {describe(rung, trouble, samples, to, self._config)}")

    def _stop(self, trainer: Trainer, trouble: Trouble) -> RecoveryStoppedError:
        """The report, and the error that ends the run."""
        done = [
            {"kind": entry.kind, "step": entry.step, **entry.data}
            for entry in trainer.ledger
            if entry.kind in ("hold", "lr", "rewind")
        ]
        refs = self._store.refs()
        newest = next((ref for ref in refs if ref.step < trouble.onset), None)
        again = "goes on from the newest checkpoint" if refs else BEGINS_ANEW
        folder = shlex.quote(str(trainer.run.path))
        error = RecoveryStoppedError(
            f"{_names(trouble)} again, after {len(done)} entries of recovery in the ledger: the run has stopped",
            where=f"step {trouble.step}",
            mend=f"`headwater doctor {folder} --step {trouble.onset}` tells data from state from hardware; "
            f"{trainer.run.path / STOPPED} has what was tried. Running again {again}: with more patience "
            "(train.recovery), or train anew with a lower train.optimizer.lr",
        )
        report = {
            "step": trouble.step,
            **trouble.facts,
            "what": error.what,
            "mend": error.mend,
            "done": done,
            "checkpoint": newest.name if newest is not None else None,
        }
        trainer.run.write_json(STOPPED, report)
        trainer.run.event("stopped", step=trouble.step, **trouble.facts)
        return error


def on_the_way(trainer: Trainer, ref: CheckpointRef) -> bool:
    """Whether a checkpoint is one of what the run has become (see `RunLedger.leads_on_from`), and can be read."""
    with suppress(CorruptArtifactError):
        return trainer.ledger.leads_on_from(ref.step, str(ref.manifest().get("ledger")))
    return False


def describe(rung: Rung, trouble: Trouble, samples: int, to: int | None, config: RecoveryConfig) -> str:
    """An action for people."""
    if rung == "skip":
        return f"{_names(trouble)}: the step is skipped, nothing has changed"
    back = f"back to step {to:,} and on without {samples:,} samples" if to is not None else "skipped"
    slower = f", at {config.lower_lr.factor:g} x the learning rate for {config.lower_lr.steps:,} steps"
    return f"{_names(trouble)}, since step {trouble.onset:,}: {back}{slower if rung == 'lower_lr' else ''}"


def _names(trouble: Trouble) -> str:
    return " and ".join(name.replace("_", " ") for name in trouble.why)
