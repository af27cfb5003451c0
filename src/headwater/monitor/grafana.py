"""Grafana's dashboards, made from the registry: one of runs, one of machines.

In: nothing. Out: `dashboards()`, {file name: dashboard as JSON}. Queries are written with keys of the registry,
`<loss>`, which become Prometheus' names; one that is not declared is an error here, not an empty panel there. A
declared metric that no chart names gets a chart of its own.

    dashboards()["training.json"]["panels"][0]["targets"][0]["expr"]
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from headwater.monitor.alerts_rules import A_GPU
from headwater.monitor.live_metrics import MACHINE_METRICS, RUN_METRICS
from headwater.monitor.registry import METRICS, Metric

SCHEMA_VERSION = 39
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
COLUMNS, HEIGHT, STAT_HEIGHT = 24, 8, 4

UNITS = {
    "seconds": "s", "bytes": "bytes", "tokens": "short", "steps": "short", "tokens/second": "suffix: tok/s",
    "percent": "percent", "MiB": "mbytes", "watts": "watt", "Celsius": "celsius", "bytes/second": "Bps", "1": "none",
    "utilisation": "percentunit", "ratio": "none",
}  # fmt: skip
"""Grafana's names of the registry's units; any other is shown as a suffix. `utilisation` is a ratio from 0 to 1."""

NEEDS = {
    "z_loss": "train.z_loss",
    "mfu": "a device whose peak is in the catalogue",
    "gpu_util": A_GPU,
    "mem_reserved": A_GPU,
    "alloc_retries": A_GPU,
    "straggler_score": "several ranks",
    "cache_hit_ratio": "dataset.cache_dir",
    "val_loss_averaged": "averaged weights",
    "val_bits_per_byte_averaged": "averaged weights",
    "eval": "evaluate.during_training",
    "loss_scale": "precision fp16",
}
"""Metrics that a run on a CPU with default settings does not have, and what brings them."""


@dataclass(frozen=True, slots=True)
class Query:
    """`<key>` stands for a metric's name, `@` for the selector of the dashboard's variable. `needs`: without it the
    query has no value; "" where a healthy run on a CPU has one."""

    expression: str
    legend: str
    needs: str = ""


@dataclass(frozen=True, slots=True)
class Chart:
    """One panel. `unit` as in the registry; `stat` shows the last value alone; `log` a logarithmic axis."""

    title: str
    unit: str
    queries: tuple[Query, ...]
    help: str = ""
    width: int = 8
    stat: bool = False
    log: bool = False


def _last(title: str, unit: str, expression: str, *, needs: str = "") -> Chart:
    return Chart(title, unit, (Query(expression, "{{run}}", needs),), width=4, stat=True)


def _own(metric: Metric, variable: str = "run", *, log: bool = False) -> Chart:
    """The chart of one metric, with the words of the registry."""
    legend = " ".join(f"{{{{{name}}}}}" for name in (variable, *metric.labels[:1]))
    needs = A_GPU if "gpu" in metric.labels else NEEDS.get(metric.key, "")
    unit = "utilisation" if metric.prometheus.endswith("_ratio") or "_PROF_" in metric.prometheus else metric.unit
    expression = f"<{metric.key}>{{@}}"
    if metric.kind == "counter":
        unit, expression = f"{metric.unit}/second", f"rate({expression}[5m])"
    elif metric.kind == "histogram":
        legend += " 95 %"
        expression = f"histogram_quantile(0.95, rate(<{metric.key}>_bucket{{@}}[5m]))"
    return Chart(metric.title, unit, (Query(expression, legend, needs),), metric.help, log=log)


_LEFT = "(<steps_planned>{@} - <step>{@})"
_PACE = "(rate(<step_seconds>_sum{@}[5m]) / rate(<step_seconds>_count{@}[5m]))"

TRAINING: tuple[tuple[str, tuple[Chart, ...]], ...] = (
    ("Now", (
        _last("Step", "steps", "<step>{@}"),
        _last("Loss", "nats/token", "<loss_sma>{@}"),
        _last("Throughput", "tokens/second", "<throughput>{@}"),
        _last("Time left at this pace", "seconds", f"{_LEFT} * {_PACE}"),
        _last("Since the last checkpoint", "seconds", "time() - <checkpoint_time>{@}"),
        _last("Findings in the last hour", "alerts", "sum by (run) (increase(<alerts>{@}[1h]))"),
    )),
    ("Learning", (
        Chart("Loss", "nats/token", (
            Query("<loss>{@}", "{{run}} training"),
            Query("<loss_sma>{@}", "{{run}} training, moving average"),
            Query('<val_loss>{@,domain="all"}', "{{run}} validation"),
        ), METRICS["loss"].help, width=12),
        Chart("Validation loss by domain", "nats/token",
              (Query("<val_loss>{@}", "{{run}} {{domain}}"),), METRICS["val_loss"].help, width=12),
        _own(METRICS["domain_loss"]),
        Chart("Perplexity", "ratio", (Query("<perplexity>{@}", "{{run}}"),), METRICS["perplexity"].help, log=True),
        Chart("Bits per byte", "bits/byte", (
            Query("<bits_per_byte>{@}", "{{run}} training"),
            Query('<val_bits_per_byte>{@,domain="all"}', "{{run}} validation"),
        ), METRICS["bits_per_byte"].help),
        Chart("Learning rate", "1", (Query("<lr>{@}", "{{run}}"),), METRICS["lr"].help),
    )),
    ("Stability", (
        Chart("Gradient norm", "norm", (Query("<grad_norm>{@}", "{{run}}"),), METRICS["grad_norm"].help, log=True),
        Chart("Clipping", "1", (
            Query("<clip_factor>{@}", "{{run}} factor of the step"),
            Query("<clip_rate>{@}", "{{run}} share of steps"),
        ), METRICS["clip_factor"].help),
        Chart("Findings of detectors", "alerts",
              (Query("increase(<alerts>{@}[5m]) > 0", "{{run}} {{detector}}", "a fault"),),
              "What detectors found in the last five minutes; `headwater doctor RUN` says why"),
    )),
    ("Parameters and heads", (
        *(_own(METRICS[key], log=True) for key in ("param_grad_norm", "update_ratio", "param_weight_norm")),
        *(_own(METRICS[key]) for key in ("grad_histogram", "grad_flags", "dead_heads", "head_entropy_ratio",
                                         "head_sink_ratio", "head_max_logit", "head_activity_ratio")),
    )),
    ("Speed", (
        Chart("Throughput", "tokens/second", (
            Query("<throughput>{@}", "{{run}} of the step"),
            Query("rate(<tokens>{@}[5m])", "{{run}} over five minutes, all included"),
        ), METRICS["throughput"].help),
        Chart("Step time", "seconds", (
            Query(_PACE, "{{run}} mean"),
            Query("histogram_quantile(0.5, rate(<step_seconds>_bucket{@}[5m]))", "{{run}} median"),
            Query("histogram_quantile(0.95, rate(<step_seconds>_bucket{@}[5m]))", "{{run}} 95 %"),
        ), METRICS["step_seconds"].help),
        Chart("Parts of a step", "seconds", (
            Query("<data_wait_seconds>{@}", "{{run}} waiting for data"),
            Query("<forward_backward_seconds>{@}", "{{run}} forward and backward"),
            Query("<communication_seconds>{@}", "{{run}} waiting for other ranks"),
            Query("<optimizer_seconds>{@}", "{{run}} optimizer"),
            Query("<monitor_seconds>{@}", "{{run}} sampling"),
            Query("<checkpoint_seconds>{@}", "{{run}} checkpoint"),
            Query("<validation_seconds>{@}", "{{run}} validation"),
        )),
        _own(METRICS["goodput"]),
        _own(METRICS["straggler_score"]),
        Chart("Model FLOPs utilisation", "utilisation", (Query("<mfu>{@}", "{{run}}", NEEDS["mfu"]),),
              METRICS["mfu"].help),
    )),
    ("Memory and data", (
        Chart("Memory", "bytes", (
            Query("<mem_allocated>{@}", "{{run}} allocated"),
            Query("<mem_reserved>{@}", "{{run}} reserved", A_GPU),
        ), METRICS["mem_allocated"].help),
        Chart("Tokens a second by domain", "tokens/second",
              (Query("rate(<domain_tokens>{@}[5m])", "{{run}} {{domain}}"),), METRICS["domain_tokens"].help),
        Chart("Events", "events", (Query("increase(<events>{@}[5m])", "{{run}} {{event}}"),), "Of five minutes"),
        Chart("Lines that a sink could not take", "lines", (Query("<sink_failures>{@}", "{{run}} {{sink}}"),)),
        Chart("Since the last step", "seconds", (Query("time() - <step_time>{@}", "{{run}}"),)),
        Chart("Runs", "1", (Query("<run_info>{@}", "{{run}}: dataset {{dataset}}, begun {{created}}, {{version}}"),)),
    )),
)  # fmt: skip

MACHINES: tuple[tuple[str, tuple[Chart, ...]], ...] = (
    ("CPU and memory", (
        Chart("CPU in use", "utilisation", (Query(
            '1 - sum by (instance) (rate(<cpu_seconds>{@,mode="idle"}[5m])) / '
            "sum by (instance) (rate(<cpu_seconds>{@}[5m]))", "{{instance}}"),)),
        Chart("Load per CPU", "1", (Query("<load>{@} / <cpus>{@}", "{{instance}}"),)),
        Chart("Memory in use", "bytes", (
            Query("<memory_total>{@} - <memory_available>{@}", "{{instance}} in use"),
            Query("<memory_total>{@}", "{{instance}} all"),
            Query("<swap_used>{@}", "{{instance}} swap"),
        )),
    )),
    ("Disks and network", (
        Chart("Disks", "bytes/second", (
            Query("rate(<disk_read>{@}[5m])", "{{instance}} {{device}} read"),
            Query("rate(<disk_written>{@}[5m])", "{{instance}} {{device}} written"),
        )),
        Chart("Free space", "utilisation",
              (Query("<filesystem_free>{@} / <filesystem_size>{@}", "{{instance}} {{mountpoint}}"),)),
        Chart("Network", "bytes/second", (
            Query("rate(<network_received>{@}[5m])", "{{instance}} {{device}} in"),
            Query("rate(<network_sent>{@}[5m])", "{{instance}} {{device}} out"),
        )),
        Chart("Network errors", "packets/second", (Query("rate(<network_errors>{@}[5m])", "{{instance}} {{device}}"),)),
        Chart("Sources that answer", "1", (Query("<source_up>{@}", "{{instance}} {{source}}"),)),
    )),
    ("GPUs", (
        Chart("GPU memory", "MiB", (
            Query("<gpu_memory_used>{@}", "{{instance}} GPU {{gpu}} in use", A_GPU),
            Query("<gpu_memory_used>{@} + <gpu_memory_free>{@}", "{{instance}} GPU {{gpu}} all", A_GPU),
        )),
    )),
)  # fmt: skip

REST = "More"
"""Heading of the charts of metrics that no row names."""

Rows = tuple[tuple[str, tuple[Chart, ...]], ...]


@dataclass(frozen=True, slots=True)
class Board:
    """One dashboard. `variable`: the label its viewer chooses by; `listed_by`: the metric that has all its values."""

    uid: str
    title: str
    variable: str
    listed_by: str
    metrics: tuple[Metric, ...]
    rows: Rows


BOARDS = {
    "training.json": Board(
        "headwater-training", "Headwater: runs", "run", "run_info", (*METRICS.values(), *RUN_METRICS), TRAINING
    ),
    "machines.json": Board("headwater-machines", "Headwater: machines", "instance", "cpus", MACHINE_METRICS, MACHINES),
}


def dashboards() -> dict[str, dict[str, Any]]:
    """Both dashboards, by file name."""
    return {name: _dashboard(board) for name, board in BOARDS.items()}


def queries() -> list[tuple[str, Query]]:
    """(panel's title, query with names filled in) of every panel of both dashboards."""
    return [
        (chart.title, Query(_filled(one.expression, board), one.legend, one.needs))
        for board in BOARDS.values()
        for _, charts in _rows(board)
        for chart in charts
        for one in chart.queries
    ]


def _rows(board: Board) -> Rows:
    """The board's rows with what they do not name: figures of GPUs in the last, anything else in a row of its own."""
    written = [one.expression for _, charts in board.rows for chart in charts for one in chart.queries]
    named = {key for expression in written for key in re.findall(r"<(\w+)>", expression)}
    rest = [metric for metric in board.metrics if metric.prometheus and metric.key not in named]
    gpus = tuple(_own(metric, board.variable) for metric in rest if "gpu" in metric.labels)
    others = tuple(_own(metric, board.variable) for metric in rest if "gpu" not in metric.labels)
    heading, charts = board.rows[-1]
    return (*board.rows[:-1], (heading, (*charts, *gpus)), *(((REST, others),) if others else ()))


def _filled(expression: str, board: Board) -> str:
    """KeyError for a metric that is not declared, or not shown to Prometheus."""
    names = {metric.key: metric.prometheus for metric in board.metrics if metric.prometheus}
    chosen = f'{{{board.variable}=~"${board.variable}"'
    return re.sub(r"<(\w+)>", lambda match: names[match[1]], expression).replace("{@", chosen)


def _dashboard(board: Board) -> dict[str, Any]:
    panels: list[dict[str, Any]] = []
    top = 0
    for heading, charts in _rows(board):
        grid = {"x": 0, "y": top, "w": COLUMNS, "h": 1}
        panels.append({"id": len(panels) + 1, "type": "row", "title": heading, "gridPos": grid, "collapsed": False})
        left, top = 0, top + 1
        for chart in charts:
            height = STAT_HEIGHT if chart.stat else HEIGHT
            if left + chart.width > COLUMNS:
                left, top = 0, top + height
            place = {"x": left, "y": top, "w": chart.width, "h": height}
            panels.append(_panel(len(panels) + 1, chart, place, board))
            left += chart.width
        top += height
    choice = f"label_values({_filled(f'<{board.listed_by}>', board)}, {board.variable})"
    return {
        "uid": board.uid,
        "title": board.title,
        "description": "Made from the metric registry by `python -m headwater.monitor.deploy_files`.",
        "tags": ["headwater"],
        "editable": True,
        "schemaVersion": SCHEMA_VERSION,
        "refresh": "15s",
        "time": {"from": "now-3h", "to": "now"},
        "timezone": "browser",
        "annotations": {"list": [_findings(board)] if board.variable == "run" else []},
        "templating": {
            "list": [
                {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"},
                {
                    "name": board.variable, "type": "query", "datasource": DATASOURCE, "refresh": 2, "multi": True,
                    "includeAll": True, "allValue": ".*", "current": {"text": ["All"], "value": ["$__all"]},
                    "query": {"query": choice, "refId": "variable"}, "sort": 1,
                },
            ]
        },
        "panels": panels,
    }  # fmt: skip


def _panel(number: int, chart: Chart, place: dict[str, int], board: Board) -> dict[str, Any]:
    custom: dict[str, Any] = {"lineWidth": 1, "fillOpacity": 0, "showPoints": "never", "spanNulls": True}
    if chart.log:
        custom["scaleDistribution"] = {"type": "log", "log": 10}
    options: dict[str, Any] = {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}}
    if chart.stat:
        custom = {}
        options = {"reduceOptions": {"calcs": ["lastNotNull"]}, "colorMode": "none", "graphMode": "area"}
    needs = [f"Needs {one}" for one in dict.fromkeys(query.needs for query in chart.queries) if one]
    return {
        "id": number,
        "type": "stat" if chart.stat else "timeseries",
        "title": chart.title,
        "description": ". ".join(part for part in (chart.help, *needs) if part),
        "datasource": DATASOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": UNITS.get(chart.unit, f"suffix: {chart.unit}"), "custom": custom},
                        "overrides": []},
        "options": options,
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": DATASOURCE,
                "expr": _filled(one.expression, board),
                "legendFormat": one.legend,
            }
            for index, one in enumerate(chart.queries)
        ],
    }  # fmt: skip


def _findings(board: Board) -> dict[str, Any]:
    """Findings of detectors, drawn on every curve."""
    return {
        "name": "Findings of detectors",
        "datasource": DATASOURCE,
        "enable": True,
        "iconColor": "red",
        "expr": _filled("increase(<alerts>{@}[1m]) > 0", board),
        "titleFormat": "{{detector}}",
        "textFormat": "{{run}}",
    }
