"""The one thread that runs the model.

Requests wait in a queue. Those that find room (`max_concurrent` completions at a time) start together as one batch of
the engine; batches that started at different times take turns, a token each, so a long answer does not hold up a
short one. Joining a running batch (continuous batching) is not done here.

    worker = Worker(engine, metrics, max_concurrent=16, max_waiting=64); worker.start()
    worker.submit(job)                 # raises ApiError 429 when too many wait
    worker.stop()
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field

from headwater.engine import Engine, Piece
from headwater.serve.errors import shutting_down, too_many
from headwater.serve.jobs import Finished, Job, PromptScores
from headwater.serve.metrics import ServerMetrics
from headwater.serve.prompt_scores import prompt_scores

log = logging.getLogger("headwater.serve")


@dataclass
class _Batch:
    """Jobs that started together. `owners`: for each prompt of the engine's call its job and number there."""

    jobs: list[Job]
    owners: list[tuple[Job, int]]
    pieces: Iterator[Piece]
    open: dict[tuple[int, int], float]
    """(prompt, sample) of completions that go on, and when each had its last piece."""
    seen: set[int] = field(default_factory=set)
    """Jobs, by id, that have had their first piece."""


class _Dropped:
    """Numbers of an engine call's prompts whose job was cancelled; answers from the jobs as they are now."""

    def __init__(self, owners: list[tuple[Job, int]]) -> None:
        self._owners = owners

    def __contains__(self, prompt: object) -> bool:
        return isinstance(prompt, int) and self._owners[prompt][0].cancelled


class Worker:
    """Owns the engine. All public methods may be called from any thread."""

    def __init__(self, engine: Engine, metrics: ServerMetrics, *, max_concurrent: int, max_waiting: int) -> None:
        self._engine, self._metrics = engine, metrics
        self._max_concurrent, self._max_waiting = max_concurrent, max_waiting
        self._waiting: deque[Job] = deque()
        self._batches: list[_Batch] = []
        self._running_rows = 0
        self._changed = threading.Condition()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="headwater-model", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive() and not self._stopping

    def submit(self, job: Job) -> None:
        """Queue a job. Raises ApiError 429 if too many wait, 503 while stopping."""
        with self._changed:
            if self._stopping:
                raise shutting_down()
            ahead = self._running_rows + sum(waiting.rows for waiting in self._waiting)
            if ahead + job.rows > self._max_concurrent and ahead and len(self._waiting) >= self._max_waiting:
                raise too_many(len(self._waiting))
            self._waiting.append(job)
            self._metrics.waiting.set(len(self._waiting))
            self._changed.notify()

    def stop(self) -> None:
        """Drop everything and end the thread."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._stopping and not self._waiting and not self._batches:
                    self._changed.wait()
                if self._stopping:
                    break
                admitted = self._admit()
                self._show()
            if admitted:
                self._start(admitted)
            for batch in list(self._batches):
                self._turn(batch)
        for job in [*self._waiting, *(job for batch in self._batches for job in batch.jobs)]:
            job.emit(Finished(error=shutting_down()))
        for batch in self._batches:
            _close(batch.pieces)

    def _admit(self) -> list[Job]:
        """Jobs from the front of the queue that find room; cancelled ones leave it. An idle worker takes any job."""
        running = sum(len(batch.open) for batch in self._batches)
        admitted: list[Job] = []
        while self._waiting:
            job = self._waiting[0]
            if not job.cancelled:
                if running and running + job.rows > self._max_concurrent:
                    break
                running += job.rows
                admitted.append(job)
            self._waiting.popleft()
        self._running_rows = running
        return admitted

    def _start(self, jobs: list[Job]) -> None:
        now = time.monotonic()
        for job in jobs:
            job.started = now
            self._metrics.queue_time.observe(now - job.arrived)
            self._metrics.prompt_tokens.inc(job.prompt_tokens)
            self._metrics.request_prompt_tokens.observe(job.prompt_tokens)
        try:
            for job in jobs:
                if job.score_top is not None and not job.cancelled:
                    job.emit(PromptScores(prompt_scores(self._engine.model, job.prompts, job.score_top)))
                if job.params is None:
                    job.emit(Finished())
            generating = [job for job in jobs if job.params is not None and not job.cancelled]
            if not generating:
                return
            owners = [(job, number) for job in generating for number in range(len(job.prompts))]
            params = [job.params for job, _ in owners if job.params is not None]
            pieces = self._engine.stream(
                [job.prompts[number] for job, number in owners], params, dropped=_Dropped(owners)
            )
            now = time.monotonic()
            rows = {(prompt, sample): now for prompt, given in enumerate(params) for sample in range(given.n)}
            self._batches.append(_Batch(generating, owners, pieces, rows))
        except Exception as error:
            self._fail(jobs, error)

    def _turn(self, batch: _Batch) -> None:
        """As many pieces as the batch has open completions: about one token each."""
        batch.open = {key: last for key, last in batch.open.items() if not batch.owners[key[0]][0].cancelled}
        try:
            for _ in range(len(batch.open)):
                piece = next(batch.pieces, None)
                if piece is None:
                    break
                self._deliver(batch, piece)
        except Exception as error:
            self._fail(batch.jobs, error)
            batch.open.clear()
        if not batch.open:
            _close(batch.pieces)
            with self._changed:
                self._batches.remove(batch)
                self._running_rows = sum(len(other.open) for other in self._batches)
            self._show()

    def _deliver(self, batch: _Batch, piece: Piece) -> None:
        job, number = batch.owners[piece.prompt]
        key, now, count = (piece.prompt, piece.sample), time.monotonic(), len(piece.token_ids)
        if key not in batch.open:
            return
        job.generated_tokens += count
        self._metrics.generation_tokens.inc(count)
        if id(job) not in batch.seen:
            batch.seen.add(id(job))
            self._metrics.time_to_first_token.observe(now - job.arrived)
        elif count:
            for _ in range(count):
                self._metrics.inter_token_latency.observe((now - batch.open[key]) / count)
        batch.open[key] = now
        job.emit(Piece(number, piece.sample, piece.text, piece.token_ids, piece.logprobs, piece.finish))
        if piece.finish is not None:
            del batch.open[key]
            if not any(batch.owners[prompt][0] is job for prompt, _ in batch.open):
                job.emit(Finished())

    def _fail(self, jobs: list[Job], error: Exception) -> None:
        log.exception("a request failed", exc_info=error)
        for job in jobs:
            job.emit(Finished(error=error))

    def _show(self) -> None:
        self._metrics.waiting.set(len(self._waiting))
        self._metrics.running.set(sum(len(batch.jobs) for batch in self._batches))


def _close(pieces: Iterator[Piece]) -> None:
    """End a generator at once, which frees its cache."""
    if isinstance(pieces, Generator):
        pieces.close()
