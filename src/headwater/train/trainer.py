"""The loop: steps, data and callbacks. What a step computes is the train module's business.

In: a plan, a train module, batches by step, callbacks. Out: a run folder that grows until the last step.

    Trainer(plan=plan, module=module, batches=source, run=run, ledger=ledger, callbacks=[...], reporter=SILENT).fit()

A signal (SIGINT, SIGTERM, SIGUSR1) on any rank lets the running step end on all, saves a checkpoint and raises
`Interrupted`; a second SIGINT stops at once.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Any, Protocol

import torch

from headwater.core.errors import HeadwaterError
from headwater.core.progress import Reporter
from headwater.monitor.failures import Failures
from headwater.parallel.agreement import Ranks
from headwater.parallel.watchdog import beat
from headwater.train.batch import Batch
from headwater.train.callbacks import Callback, Rewind
from headwater.train.ledger import RunLedger
from headwater.train.outcome import Reading
from headwater.train.phases import RunPlan
from headwater.train.rng import set_shared_rng_state, shared_rng_state
from headwater.train.run_folder import RunFolder
from headwater.train.train_module import TrainModule

RNG = "rng."


STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
"""SIGUSR1 is what batch systems send some time before a job's end."""


class RanksApartError(HeadwaterError):
    """Ranks that should do the same step do different ones."""


class Interrupted(KeyboardInterrupt):
    """The run was asked to stop, has saved its state, and goes on from it when run again."""

    def __init__(self, signal_name: str, step: int) -> None:
        super().__init__(f"{signal_name} after step {step}")
        self.signal_name = signal_name
        self.step = step


class BatchSource(Protocol):
    """Where batches come from; each depends on nothing but its step."""

    def batches(self, first_step: int, last_step: int) -> Iterator[Batch]:
        """The batches of steps first_step..last_step, in order."""


class Trainer:
    """One run in progress. Public attributes are for callbacks to read.

    `ranks`: this process among those of the run; only `ranks.first` writes files. `step`: steps done. `tokens`: tokens
    read. `record`: figures of the step in progress, for the metrics callback. `details`: those that are too many for
    its line (of every parameter, head, rank), by metric key, for whoever looks at all of them. `spent`: seconds that
    callbacks made training wait since the last line of the record, by metric key. `pending`: figures of a step that may
    have no line of its own, for the next line, by metric key. `failures`: what could not be written of all this.
    `restore` puts back, with
    `load_state`, the newest state on the ledger's way, after a rewind has been written into it.
    """

    def __init__(
        self,
        *,
        plan: RunPlan,
        module: TrainModule,
        batches: BatchSource,
        run: RunFolder,
        ledger: RunLedger,
        callbacks: Sequence[Callback],
        reporter: Reporter,
        ranks: Ranks | None = None,
        restore: Callable[[Trainer], None] | None = None,
    ) -> None:
        names = [callback.name for callback in callbacks]
        if "" in names or len(set(names)) != len(names):
            raise ValueError(f"every callback needs a name of its own: {names}")
        self.plan = plan
        self.module = module
        self.run = run
        self.ledger = ledger
        self.callbacks = list(callbacks)
        self.reporter = reporter
        self.ranks = ranks or Ranks()
        self.step = 0
        self.tokens = 0
        self.record: dict[str, Any] = {}
        self.details: dict[str, Any] = {}
        self.spent: dict[str, float] = {}
        self.pending: dict[str, Any] = {}
        self.failures = Failures(reporter.warn)
        self._batches = batches
        self._restore = restore
        self._stop_signal: signal.Signals | None = None

    @property
    def steps(self) -> int:
        return self.plan.steps

    def fit(self) -> None:
        """Train from `step` to the end of the plan. Raises Interrupted on a signal. A callback that raises Rewind, on
        all ranks, having written it into the ledger, sends the run back to where `restore` puts it."""
        with ExitStack() as stack:
            for callback in self.callbacks:
                stack.callback(callback.close, self)
            stack.enter_context(self._signals())
            for callback in self.callbacks:
                callback.on_start(self)
            while self.step < self.steps:
                try:
                    with self._reading() as batches:
                        self._steps(batches)
                except Rewind:
                    self._go_back()
            for callback in self.callbacks:
                callback.on_end(self)

    def _steps(self, batches: Iterator[Batch]) -> None:
        """Steps until the last one, an error or a rewind."""
        while self.step < self.steps:
            try:
                self._step(batches)
            except Rewind:
                raise
            except Exception as error:
                for callback in self.callbacks:
                    callback.on_error(self, error)
                raise
            stop = self._agree_to_stop()
            if stop is not None and self.step < self.steps:
                for callback in self.callbacks:
                    callback.on_stop(self)
                self.run.event("interrupted", signal=stop.name, step=self.step)
                raise Interrupted(stop.name, self.step)

    @contextmanager
    def _reading(self) -> Iterator[Iterator[Batch]]:
        """Batches from the next step on; the thread that reads ahead ends with the block."""
        batches = self._batches.batches(self.step + 1, self.steps)
        try:
            yield batches
        finally:
            if isinstance(batches, Generator):
                batches.close()

    def _go_back(self) -> None:
        """To the state that the ledger leads to now."""
        beat(self.step, "rewind")
        if self._restore is None:
            raise ValueError("a trainer without `restore` cannot go back")
        self._restore(self)
        for callback in self.callbacks:
            callback.on_rewind(self)

    def _agree_to_stop(self) -> signal.Signals | None:
        """The signal that any rank was sent, for all ranks after the same step."""
        if self.ranks.size == 1:
            return self._stop_signal
        number, last, first = self.ranks.most([int(self._stop_signal or 0), self.step, -self.step])
        if last != -first:
            steps = self.ranks.gather(self.step)
            raise RanksApartError(
                f"ranks are at different steps: {', '.join(f'rank {r} at {s:,}' for r, s in enumerate(steps[:16]))}",
                where=f"step {self.step}",
                mend="all ranks must be given the same recipe, dataset and callbacks",
            )
        if not number:
            return None
        self.reporter.warn(f"{signal.Signals(number).name} after step {self.step}: saving and stopping on all ranks")
        return signal.Signals(number)

    def _step(self, batches: Iterator[Batch]) -> None:
        step = self.step + 1
        started = time.perf_counter()
        beat(step, "data")
        for callback in self.callbacks:
            callback.before_step(self, step)
        batch = next(batches)
        waited = time.perf_counter() - started
        beat(step, "forward and backward")
        factor = self.plan.lr_factor(step) * self.ledger.lr_factor(step)
        outcome = self.module.train_step(step, batch, lr_factor=factor, gate=self._gate)
        self.step = step
        self.tokens += outcome.tokens
        self.details = {}
        self.record = {
            "step": step,
            "tokens": self.tokens,
            "data_wait_seconds": waited,
            "step_seconds": time.perf_counter() - started,
        }
        if batch.cache_hit_ratio is not None:
            self.record["cache_hit_ratio"] = batch.cache_hit_ratio
        for callback in self.callbacks:
            beat(step, callback.name)
            callback.after_step(self, outcome)

    def batch(self, step: int) -> Batch:
        """This rank's rows of a step, read once more."""
        (batch,) = self._batches.batches(step, step)
        return batch

    def _gate(self, reading: Reading) -> bool:
        """Whether the step's update is made: every callback is asked, as each keeps a state, and the ledger decides."""
        admitted = [callback.before_update(self, reading) for callback in self.callbacks]
        return all(admitted) and not self.ledger.held(reading.step)

    # State: everything that decides the future.

    def state(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """(tensors, JSON state) of the run after `step`."""
        plain_rng, rng_tensors = shared_rng_state(self.ranks)
        tensors = self.module.state_tensors() | {RNG + name: tensor for name, tensor in rng_tensors.items()}
        state = {
            "step": self.step,
            "tokens": self.tokens,
            "ledger": self.ledger.head,
            "rng": plain_rng,
            "model": self.module.model_record,
            "callbacks": {callback.name: callback.state_dict() for callback in self.callbacks},
        }
        return tensors, state

    def load_state(self, tensors: dict[str, torch.Tensor], state: dict[str, Any]) -> None:
        """Put back what `state` gave. Callbacks that were not there when it was saved start afresh."""
        self.step, self.tokens = int(state["step"]), int(state["tokens"])
        self.module.load_state_tensors({k: v for k, v in tensors.items() if not k.startswith(RNG)})
        for callback in self.callbacks:
            if callback.name in state["callbacks"]:
                callback.load_state_dict(state["callbacks"][callback.name])
        random = {k.removeprefix(RNG): v for k, v in tensors.items() if k.startswith(RNG)}
        set_shared_rng_state(state["rng"], random, self.ranks.rank)

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Turn signals into a stop after the running step. Only the main thread can have handlers."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def ask_to_stop(number: int, frame: FrameType | None) -> None:
            if self._stop_signal is not None and number == signal.SIGINT:
                raise KeyboardInterrupt
            self._stop_signal = signal.Signals(number)
            if self.ranks.size == 1:  # with more it is said once they have agreed, by rank 0
                self.reporter.warn(
                    f"{self._stop_signal.name}: finishing step {self.step + 1}, then saving and stopping"
                )

        before = {number: signal.signal(number, ask_to_stop) for number in STOP_SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
