"""All that a page shows of one run, read from its folder and kept up to date as the run writes.

In: a run's folder, in whatever state. Out: `summary()` (a line of a list) and `view()` (everything), as plain JSON
values. What is wrong with the files stands in `notes`, in words; nothing of it raises.

    reader = RunReader(Path("runs/4f2a")); reader.refresh(); reader.view()["panels"]
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwater.core.jsonl import parse_json
from headwater.core.locks import lock_owner
from headwater.monitor.console import duration
from headwater.monitor.web.columns import Columns
from headwater.monitor.web.events import happenings, number
from headwater.monitor.web.heat import MOST_STEPS, heat_map
from headwater.monitor.web.mixture import mixture
from headwater.monitor.web.panels import panels, rounded, whole
from headwater.monitor.web.tail import JsonlTail
from headwater.monitor.web.times import time_split, training_time

if TYPE_CHECKING:
    from headwater.monitor.tensor_series import TensorSeries

POINTS = 800
KNOTS = 400
SAMPLES_SHOWN = 12
EVENTS_SHOWN = 1000
SILENT_SECONDS, SILENT_STEPS = 60.0, 10.0
RECENT_STEPS = 50
PEEK_BYTES = 1 << 17
LONGEST_TEXT = 200_000


class RunReader:
    """Reads a run's folder again and again; only what was added is read anew. Safe to use from several threads.

    `root`: a file that lies outside of it (through a link) is not read.
    """

    def __init__(self, path: Path, root: Path | None = None) -> None:
        self.path = Path(path)
        self._root = (root or self.path).resolve()
        self._lock = threading.Lock()
        self._metrics = JsonlTail(self._file("metrics.jsonl"))
        self._logs = {name: JsonlTail(self._file(f"{name}.jsonl")) for name in ("events", "ledger", "samples")}
        self._rows: dict[str, list[dict[str, Any]]] = {name: [] for name in self._logs}
        self._columns = Columns()
        self._version = 0
        self._seen: object = None
        self._grew: float | None = None  # by a clock that nobody sets, when the record grew while it was watched
        self._usual: float | None = None  # `_pace` as it was read: a glance asks while another thread is reading
        self._peeked: tuple[object, dict[str, Any]] | None = None
        self._texts: dict[str, str] = {}
        self._tensors: TensorSeries | None = None

    def _file(self, name: str) -> Path:
        """The file of the run, or a place where none is if it leads out of the folder that may be read."""
        path = self.path / name
        return path if path.resolve().is_relative_to(self._root) else Path("/nonexistent") / name

    @property
    def version(self) -> int:
        """Changes when anything is read; 0 before the first reading."""
        return self._version

    def peek(self) -> dict[str, Any]:
        """`summary()` from the end of the record alone, for a run that has not been read yet: at once, however long."""
        stamps = self._stamps()
        if self._peeked is None or self._peeked[0] != stamps:
            short = RunReader(self.path, self._root)
            short._metrics = JsonlTail(self._file("metrics.jsonl"), last_bytes=PEEK_BYTES)
            short.refresh()
            self._peeked = (stamps, short.summary())
        return self._peeked[1]

    def refresh(self) -> int:
        """Read what is new; returns a number that changes when anything did."""
        with self._lock:
            seen = self._stamps()
            if seen == self._seen:
                return self._version
            restarted, batches = self._metrics.read()
            if restarted:
                self._columns = Columns()
            known = self._columns.steps.size
            for rows in batches:
                self._columns.add(rows)
            if self._version and self._columns.steps.size != known:
                self._grew = time.monotonic()
            for name, tail in self._logs.items():
                restarted, batches = tail.read()
                if restarted:
                    self._rows[name] = []
                for rows in batches:
                    self._rows[name] += rows
            del self._rows["samples"][:-SAMPLES_SHOWN]
            self._texts = {name: self._text(name) for name in ("run.json", "final.json", "stopped.json", "recipe.yaml")}
            self._seen, self._usual = seen, self._pace()
            self._version += 1
            return self._version

    def _stamps(self) -> object:
        """What tells without reading that something was written, or that the writer came or went."""
        names = ("metrics.jsonl", "events.jsonl", "ledger.jsonl", "samples.jsonl", "run.json", "final.json", "tensors")
        stamps: list[object] = [lock_owner(self.path) is not None, self._silent()]
        for name in names:
            try:
                stat = self._file(name).stat()
                stamps.append((stat.st_mtime_ns, stat.st_size, stat.st_ino))
            except OSError:
                stamps.append(None)
        return tuple(stamps)

    def _text(self, name: str) -> str:
        try:
            with open(self._file(name), encoding="utf-8", errors="replace") as file:
                return file.read(LONGEST_TEXT)
        except OSError:
            return ""

    def _json(self, name: str) -> dict[str, Any]:
        try:
            value = parse_json(self._texts.get(name, ""))
        except (ValueError, RecursionError):
            return {}
        return value if isinstance(value, dict) else {}

    def _age(self) -> float | None:
        """Seconds since the record was written to last, by the file's own time (clocks in the lines may be wrong), and
        no more than since it was seen to grow: the clock may have been set since."""
        try:
            age = max(0.0, time.time() - self._file("metrics.jsonl").stat().st_mtime)
        except OSError:
            return None
        return age if self._grew is None else min(age, time.monotonic() - self._grew)

    def _silent(self) -> bool:
        age = self._age()
        return age is not None and age > max(SILENT_SECONDS, SILENT_STEPS * (self._usual or 0.0))

    def _pace(self) -> float | None:
        """Seconds a step of late, everything between steps included."""
        import numpy

        steps, clock = self._columns.series(("time", ""))
        steps, clock = steps[-RECENT_STEPS:], clock[-RECENT_STEPS:]
        if len(steps) < 2:
            return self._columns.last(("step_seconds", ""))
        paces = numpy.diff(clock) / numpy.maximum(numpy.diff(steps), 1)
        paces = paces[paces > 0]
        return (
            float(paces.mean() if paces.max() < 20 * numpy.median(paces) else numpy.median(paces))
            if len(paces)
            else None
        )

    def status(self) -> dict[str, Any]:
        """{state, words, step, steps, age, eta}: finished, running, silent, stopped or empty."""
        record = self._json("run.json")
        steps = number(record.get("steps"))
        done = self._columns.steps
        step = int(done[-1]) if len(done) else 0
        age, pace = self._age(), self._pace()
        left = (steps - step) * pace if steps and pace else None
        if self._json("final.json"):
            state, words = "finished", "finished"
        elif lock_owner(self.path) is not None:
            silent = self._silent()
            state, words = ("silent", f"no step for {duration(age or 0)}") if silent else ("running", "running")
        elif len(done) or record:
            state, words = "stopped", "stopped itself" if self._json("stopped.json") else "not running"
        else:
            state, words = "empty", "nothing recorded yet"
        running = state in ("running", "silent")
        return {"state": state, "words": words, "step": step, "steps": steps, "age": age,
                "eta": left if running else None}  # fmt: skip

    def summary(self) -> dict[str, Any]:
        """A line of the list of runs."""
        with self._lock:
            validation = self._columns.series(("val_loss", "all"))
            levels = [event.get("severity") for event in self._rows["events"] if event.get("event") == "alert"]
            return {
                "name": self.path.name,
                "status": self.status(),
                "loss": self._columns.last(("loss_sma", "")) or self._columns.last(("loss", "")),
                "validation": float(validation[1][-1]) if len(validation[1]) else None,
                "throughput": self._columns.last(("throughput", "")),
                "tokens": self._columns.last(("tokens", "")),
                "alerts": len(levels),
                "critical": levels.count("critical"),
                "created": str(self._json("run.json").get("created", "")),
            }

    def figures(self) -> dict[str, float]:
        """The newest value of every figure, labels as `metric/label`."""
        with self._lock:
            found = {f"{key}/{label}" if label else key: self._columns.last((key, label))
                     for key, label in self._columns.names()}  # fmt: skip
        return {name: value for name, value in found.items() if value is not None}

    def curve(self, key: str, label: str = "") -> list[float]:
        """All values of a figure, by step."""
        with self._lock:
            return [float(value) for value in self._columns.series((key, label))[1]]

    def happenings(self) -> list[dict[str, Any]]:
        """What happened to the run, oldest first, each with the step it belongs to."""
        with self._lock:
            return self._happenings()

    def _happenings(self) -> list[dict[str, Any]]:
        import numpy

        found = happenings(self._rows["events"], self._rows["ledger"])
        steps, clock = self._columns.series(("time", ""))
        order = numpy.argsort(clock, kind="stable")
        for item in found:
            if item["step"] is None and item["time"] is not None and len(steps):
                place = numpy.searchsorted(clock[order], item["time"], side="right")
                item["step"] = int(steps[order[place - 1]]) if place else 0
        return sorted(found, key=lambda item: (item["step"] is None, item["step"]))

    def view(self, points: int = POINTS, span: tuple[float, float] | None = None) -> dict[str, Any]:
        """Everything a page shows of the run. `points`: at most so many of a line; `span`: only steps from..to."""
        with self._lock:
            record = self._json("run.json")
            events = self._happenings()
            passed, back = training_time(self._columns)
            return {
                "name": self.path.name,
                "version": self._version,
                "status": self.status(),
                "axis": self._axis(passed),
                "panels": panels(self._columns, points, span),
                "not_finite": self._columns.not_finite,
                "events": events[-EVENTS_SHOWN:],
                "time": time_split(self._columns, self._rows["events"]),
                "mixture": mixture(self._columns, self._rows["ledger"]),
                "facts": self._facts(record),
                "samples": self._samples(),
                "recipe": self._texts.get("recipe.yaml", ""),
                "notes": self._notes(back, len(events)),
            }

    def heat(self, metric: str | None, most_steps: int = MOST_STEPS) -> dict[str, Any]:
        """The layer x step map of a figure of `tensors/` (see `heat_map`)."""
        from headwater.monitor.tensor_series import TensorSeries

        with self._lock:
            if self._tensors is None:
                self._tensors = TensorSeries(self._file("tensors").parent)
            return heat_map(self._tensors, self._columns, metric, most_steps)

    def _axis(self, passed: Any) -> dict[str, list[float]]:
        """Steps, and the tokens and seconds of training at them: what a page draws curves over."""
        import numpy

        steps = self._columns.steps
        if not len(steps):
            return {"s": [], "tokens": [], "time": []}
        kept = numpy.unique(numpy.linspace(0, len(steps) - 1, min(KNOTS, len(steps))).astype(int))
        tokens = self._columns.dense(("tokens", ""))
        there = ~numpy.isnan(tokens)
        filled = numpy.interp(steps, steps[there], tokens[there]) if there.any() else numpy.empty(0)
        return {"s": whole(steps[kept]), "tokens": rounded(filled[kept]) if len(filled) else [],
                "time": rounded(passed[kept]) if passed.any() else []}  # fmt: skip

    def _facts(self, record: dict[str, Any]) -> list[list[str]]:
        stated = record.get("facts")
        facts = [[str(key), str(value)] for key, value in (stated.items() if isinstance(stated, dict) else ())]
        starts = [row for row in self._rows["events"] if row.get("event") in ("started", "resumed")]
        if starts:
            kept = {key: value for key, value in starts[-1].items() if key in ("device", "precision", "layout")}
            facts += [[key, str(value)] for key, value in kept.items()]
        facts += [[f"{key} fingerprint", str(record[key])] for key in ("dataset", "tokenizer") if record.get(key)]
        facts += [[key, str(record[key])] for key in ("seed", "created") if record.get(key) is not None]
        saved = [row for row in self._rows["events"] if row.get("event") == "checkpoint"]
        if saved:
            size = number(saved[-1].get("bytes"))
            of = f", {size / 1e6:,.1f} MB each" if size else ""
            facts.append(["checkpoints", f"{len(saved):,} written{of}, the last at step {saved[-1].get('step')}"])
        if final := self._json("final.json").get("checkpoint"):
            facts.append(["final checkpoint", str(final)])
        return facts

    def _samples(self) -> list[dict[str, Any]]:
        """Pieces of text the model wrote, the newest last."""
        return [
            {"step": number(row.get("step")), "prompt": str(row.get("prompt", "")), "text": str(row.get("text", ""))}
            for row in self._rows["samples"]
        ]

    def _notes(self, back: int, events: int) -> list[str]:
        """What is odd about the files, in words."""
        columns, notes = self._columns, []
        if stopped := self._json("stopped.json"):
            notes.append(f"{stopped.get('what', 'the run has stopped')}; {stopped.get('mend', '')}".rstrip("; "))
        for tail in (self._metrics, *self._logs.values()):
            name = tail.path.name
            notes += [tail.problem] if tail.problem else []
            if tail.broken:
                notes.append(f"{name}: {_lines(tail.broken)} not JSON and left out")
            if tail.odd:
                notes.append(f"{name}: {_lines(tail.odd)} no objects and left out")
            if tail.torn and lock_owner(self.path) is None:
                notes.append(f"{name}: the last line is torn ({tail.torn} bytes), as a kill leaves it")
        if columns.without_step:
            notes.append(f"metrics.jsonl: {_lines(columns.without_step)} without a step and left out")
        if columns.repeated:
            notes.append(
                f"metrics.jsonl: {columns.repeated:,} lines repeat a step or go back, as when two processes write one "
                "record; the last line of each step is shown"
            )
        if columns.not_numbers:
            notes.append(f"metrics.jsonl: {columns.not_numbers:,} values are no numbers and left out")
        if columns.labels_left_out:
            notes.append("metrics.jsonl: more figures than a page can show; the rest is left out")
        if back:
            times = "once" if back == 1 else f"{back:,} times"
            notes.append(f"the clock went back {times}; that time is not counted")
        for key, steps in sorted(columns.not_finite.items()):
            listed = ", ".join(f"{step:,}" for step in steps[:5]) + (" ..." if len(steps) > 5 else "")
            notes.append(f"{key} is NaN or infinite at step {listed}")
        if events > EVENTS_SHOWN:
            notes.append(f"of {events:,} events the last {EVENTS_SHOWN:,} are shown")
        if self._texts.get("run.json") and not self._json("run.json"):
            notes.append("run.json is damaged: what was trained, and for how long, is not known")
        return notes


def _lines(count: int) -> str:
    return f"{count:,} line{' is' if count == 1 else 's are'}"
