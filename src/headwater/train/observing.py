"""Where a step can be looked into: before it, between its gradients and its update, and after the update.

In: calls of the train module, on all ranks together. Out: nothing: an observer changes neither weights nor gradients
nor random numbers. One that does nothing stands for none.

    module.observer = MyObserver(); module.train_step(step, batch, lr_factor=1.0); module.observer = StepObserver()
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headwater.train.batch import Batch
    from headwater.train.train_module import TrainModule


class StepObserver:
    """Base of observers; every hook does nothing unless overridden."""

    seconds = 0.0
    """Time spent in `before_update` and `after_update` of the last step, which is not the optimizer's."""

    def before_step(self, module: TrainModule, batch: Batch) -> None:
        """Before anything of the step is computed."""

    def before_update(self, module: TrainModule) -> None:
        """Gradients are complete, unscaled and not clipped yet; not called in a step that is skipped."""

    def after_update(self, module: TrainModule) -> None:
        """The optimizer has changed the weights; gradients, clipped, are still there."""

    def after_step(self, module: TrainModule) -> None:
        """The step is over, whether or not it has changed anything."""
