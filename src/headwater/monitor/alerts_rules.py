"""What Prometheus raises alerts for: a rule for each detector, and for what only an observer from outside can see.

In: nothing. Out: `DETECTORS` (the one list of detectors by the name in `events.jsonl`), `RULES`, and `rule_groups()` in
Prometheus' form. Names of metrics are looked up in the registry, so a rule cannot ask for one that is not there.

    rule_groups()["groups"][0]["rules"][0]["alert"]     # "LossSpike"
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from headwater.monitor.alerts_words import CHINESE
from headwater.monitor.live_metrics import MACHINE_METRICS, RUN_METRICS
from headwater.monitor.registry import METRICS

Severity = Literal["warning", "critical"]

TRAINING_JOB, MACHINE_JOB = "training_metrics", "gpu_metrics"
A_GPU = "a GPU"
FINDING_MINUTES = 10
"""An alert of a detector stays up so long after its last finding."""

_OWN = {metric.key: metric.prometheus for metric in (*RUN_METRICS, *MACHINE_METRICS)}
STEP, STEP_SECONDS = METRICS["step"].prometheus, METRICS["step_seconds"].prometheus


@dataclass(frozen=True, slots=True)
class Rule:
    """Fires while `value` meets `condition`, where `only` holds, for as long as `hold`. `needs`: without it `value` has
    none; "" where every run and machine has one."""

    alert: str
    severity: Severity
    value: str
    condition: str
    summary: str
    only: str = ""
    hold: str = "0m"
    needs: str = ""

    @property
    def expression(self) -> str:
        return f"{self.value} {self.condition}" + (f" and {self.only}" if self.only else "")


DETECTORS: dict[str, tuple[str, Severity, str]] = {
    "non_finite": ("NonFinite", "critical", "NaN or infinity in the loss or the gradients"),
    "loss_spike": ("LossSpike", "critical", "the loss jumped far above its level"),
    "moving_average": ("LossAboveAverage", "critical", "the loss is far above its moving average"),
    "gradient_explosion": ("GradientExplosion", "critical", "the gradient norm exploded"),
    "gradient_vanishing": ("GradientVanishing", "warning", "the gradient norm stays near zero"),
    "no_convergence": ("NoConvergence", "warning", "the loss is not below where it began"),
    "divergence": ("SlowDivergence", "warning", "the loss has been rising for long"),
    "plateau": ("Plateau", "warning", "the loss no longer falls"),
    "oscillation": ("Oscillation", "warning", "the loss swings ever wider"),
    "dead_heads": ("DeadHeads", "warning", "attention heads do nothing"),
    "tensor_gradients": ("TensorGradients", "warning", "gradients of single parameters explode or vanish"),
    "no_updates": ("NoUpdates", "warning", "most parameters no longer change"),
    "slow_data": ("SlowData", "warning", "steps wait for data"),
    "slow_steps": ("SlowSteps", "warning", "steps take much longer than usual"),
    "slow_rank": ("SlowRank", "warning", "one rank holds up the others"),
    "memory_creep": ("MemoryCreep", "warning", "memory grows from step to step"),
    "memory_near_limit": ("MemoryNearLimit", "warning", "memory is nearly full"),
    "old_checkpoint": ("OldCheckpoint", "warning", "the newest checkpoint is older than it should be"),
    "changed_weights": ("ChangedWeights", "critical", "weights changed between an update and the next step"),
    "hang": ("Hang", "critical", "a step does not end"),
    "disk_near_full": ("RunDiskNearlyFull", "critical", "the disk of the run is nearly full"),
    "disk_full": ("RunDiskFull", "critical", "the disk of the run is full"),
    "overflow": ("Overflow", "warning", "step after step overflows fp16"),
    "out_of_memory": ("OutOfMemory", "critical", "the device had no memory left for a step"),
}
"""Every detector by its name in `events.jsonl`: the alert's name, its severity, and what it means."""


def _of_detectors() -> list[Rule]:
    found = _OWN["alerts"]
    return [
        Rule(alert, severity, f'increase({found}{{detector="{name}"}}[{FINDING_MINUTES}m])', "> 0", summary)
        for name, (alert, severity, summary) in DETECTORS.items()
    ]


def _from_outside() -> list[Rule]:
    remaining = f"(last_over_time({_OWN['steps_planned']}[1h]) - last_over_time({STEP}[1h]))"
    pace = f"(increase({STEP_SECONDS}_sum[1h]) / increase({STEP_SECONDS}_count[1h]))"
    size, free = _OWN["filesystem_size"], _OWN["filesystem_free"]
    throughput = METRICS["throughput"].prometheus
    return [
        Rule("TrainingDown", "critical", f"{remaining} * {pace}", "> 60",
             "a run that had more than a minute to go no longer answers",
             only=f'on (job, instance) up{{job="{TRAINING_JOB}"}} == 0', hold="1m"),
        # By scrapes, not by the times in the record: the run's clock may be set, or be another than Prometheus'.
        Rule("NoProgress", "critical", f"changes({STEP}[10m])", "== 0",
             "no step has been recorded for ten minutes", only=f"{STEP} offset 10m", hold="1m"),
        Rule("Recovery", "warning", f'increase({_OWN["events"]}{{event="recovery"}}[{FINDING_MINUTES}m])', "> 0",
             "the run mended itself; the ledger says how"),
        Rule("CheckpointStale", "warning", f"time() - {_OWN['checkpoint_time']}", "> 3600",
             "the newest checkpoint is more than an hour old", hold="5m"),
        Rule("SinkFails", "warning", f"increase({_OWN['sink_failures']}[10m])", "> 0",
             "figures of the run are lost, as a sink cannot write"),
        Rule("ThroughputDrop", "warning", f"{throughput} / quantile_over_time(0.5, {throughput}[1h])", "< 0.8",
             "throughput is more than a fifth below its median of the last hour", hold="10m"),
        Rule("ExporterDown", "warning", f'up{{job="{MACHINE_JOB}"}}', "== 0",
             "the machine's exporter no longer answers", hold="2m"),
        Rule("DiskNearlyFull", "critical", f"{free} / {size}", "< 0.05", "less than 5 % of a file system is free",
             hold="2m"),
        Rule("MachineMemoryNearlyFull", "warning", f"{_OWN['memory_available']} / {_OWN['memory_total']}", "< 0.05",
             "less than 5 % of the machine's memory is available", hold="2m"),
        Rule("GpuError", "critical", _OWN["gpu_xid"], "> 0", "the driver reports an XID error", needs=A_GPU),
        Rule("GpuMemoryErrors", "critical", f"delta({_OWN['gpu_ecc']}[10m])", "> 0",
             "uncorrectable errors in GPU memory", needs=A_GPU),
        Rule("GpuHot", "warning", _OWN["gpu_temperature"], "> 88", "a GPU is hotter than 88 Celsius", hold="5m",
             needs=A_GPU),
    ]  # fmt: skip


RULES: tuple[Rule, ...] = (*_of_detectors(), *_from_outside())


def rule_groups() -> dict[str, Any]:
    """The rules file of Prometheus."""
    return {
        "groups": [
            {"name": "detectors", "rules": [_in_form(rule) for rule in _of_detectors()]},
            {"name": "outside", "rules": [_in_form(rule) for rule in _from_outside()]},
        ]
    }


def _in_form(rule: Rule) -> dict[str, Any]:
    where = "{{ with $labels.run }}%s {{ . }}{{ else }}{{ $labels.instance }}{{ end }}"
    return {
        "alert": rule.alert,
        "expr": rule.expression,
        **({"for": rule.hold} if rule.hold != "0m" else {}),
        "labels": {"severity": rule.severity},
        "annotations": {
            "summary": f"{where % 'run'}: {rule.summary}",
            "summary_zh": f"{where % '训练'}：{CHINESE[rule.alert]}",
            "description": "`headwater doctor RUN` says more.",
        },
    }
