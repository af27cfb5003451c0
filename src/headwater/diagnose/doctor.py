"""`headwater doctor`: what is wrong with a run, from its record alone.

In: a run's folder, finished, running or dead. Out: findings (symptom, evidence, causes, remedy), notes on the record.
The detectors of training are replayed over `metrics.jsonl`, and what they said at the time is read from `events.jsonl`.

    print(diagnosis_text(diagnose(RunFolder.open("run"))))
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

from headwater.core.jsonl import parse_json, read_jsonl
from headwater.diagnose.reading import Record, read_record
from headwater.diagnose.symptoms import SYMPTOMS, Finding, finding, symptom_of
from headwater.monitor.detectors import Alert, DetectorSet
from headwater.monitor.detectors.base import LARGEST, Severity
from headwater.train.run_folder import RunFolder

BUSY = 0.5
"""A GPU with a kernel running for less than this share of the time is idle much of it."""

REPLAYED = ("loss", "grad_norm", "step_seconds", "data_wait_seconds", "mem_allocated")
"""What the record has of the detectors' figures."""

STOPPED = "stopped.json"
"""What a run leaves behind that could not help itself any more."""

STALL_SECONDS, STALL_STEPS = 60.0, 10.0
"""A running process is stalled after this long, and so many times its usual step, without a step."""
LOOK_AGAIN_SECONDS = 15.0
"""At most so long a record is watched that seems to stand still: a clock that was set, or is another machine's, makes
its last line look old."""


FATAL = ("non_finite", "out_of_memory", "disk_full")
"""Alerts after which a process ends."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """`state` of the run (finished, running, partial), the last recorded `step` of `steps`."""

    run: str
    state: str
    step: int
    steps: int
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]

    @property
    def healthy(self) -> bool:
        return not self.findings

    def to_json(self) -> dict[str, Any]:
        return {
            "run": self.run,
            "state": self.state,
            "step": self.step,
            "steps": self.steps,
            "healthy": self.healthy,
            "findings": [item.to_json() for item in self.findings],
            "notes": list(self.notes),
        }


def diagnose(run: RunFolder, *, now: float | None = None) -> Diagnosis:
    """Look at a run. `now`: seconds since 1970, for what is stalled. Nothing in the folder is changed."""
    record = read_record(run.metrics_path)
    events, notes = _events(run)
    notes = [*record.notes, *notes]
    status, settings = run.status(), _settings(run, record, events)
    alerts = {(alert.detector, alert.step): alert for alert in replay(record.rows, settings)}
    alerts |= {(alert.detector, alert.step): alert for alert in _said(events)}
    step = int(record.rows[-1]["step"]) if record.rows else 0
    ends = _ends(status.state, record.rows, events, step, time.time() if now is None else now)
    if ends and ends[0].detector == "stalled" and _goes_on(run, record.rows):
        notes.append(f"the last line's time is {ends[0].evidence['age']:,.0f} s ago by this clock, and the run goes on")
        ends = []
    ends += _stopped(run)
    notes += _unseen(record.rows, events)
    by_symptom: dict[str, list[Alert]] = {}
    for alert in sorted([*alerts.values(), *_idle(record.rows), *ends], key=lambda alert: alert.step):
        by_symptom.setdefault(symptom_of(alert), []).append(alert)
    if not record.rows:
        notes.append("no step is recorded yet: there is little to say")
    if status.state == "partial" and not ends and events and events[-1].get("event") == "interrupted":
        notes.append("the run was asked to stop, and goes on when the same command is run again")
    order = {name: place for place, name in enumerate(SYMPTOMS)}
    findings = [finding(name, found, settings) for name, found in by_symptom.items()]
    findings.sort(key=lambda item: (item.severity != "critical", order.get(item.symptom, len(order))))
    return Diagnosis(str(run.path), status.state, step, status.steps, tuple(findings), tuple(notes))


def replay(rows: Sequence[Mapping[str, Any]], settings: Mapping[str, Any]) -> list[Alert]:
    """What the detectors with their usual thresholds say to recorded steps."""
    detectors, alerts = DetectorSet(), []
    before: Mapping[str, Any] = {"step": 0, "tokens": 0}
    for row in rows:
        figures = {key: row.get(key) for key in REPLAYED}
        if row.get("clip_factor") == 0:  # a step that fp16's loss scale skipped
            figures["loss"] = figures["grad_norm"] = None
        if _numbers(row.get("tokens"), before.get("tokens")) and row["step"] != before["step"]:
            figures["step_tokens"] = (row["tokens"] - before["tokens"]) / (row["step"] - before["step"])
        figures["uniform_loss"] = settings.get("uniform_loss")
        if settings.get("lr") and _numbers(row.get("lr")):
            figures["lr_share"] = row["lr"] / settings["lr"]
        alerts += detectors.observe(int(row["step"]), figures)
        before = row
    return alerts


def _numbers(*values: Any) -> bool:
    return all(isinstance(value, int | float) and abs(value) < LARGEST for value in values)


def _events(run: RunFolder) -> tuple[list[dict[str, Any]], list[str]]:
    path, broken = run.path / "events.jsonl", 0
    if not path.exists():
        return [], ["events.jsonl is missing: what was said during the run is not known"]

    def count(*_: Any) -> None:
        nonlocal broken
        broken += 1

    events = [event for event in read_jsonl(path, on_broken=count) if isinstance(event, dict)]
    return events, [f"{broken:,} lines of events.jsonl cannot be read and are left out"] if broken else []


def _said(events: Sequence[Mapping[str, Any]]) -> list[Alert]:
    """Alerts of the time; those that lack a part are passed over."""
    alerts = []
    for event in events:
        detector, step, message = event.get("detector"), event.get("step"), event.get("message")
        if event.get("event") != "alert" or not (isinstance(detector, str) and isinstance(message, str)):
            continue
        if isinstance(step, int):
            severity: Severity = "critical" if event.get("severity") == "critical" else "warning"
            evidence = event.get("evidence")
            alerts.append(Alert(detector, severity, step, message, evidence if isinstance(evidence, dict) else {}))
    return alerts


def _idle(rows: Sequence[Mapping[str, Any]]) -> list[Alert]:
    """A GPU that is used little, over the last 200 steps."""
    used = [row["gpu_util"] for row in rows[-200:] if _numbers(row.get("gpu_util"))]
    if len(used) < 20 or median(used) >= BUSY:
        return []
    message = f"kernels run {median(used):.0%} of the time, in the median of the last {len(used)} recorded steps"
    return [Alert("low_gpu_utilisation", "warning", int(rows[-1]["step"]), message, {"gpu_util": median(used)})]


def _ends(
    state: str, rows: Sequence[Mapping[str, Any]], events: Sequence[Mapping[str, Any]], step: int, now: float
) -> list[Alert]:
    """How a run that is not finished stands: stalled, or dead without having been asked to stop."""
    stamps = [item["time"] for item in (*rows[-1:], *events[-1:]) if _numbers(item.get("time"))]
    if not stamps:
        return []
    age = now - max(stamps)
    seconds = [row["step_seconds"] for row in rows[-200:] if _numbers(row.get("step_seconds"))]
    usual = median(seconds) if seconds else 0.0
    if state == "running" and age > max(STALL_SECONDS, STALL_STEPS * usual):
        message = f"no step for {age:,.0f} s, though a process holds the run; steps take {usual:.3g} s"
        return [Alert("stalled", "critical", step, message, {"age": age, "usual": usual})]
    last = str(events[-1].get("event")) if events else ""
    explained = last in ("interrupted", "finished", "stopped") or (events and events[-1].get("detector") in FATAL)
    if state == "partial" and not explained:
        heard = f"the last event is {last}" if last else "no event is recorded"
        since = f"for {age:,.0f} s" if age >= 0 else "since its last line, which a clock ahead of this one's wrote"
        message = f"no process has worked on the run {since}, and none said why; {heard}"
        return [Alert("died", "warning", step, message, {"age": age})]
    return []


def _goes_on(run: RunFolder, rows: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the record grows while one looks, for as long as a few of its lines usually take."""
    seconds = [row["step_seconds"] for row in rows[-200:] if _numbers(row.get("step_seconds"))]
    apart = median(later["step"] - row["step"] for row, later in pairwise(rows[-200:])) if len(rows) > 1 else 1
    size = run.metrics_path.stat().st_size
    end = time.monotonic() + min(LOOK_AGAIN_SECONDS, max(1.0, 3 * apart * median(seconds or [0.0])))
    while time.monotonic() < end:
        time.sleep(0.05)
        if run.metrics_path.stat().st_size != size:
            return True
    return False


def _stopped(run: RunFolder) -> list[Alert]:
    """What a run said that stopped itself, if it has not gone on since."""
    try:
        report = parse_json((run.path / STOPPED).read_bytes())
    except (OSError, ValueError):
        return []
    if not isinstance(report, dict) or run.final is not None or not _numbers(report.get("step")):
        return []
    message = f"{report.get('what') or 'the run stopped itself'}; {report.get('mend') or ''}".rstrip("; ")
    return [Alert("stopped", "critical", int(report["step"]), message, {"done": report.get("done")})]


def _unseen(rows: Sequence[Mapping[str, Any]], events: Sequence[Mapping[str, Any]]) -> list[str]:
    """What nobody measured though the machine has it."""
    on_gpu = any(event.get("device") == "cuda" for event in events)
    if not on_gpu or not rows or any(_numbers(row.get("gpu_util")) for row in rows):
        return []
    return [
        "gpu_util was not measured: NVML's Python package (nvidia-ml-py) is missing, so an idle GPU is not looked for"
    ]


def _settings(run: RunFolder, record: Record, events: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What remedies are reckoned from; the highest rate seen where `run.json` does not say."""
    known = run.record

    def of(*path: str) -> Any:
        value: Any = known
        for key in path:
            value = value.get(key) if isinstance(value, dict) else None
        return value

    rates = [row["lr"] for row in record.rows if _numbers(row.get("lr"))]
    vocabulary = of("model", "vocab_size")
    return {
        "lr": of("train", "optimizer", "lr") or max(rates, default=None),
        "warmup_steps": of("train", "schedule", "warmup_steps"),
        "global_batch": of("train", "global_batch"),
        "uniform_loss": math.log(vocabulary) if _numbers(vocabulary) and vocabulary > 1 else None,
        **{part: of(part) for part in ("model", "train") if isinstance(of(part), dict)},
        "saved": run.newest_checkpoint() is not None or any(event.get("event") == "checkpoint" for event in events),
    }


def diagnosis_text(diagnosis: Diagnosis) -> str:
    """For a terminal."""
    lines = [f"{diagnosis.run}: {diagnosis.state}, step {diagnosis.step:,} of {diagnosis.steps:,}"]
    for item in diagnosis.findings:
        lines += ["", f"{item.title} ({item.severity})"]
        lines += [f"  {text}" for text in item.evidence]
        if item.causes:
            lines.append(f"  likely: {'; '.join(item.causes)}")
        for remedy in item.remedies:
            sets = "".join(f" --set {change}" for change in remedy.sets)
            lines.append(f"  try: {remedy.text}{':' if sets else ''}{sets}")
    if diagnosis.healthy:
        lines.append("nothing wrong is seen in the record")
    lines += [f"note: {note}" for note in diagnosis.notes]
    return "\n".join(lines)
