"""A step that does not end is said while it does not: by a thread, with the stacks of all threads in a file.

In: the beats of the training loop and how long its steps take. Out: one call of `say` for each time training stands
still for `seconds`, and for ten usual steps; every rank writes its stacks. It ends nothing: a run of several ranks is
ended by `parallel.timeout_seconds`, a single process by whoever reads the warning.

    with HangWatch(run / "logs" / "stacks-00000.txt", seconds=60, say=print): beat(1, "data"); ...
"""

from __future__ import annotations

import faulthandler
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from headwater.parallel.watchdog import last_beat, place_of_frame

USUAL_STEPS = 10.0
LAST_WORDS_SECONDS = 5.0
"""The watch may be writing to a disk that does not answer: the run's end does not wait for that."""


@dataclass(frozen=True, slots=True)
class Hang:
    """`seconds` since the last sign of life, in `phase`; `at`: the innermost line of this project."""

    seconds: float
    phase: str
    at: str
    stacks: Path


class HangWatch:
    """Watches the thread that enters the block. `step` tells it how long one took."""

    def __init__(self, stacks: Path, *, seconds: float, say: Callable[[Hang], None]) -> None:
        self._stacks, self._seconds, self._say = stacks, seconds, say
        self._took: deque[float] = deque(maxlen=64)
        self._stop = threading.Event()
        self._main = threading.get_ident()
        self._thread = threading.Thread(target=self._watch, name="hang-watch", daemon=True)

    def __enter__(self) -> HangWatch:
        self._main = threading.get_ident()
        self._began = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(LAST_WORDS_SECONDS)

    def step(self, seconds: float) -> None:
        """A step has ended that took so long."""
        self._took.append(seconds)

    @property
    def limit(self) -> float:
        """Seconds without a sign of life that are too long."""
        usual = median(tuple(self._took)) if self._took else 0.0
        return max(self._seconds, USUAL_STEPS * usual)

    def _watch(self) -> None:
        said = 0.0
        while not self._stop.wait(min(2.0, self._seconds / 20)):
            beaten, phase = last_beat()
            beaten = max(beaten, self._began)
            silent = time.monotonic() - beaten
            if silent < self.limit or beaten == said:
                continue
            said = beaten
            at = place_of_frame(sys._current_frames().get(self._main))
            with suppress(OSError):  # a full disk must not end the watch
                self._stacks.parent.mkdir(parents=True, exist_ok=True)
                with self._stacks.open("a") as file:
                    file.write(f"{time.strftime('%Y-%m-%dT%H:%M:%S%z')} no progress for {silent:.1f} s, in {phase}\n")
                    file.flush()
                    faulthandler.dump_traceback(file, all_threads=True)
            self._say(Hang(silent, phase, at, self._stacks))
