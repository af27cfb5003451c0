"""What happens around the steps: the hooks of a run, each with state of its own.

The trainer trains; everything else (metrics, validation, checkpoints, samples, what the pipeline injects) is a
callback. Hooks are called in the order of the list; `after_step` of an earlier callback may put figures into
`trainer.record`, which the metrics callback writes.

    class Stopwatch(Callback):
        name = "stopwatch"
        def after_step(self, trainer, outcome): ...

State is plain JSON, kept in every checkpoint under the callback's name and given back before the first step after a
resume. Nothing in a callback may change weights, order or learning rate: that is what the run ledger is for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headwater.train.outcome import Reading, StepOutcome
    from headwater.train.trainer import Trainer


class Rewind(Exception):
    """Raised by a hook, on all ranks alike, once the run ledger says that the run goes back."""


class Callback:
    """Base of all callbacks; every hook does nothing unless overridden."""

    name = ""
    """Key of the state in checkpoints; one of a name in a run."""

    def on_start(self, trainer: Trainer) -> None:
        """Before the first step of this process, after a checkpoint has been loaded."""

    def before_step(self, trainer: Trainer, step: int) -> None:
        """Before the batch of `step` is taken."""

    def before_update(self, trainer: Trainer, reading: Reading) -> bool:
        """When the step's loss and gradient are known and nothing has been changed with them. False holds the update
        back; whoever says so has written it into the run ledger. All ranks say the same."""
        return True

    def after_step(self, trainer: Trainer, outcome: StepOutcome) -> None:
        """After `trainer.step` has been counted up."""

    def on_rewind(self, trainer: Trainer) -> None:
        """After an earlier state has been put back in the middle of the run: `trainer.step` is the last step done."""

    def on_end(self, trainer: Trainer) -> None:
        """After the last step of the run; not after an interruption or error."""

    def on_stop(self, trainer: Trainer) -> None:
        """When a signal asked to stop, after the step that was running."""

    def on_error(self, trainer: Trainer, error: Exception) -> None:
        """When the step after `trainer.step` failed; the error goes on after it. For this rank alone: nothing in it may
        wait for the others, who may not have failed."""

    def close(self, trainer: Trainer) -> None:
        """Always, whatever happened: give back files, threads, ports."""

    def state_dict(self) -> dict[str, Any]:
        """State as JSON values."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Put back what `state_dict` gave."""


def due(step: int, every: int, steps: int) -> bool:
    """Whether something is due after `step`: at multiples of `every` (0: never on the way) and after the last."""
    return step == steps or (every > 0 and step % every == 0)
