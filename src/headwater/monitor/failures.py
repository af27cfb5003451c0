"""What cannot be written of a run's figures ends no run: it is warned of once a place, and counted.

In: places (the record, a server, texts, files of tensors) and what went wrong there. Out: warnings, and the counts that
`llm_sink_failures_total` shows. The next line is tried again. What training stands on (the ledger, checkpoints,
`run.json`) is no such place: a run that cannot write those ends.

    failures = Failures(warn=print)
    with failures.kept("samples.jsonl"): log.append(line)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from headwater.core.errors import DiskSpaceError


class Failures:
    """See the module. `counts` has every place that was used, by name."""

    def __init__(self, warn: Callable[[str], None]) -> None:
        self.counts: dict[str, int] = {}
        self._warn = warn

    def expect(self, place: str) -> None:
        """A place that will be written to: it is counted from here on."""
        self.counts.setdefault(place, 0)

    def add(self, place: str, error: Exception) -> None:
        before = self.counts.get(place, 0)
        self.counts[place] = before + 1
        if not before:
            said = str(error) or type(error).__name__
            self._warn(f"{place} cannot take what this run tells: {said}. Training goes on; more of this is counted")

    @contextmanager
    def kept(self, place: str) -> Iterator[None]:
        """Write to files in the block; a full disk, or one that is gone, is counted."""
        self.expect(place)
        try:
            yield
        except (OSError, DiskSpaceError) as error:
            self.add(place, error)
