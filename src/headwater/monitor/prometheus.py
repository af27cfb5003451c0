"""The live view of a run: a Prometheus endpoint fed from the same records as `metrics.jsonl`, and from its events.

In: records (dictionaries by metric key); `run.json` and `events.jsonl` of the run's folder, read when asked. Out:
`http://HOST:PORT/metrics`; while it is served, `endpoints.json` in the run's folder and a target file for Prometheus.

    sink = PrometheusSink(PrometheusConfig(enabled=True), run_dir, run_id="r1", warn=print); sink.write({"loss": 2.0})
"""

from __future__ import annotations

import math
import threading
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwater import __version__
from headwater.core.errors import DiskSpaceError
from headwater.core.files import atomic_write
from headwater.core.jsonl import parse_json, pretty_json
from headwater.monitor.alerts_rules import DETECTORS
from headwater.monitor.config import PrometheusConfig
from headwater.monitor.endpoints import MetricsServer, publish_target, withdraw_target
from headwater.monitor.live_metrics import RUN_METRICS
from headwater.monitor.registry import METRICS, Metric

if TYPE_CHECKING:
    from prometheus_client import core

EVENTS = (
    "started", "resumed", "checkpoint", "interrupted", "warning", "alert", "recovery", "rewound", "out_of_memory",
    "stopped", "finished",
)  # fmt: skip
"""Events shown as 0 before the first of them, so that the first one is an increase."""

MOST_SERIES = 200
"""Of one metric at most so many series are shown, the first that came; one more label value costs every scrape."""

LONGEST_LABEL = 200
READ_WITHIN_SECONDS, LAST_SCRAPE_SECONDS = 60.0, 20.0
"""A run that broke off waits for one more scrape if there was one lately: Prometheus usually comes every 15 seconds."""

SENDING_SECONDS = 0.2
"""From figures that are collected to an answer that is sent."""

TARGETS = "prometheus-targets"
"""The folder of target files, beside the runs."""

_OWN = {metric.key: metric for metric in RUN_METRICS}


class PrometheusSink:
    """Serves the latest value of every declared metric until `close`."""

    name = "prometheus"

    def __init__(
        self,
        config: PrometheusConfig,
        run_dir: Path,
        run_id: str,
        warn: Callable[[str], None],
        failures: Mapping[str, int] | None = None,
    ) -> None:
        """`failures`: how often each sink has failed, read at each scrape. UserError if nothing can be served there."""
        self._collector = _RunCollector(run_dir, run_id, failures if failures is not None else {})
        self._endpoints = run_dir / "endpoints.json"
        self._server = MetricsServer([self._collector], config.host, config.port, where="monitor.prometheus", warn=warn)
        self.port, self.url = self._server.port, self._server.url
        self._target: Path | None = None
        folder = Path(config.targets).expanduser() if config.targets else run_dir.absolute().parent / TARGETS
        try:
            atomic_write(self._endpoints, pretty_json({"metrics": self.url}))
            # A run has one writer, wherever it goes on; another's in a folder of that path began at another time.
            known_by = f"{run_dir.absolute()} {_record(run_dir).get('created', '')}"
            self._target = publish_target(folder, "run", run_id, self._server.target, known_by=known_by)
        except (OSError, DiskSpaceError) as error:
            warn(f"metrics are served at {self.url}, but nothing could be written that says so: {error}")

    def write(self, record: Mapping[str, Any]) -> None:
        """Show a record; missing and null values leave the earlier figure."""
        self._collector.update(record)

    def close(self, *, failed: bool = False) -> None:
        """`failed`: the run broke off. Where Prometheus reads it, it may do so once more, so that the alert says why;
        the target stays, so that the run is seen as down, until the next start on this machine."""
        self._endpoints.unlink(missing_ok=True)  # first what others read: the process may be told to hurry
        if failed:
            self._collector.wait_for_scrape()
        elif self._target is not None:
            withdraw_target(self._target)
        self._server.close()


class _RunCollector:
    """What a scrape gets: the latest values, and what the run's folder says."""

    def __init__(self, run_dir: Path, run_id: str, failures: Mapping[str, int]) -> None:
        self._run_dir, self._run = run_dir, run_id
        self._failures = failures
        self._events = _Events(run_dir / "events.jsonl")
        self._lock = threading.Lock()
        self._scraped = threading.Condition()
        self._begun = self._finished = 0
        self._last_scrape = -math.inf
        self._values: dict[str, Any] = {}
        self._histograms = {key: _Histogram(one.buckets) for key, one in METRICS.items() if one.kind == "histogram"}

    def update(self, record: Mapping[str, Any]) -> None:
        with self._lock:
            self._values.update((key, value) for key, value in record.items() if value is not None)
            for key, histogram in self._histograms.items():
                value = _number(record.get(key))
                if value is not None and math.isfinite(value):  # NaN in a sum would stay for good
                    histogram.add(value)

    def collect(self) -> Iterator[core.Metric]:
        with self._scraped:
            self._begun += 1
            number = self._begun
        with self._lock:
            values = dict(self._values)
            histograms = {key: (one.cumulative(), one.sum) for key, one in self._histograms.items() if one.count}
        own = {**self._facts(), **self._events.read(), "sink_failures": dict(self._failures)}
        own["step_time"] = values.get("time")
        for key, metric in METRICS.items():
            if metric.prometheus and key in histograms:
                yield self._histogram(metric, *histograms[key])
            elif metric.prometheus and key in values:
                yield from family(metric, values[key], run=self._run)
        for key, metric in _OWN.items():
            if own.get(key) is not None:
                yield from family(metric, own[key], run=self._run)
        with self._scraped:
            self._finished, self._last_scrape = max(self._finished, number), time.monotonic()
            self._scraped.notify_all()

    def wait_for_scrape(self) -> None:
        """Until a scrape that begins now is over, at most `LAST_SCRAPE_SECONDS`; not at all where nobody has been
        reading."""
        with self._scraped:
            before = self._begun
            read = time.monotonic() - self._last_scrape < READ_WITHIN_SECONDS
            again = read and self._scraped.wait_for(lambda: self._finished > before, LAST_SCRAPE_SECONDS)
        if again:
            time.sleep(SENDING_SECONDS)

    def _histogram(self, metric: Metric, buckets: list[tuple[str, float]], total: float) -> core.Metric:
        from prometheus_client.core import HistogramMetricFamily

        made = HistogramMetricFamily(metric.prometheus, help_text(metric), labels=("run",))
        made.add_metric((label(self._run),), buckets, total)
        return made

    def _facts(self) -> dict[str, Any]:
        """From `run.json`; nothing while it is not there."""
        record = _record(self._run_dir)
        if not record:
            return {}
        info = {str(record.get("dataset", "")): {str(record.get("created", "")): {__version__: 1}}}
        return {"run_info": info, "steps_planned": record.get("steps")}


def _record(run_dir: Path) -> dict[str, Any]:
    """`run.json`; {} where it is missing or cannot be read."""
    try:
        record = parse_json((run_dir / "run.json").read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) else {}


def family(metric: Metric, value: Any, **constant: str) -> Iterator[core.Metric]:
    """A gauge or counter with its series. `value`: a number, or mappings nested once for each of the metric's labels;
    what is no number is left out. `constant` labels come first."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    made = kind(metric.prometheus, help_text(metric), labels=(*constant, *metric.labels))
    before = tuple(label(one) for one in constant.values())
    series: dict[tuple[str, ...], float] = {}
    for names, number in _flat(value, len(metric.labels)):
        if len(series) < MOST_SERIES:
            series.setdefault((*before, *names), number)
    for names, number in series.items():
        made.add_metric(names, number)
    if series:
        yield made


def help_text(metric: Metric) -> str:
    return f"{metric.help} ({metric.unit})"


def label(text: str) -> str:
    """A label's value: what is not UTF-8 replaced, which would break the whole answer, and no longer than it should
    be. Quotes, backslashes and ends of lines are escaped where it is written."""
    return text.encode("utf-8", "replace").decode()[:LONGEST_LABEL]


def _flat(value: Any, depth: int) -> Iterator[tuple[tuple[str, ...], float]]:
    if depth and isinstance(value, Mapping):
        for name, inner in value.items():
            for names, number in _flat(inner, depth - 1):
                yield (label(str(name)), *names), number
    elif not depth and (found := _number(value)) is not None:
        yield (), found


def _number(value: Any) -> float | None:
    """A figure as a float, NaN and infinities too; None for anything else."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


class _Histogram:
    """Counts of values at or below each bound."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.sum = 0.0
        self.count = 0

    def add(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self.sum += value
        self.count += 1

    def cumulative(self) -> list[tuple[str, float]]:
        made, total = [], 0
        for bound, count in zip((*map(str, self._bounds), "+Inf"), self._counts, strict=True):
            total += count
            made.append((bound, float(total)))
        return made


class _Events:
    """Counts of `events.jsonl` over all processes of the run; each scrape reads only what has been added.

    The first scrape gets the counts from before this process: what happened since then would have no earlier value to
    be an increase of, and no rule would ever see it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._begin()
        self._first: dict[str, Any] | None = None
        self._first = {key: counts for key, counts in self.read().items() if key != "checkpoint_time"}

    def _begin(self) -> None:
        self._offset = 0
        self._kinds = Counter(dict.fromkeys(EVENTS, 0))
        self._alerts = Counter(dict.fromkeys(DETECTORS, 0))
        self._checkpoint: float | None = None

    def read(self) -> dict[str, Any]:
        with self._lock:
            with suppress(OSError):  # not there yet, or not readable now: what is known stays
                self._read_on()
            found = {"events": dict(self._kinds), "alerts": dict(self._alerts), "checkpoint_time": self._checkpoint}
            first, self._first = self._first or {}, None
            return found | first

    def _read_on(self) -> None:
        with open(self._path, "rb") as file:
            if file.seek(0, 2) < self._offset:  # another file than before
                self._begin()
            file.seek(self._offset)
            for line in file:
                if not line.endswith(b"\n"):
                    return  # still being written
                self._offset += len(line)
                self._count(line)

    def _count(self, line: bytes) -> None:
        try:
            event = parse_json(line)
            kind = str(event["event"])
        except (ValueError, LookupError, TypeError, RecursionError):
            return
        self._kinds[kind] += 1
        if kind == "alert":
            self._alerts[str(event.get("detector", ""))] += 1
        elif kind == "checkpoint":
            self._checkpoint = _number(event.get("time")) or self._checkpoint
