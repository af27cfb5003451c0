"""The observer of a sampled step: norms and moves of parameters, activity of heads, as one sample.

In: a train module's step. Out: `sample`, `{metric: {name: value}}` by `TENSOR_METRICS`, the same on every rank; of a
step that was skipped before its update the heads alone.

    observer = SampleObserver(module, ranks, which=("gradients", "updates", "heads")); observer.turn = 3
    module.observer = observer; module.train_step(step, batch, lr_factor=1.0); observer.sample
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

import torch

from headwater.parallel.agreement import Ranks
from headwater.parallel.memory import first_line, is_out_of_memory
from headwater.train.batch import Batch
from headwater.train.collectors.heads import HeadFigures
from headwater.train.collectors.tensors import TensorFigures
from headwater.train.observing import StepObserver
from headwater.train.train_module import TrainModule

CPU = torch.device("cpu")


class SampleObserver(StepObserver):
    """See the module. All ranks observe the same steps."""

    def __init__(self, module: TrainModule, ranks: Ranks, which: Collection[str]) -> None:
        self._tensors: TensorFigures | None = None
        self._heads: HeadFigures | None = None
        if "gradients" in which or "updates" in which:
            self._tensors = TensorFigures(module.parameters, module.mesh, ranks, updates="updates" in which)
        if "heads" in which:
            self._heads = HeadFigures(module.model_config, module.mesh, module.context)
        self.sample: dict[str, dict[str, float]] = {}
        self.no_room: Callable[[str], None] = lambda reason: None
        """Called when there was no memory to look at heads, which are left out from then on."""
        self.turn = 0
        """Which parameters are copied, where not all can be."""
        self.whole_seconds = 0.0
        """All the time the last step's sample took."""

    def before_step(self, module: TrainModule, batch: Batch) -> None:
        started = time.perf_counter()
        self.sample, self.seconds = {}, 0.0
        if self._heads is not None and (reason := self._look_at(self._heads, module, batch)):
            self._heads = None
            if module.device.type == "cuda":
                torch.cuda.empty_cache()
            self.no_room(reason)
        self.whole_seconds = time.perf_counter() - started

    def _look_at(self, heads: HeadFigures, module: TrainModule, batch: Batch) -> str:
        """Sample the heads; why there was no memory for it, "" where there was."""
        try:
            with module.evaluation(averaged=False), heads.watching(module.stages):
                with torch.compiler.set_stance("force_eager"):  # compiled blocks would not see who looks at them
                    module.evaluate(batch.part(0, 1, CPU))
            self.sample = heads.sample()
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            return first_line(error)
        return ""

    def before_update(self, module: TrainModule) -> None:
        if self._tensors is not None:
            started = time.perf_counter()
            self._tensors.before_update(module.parameters, self.turn)
            self._spent(started)

    def after_update(self, module: TrainModule) -> None:
        if self._tensors is not None:
            started = time.perf_counter()
            self.sample = self._tensors.after_update(module.parameters) | self.sample
            self._spent(started)

    def _spent(self, started: float) -> None:
        spent = time.perf_counter() - started
        self.seconds += spent
        self.whole_seconds += spent
