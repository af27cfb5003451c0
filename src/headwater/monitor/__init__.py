"""Watching a run: metric registry, sinks (JSON Lines, console, Prometheus) and the report. No torch, no model.

from headwater.monitor import MetricsRecord, write_report
"""

from headwater.monitor.config import MonitorConfig
from headwater.monitor.record import MetricsRecord, cut_after, read_metrics
from headwater.monitor.registry import METRICS, Metric
from headwater.monitor.report import write_report

__all__ = ["METRICS", "Metric", "MetricsRecord", "MonitorConfig", "cut_after", "read_metrics", "write_report"]
