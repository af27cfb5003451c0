"""A finished run beside what the planner says of it on a measured machine.

In: a run's folder, of one process or many, and a cluster (a machine file of `headwater plan calibrate`). Out: `Beside`:
predicted and measured step time, tokens a second and peak memory, with their ratios.

    beside = compare_run(Path("runs/first-0123"), parse_cluster("machine.yaml")); beside.step_ratio

Measured are the steps after the first tenth, without validation and checkpoints: their median, and the quarter of them
that was disturbed least, which is what a machine that others use too can be held to.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headwater.core.errors import InputError, UserError
from headwater.model import ModelConfig
from headwater.parallel.config import ParallelConfig
from headwater.plan import ClusterSpec, Plan, TrainSpec, make_plan
from headwater.plan.quantities import four_digits
from headwater.simulate.layouts import layout_of, model_of
from headwater.train.config import TrainConfig
from headwater.train.run_folder import RunFolder

DAMAGED = "the record is damaged: put back a copy of it, or compare another run"


@dataclass(frozen=True)
class Beside:
    """Seconds and bytes. `quiet_seconds`: a quarter of the steps took at most this."""

    run: str
    steps: int
    predicted_seconds: float
    median_seconds: float
    quiet_seconds: float
    tokens: int
    predicted_bytes: float
    measured_bytes: float
    notes: list[str]

    @property
    def step_ratio(self) -> float:
        """Predicted by measured, median."""
        return self.predicted_seconds / self.median_seconds

    @property
    def quiet_ratio(self) -> float:
        """Predicted by measured, of the least disturbed quarter."""
        return self.predicted_seconds / self.quiet_seconds

    @property
    def memory_ratio(self) -> float:
        """Predicted by measured peak."""
        return self.predicted_bytes / self.measured_bytes

    def values(self) -> dict[str, Any]:
        """Plain values, for `--json`."""
        return {
            "run": self.run,
            "steps": self.steps,
            "predicted": {"step_seconds": self.predicted_seconds, "memory_bytes": self.predicted_bytes},
            "measured": {
                "step_seconds": self.median_seconds,
                "quiet_step_seconds": self.quiet_seconds,
                "memory_bytes": self.measured_bytes,
            },
            "ratio": {"step": self.step_ratio, "quiet_step": self.quiet_ratio, "memory": self.memory_ratio},
            "notes": self.notes,
        }

    def text(self) -> str:
        """What a person reads."""
        mib = 2.0**20
        rows = (
            ("seconds a step, median", self.predicted_seconds, self.median_seconds, self.step_ratio),
            ("seconds a step, least disturbed", self.predicted_seconds, self.quiet_seconds, self.quiet_ratio),
            ("tokens a second", self.tokens / self.predicted_seconds, self.tokens / self.median_seconds,
             self.median_seconds / self.predicted_seconds),
            ("peak memory, MiB", self.predicted_bytes / mib, self.measured_bytes / mib, self.memory_ratio),
        )  # fmt: skip
        lines = [f"{self.run}, {self.steps:,} steps", f"  {'':<34}{'predicted':>12}{'measured':>12}{'ratio':>8}"]
        lines += [f"  {name:<34}{four_digits(a):>12}{four_digits(b):>12}{ratio:>8.2f}" for name, a, b, ratio in rows]
        return "\n".join([*lines, *(f"  {note}" for note in self.notes)])


@dataclass(frozen=True)
class Planned:
    """A run, and the plan of its own layout and micro-batch on a cluster."""

    run: RunFolder
    plan: Plan
    lines: list[dict[str, Any]]
    notes: list[str]

    @property
    def measured_bytes(self) -> float:
        """The most memory that a rank's record has; on a CPU its resident size, which keeps what is freed."""
        return float(max(line["mem_allocated"] for line in self.lines))


def plan_of_run(folder: Path, cluster: ClusterSpec) -> Planned:
    """What the planner says of a run. UserError for a run without enough steps, InputError for one whose record does
    not say in which layout and micro-batch it was trained."""
    run = RunFolder.open(folder)
    lines = [line for line in run.metrics() if line.get("step_seconds")]
    started = [event for event in run.events() if event.get("event") == "started"]
    if len(lines) < 5:
        raise UserError(f"{len(lines)} steps are recorded", where=str(folder), mend="compare a run of 5 steps or more")
    if not started:
        raise InputError("no start is recorded", where=str(run.path / "events.jsonl"), mend=DAMAGED)
    record = run.record
    _held(record, ("model", "train"), run.path / "run.json")
    _held(started[-1], ("precision",), run.path / "events.jsonl")
    for line in lines:
        _held(line, ("step", "tokens", "mem_allocated"), run.metrics_path)
    model, train = ModelConfig.model_validate(record["model"]), TrainConfig.model_validate(record["train"])
    work = TrainSpec(
        tokens=float(max(1, lines[-1]["tokens"])),
        seq=train.seq_len,
        global_batch=train.global_batch,
        precision=started[-1]["precision"],
        optimizer=train.optimizer.name,
    )
    notes = []
    threads = started[-1].get("threads")
    if threads is not None and f"with {threads} threads" not in cluster.notes:
        notes.append(f"the run had {threads} threads: {cluster.notes.split(' in ')[0]}")
    if "parallel" not in started[-1] or "micro_batch" not in started[-1]:
        raise InputError("the record has no layout", where=str(folder), mend="compare a run of this version")
    if cluster.processor is None and started[-1].get("device") == "cpu":
        raise InputError(
            "it does not say what a process takes",
            where="--cluster",
            mend="use headwater plan calibrate on this machine",
        )
    parallel = ParallelConfig.model_validate(started[-1]["parallel"])
    if parallel.ranks > cluster.gpus_per_node:
        notes.append(f"{parallel.ranks} ranks shared {cluster.gpus_per_node} processors: the plan gives each its own")
        cluster = cluster.with_nodes(-(-parallel.ranks // cluster.gpus_per_node))
    layout = layout_of(parallel, train, model.num_hidden_layers, started[-1]["micro_batch"])
    return Planned(run, make_plan(model_of(model, run.run_id), work, cluster, layout), lines, notes)


def _held(values: Mapping[str, Any], names: Sequence[str], path: Path) -> None:
    for name in names:
        if values.get(name) is None:
            raise InputError(f"{name} is missing", where=str(path), mend=DAMAGED)


def compare_run(folder: Path, cluster: ClusterSpec) -> Beside:
    """The run beside the plan. Errors as `plan_of_run`."""
    planned = plan_of_run(folder, cluster)
    lines, held = planned.lines, planned.plan.data["memory"]
    steady = [line for line in lines if line["step"] > lines[-1]["step"] / 10]
    seconds = [line["step_seconds"] for line in steady if not line.get("checkpoint_seconds")] or [
        line["step_seconds"] for line in steady
    ]
    return Beside(
        run=planned.run.run_id,
        steps=int(lines[-1]["step"]),
        predicted_seconds=planned.plan.step_seconds,
        median_seconds=statistics.median(seconds),
        quiet_seconds=sorted(seconds)[len(seconds) // 4],
        tokens=int(lines[-1]["tokens"] / lines[-1]["step"]),
        predicted_bytes=float(held["device_bytes" if cluster.processor else "allocated_bytes"]),
        measured_bytes=planned.measured_bytes,
        notes=planned.notes,
    )
