"""What a run says while it works: decisions, warnings, progress bars. All on stderr; stdout is for results.

A stage receives a `Reporter` and never prints. Bars appear only on a terminal, and go when their work is done; without
a terminal work that takes long prints a plain line now and then.

    with reporter.progress("pack", total=len(shards), unit="shards") as bar:
        for shard in shards: ...; bar.advance(1)
    reporter.decide("vocabulary 4,096", why="the corpus has 12 MB; larger pieces would be seen too rarely")
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


class Bar(Protocol):
    """Handle of one progress bar."""

    def advance(self, amount: float = 1.0) -> None: ...

    def describe(self, text: str) -> None:
        """Replace the text on the right (for example the current loss)."""


class Reporter:
    """Speaks to the person on stderr. `quiet` keeps warnings and errors only."""

    def __init__(self, console: Console | None = None, *, quiet: bool = False) -> None:
        self.console = console or Console(file=sys.stderr, highlight=False, soft_wrap=True, emoji=False)
        self.quiet = quiet

    def stage(self, name: str, note: str = "") -> None:
        """Announce a stage."""
        if not self.quiet:
            self.console.print(f"[bold cyan]{name}[/]{'  ' + escape(note) if note else ''}")

    def info(self, message: str) -> None:
        if not self.quiet:
            self.console.print(f"  {message}", markup=False)

    def decide(self, what: str, why: str = "") -> None:
        """State a decision and its reason."""
        self.info(f"{what}  ({why})" if why else what)

    def warn(self, message: str) -> None:
        self.console.print(f"  warning: {message}", style="yellow", markup=False)

    @contextmanager
    def progress(self, description: str, total: float | None = None, unit: str = "") -> Iterator[Bar]:
        """A progress bar on a terminal; elsewhere a line every 20 seconds."""
        if self.quiet or not self.console.is_terminal:
            yield _LineBar(self, description, total, unit)
            return
        columns = (
            TextColumn("  {task.description}"),
            BarColumn(),
            TextColumn(
                "{task.completed:,.0f}/{task.total:,.0f} {task.fields[unit]}"
                if total
                else "{task.completed:,.0f} {task.fields[unit]}"
            ),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
        )
        with Progress(*columns, console=self.console, transient=True) as progress:
            task = progress.add_task(description, total=total, unit=unit, note="")
            yield _RichBar(progress, task)


class _RichBar:
    def __init__(self, progress: Progress, task: int) -> None:
        self._progress = progress
        self._task = task

    def advance(self, amount: float = 1.0) -> None:
        self._progress.advance(self._task, amount)  # type: ignore[arg-type]

    def describe(self, text: str) -> None:
        self._progress.update(self._task, note=text)  # type: ignore[arg-type]


class _LineBar:
    """Without a terminal: a line every 20 seconds, so logs show life but stay short."""

    EVERY_SECONDS = 20.0

    def __init__(self, reporter: Reporter, description: str, total: float | None, unit: str) -> None:
        self._reporter, self._description, self._total, self._unit = reporter, description, total, unit
        self._done = 0.0
        self._note = ""
        self._next = time.monotonic() + self.EVERY_SECONDS

    def advance(self, amount: float = 1.0) -> None:
        self._done += amount
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + self.EVERY_SECONDS
            of = f"/{self._total:,.0f}" if self._total else ""
            self._reporter.info(f"{self._description} {self._done:,.0f}{of} {self._unit} {self._note}".rstrip())

    def describe(self, text: str) -> None:
        self._note = text


SILENT = Reporter(quiet=True)
"""For library calls where nobody watches; warnings still appear."""
