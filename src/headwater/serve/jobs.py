"""A request on its way through the worker, and what the worker tells its connection.

The connection's side lives in an event loop, the worker's in a thread. `emit` and `cancel` may be called from either.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from headwater.engine import Piece, SamplingParams
from headwater.serve.prompt_scores import Scored


@dataclass(frozen=True, slots=True)
class PromptScores:
    """Log-probabilities of every prompt's tokens, in the order of the prompts."""

    prompts: list[list[Scored]]


@dataclass(frozen=True, slots=True)
class Finished:
    """Nothing follows. `error` is set if the request failed, `cancelled` if nobody waits for it."""

    error: BaseException | None = None
    cancelled: bool = False


Event = Piece | PromptScores | Finished


class Job:
    """One request: prompts as token ids, each completed `params.n` times.

    `params` None generates nothing. `score_top` asks for the prompts' log-probabilities with so many alternatives.
    """

    def __init__(
        self, prompts: list[list[int]], params: SamplingParams | None, *, score_top: int | None = None
    ) -> None:
        self.prompts, self.params, self.score_top = prompts, params, score_top
        self.arrived = time.monotonic()
        self.started: float | None = None
        self.cancelled = False
        self.generated_tokens = 0
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[Event] = asyncio.Queue()

    @property
    def rows(self) -> int:
        """Completions generated together."""
        return len(self.prompts) * (self.params.n if self.params is not None else 1)

    @property
    def prompt_tokens(self) -> int:
        return sum(map(len, self.prompts))

    def emit(self, event: Event) -> None:
        """Hand an event to the connection. One that is gone, with its loop, needs none."""
        try:
            self._loop.call_soon_threadsafe(self._events.put_nowait, event)
        except RuntimeError:
            self.cancelled = True

    def cancel(self) -> None:
        """Nobody waits for the answer any more: the worker drops it at its next step."""
        if not self.cancelled:
            self.cancelled = True
            self.emit(Finished(cancelled=True))

    async def next_event(self) -> Event:
        return await self._events.get()
