"""The `monitor:` section of a recipe: where figures of a run go. All of it operational.

MonitorConfig(prometheus={"enabled": True, "port": 8000})
"""

from __future__ import annotations

from headwater.core.config import Section, field


class PrometheusConfig(Section):
    """A `/metrics` endpoint for Prometheus while a run trains."""

    enabled: bool = field(False, kind="operational")
    """Serve the endpoint."""

    port: int = field(8000, kind="operational", ge=1, le=65535)
    """Port; a busy one moves to the next free one, with a warning, and `endpoints.json` says which."""

    host: str = field("127.0.0.1", kind="operational")
    """Address to listen on; `0.0.0.0` lets another machine read it."""


class MonitorConfig(Section):
    """Metrics of a run. The record, `metrics.jsonl`, is always written."""

    every: int = field(
        1, kind="operational", aliases=("log_every", "log_interval", "logging_steps"), ge=1, unit="steps"
    )
    """Steps between lines of the record and updates of the sinks; the last step always counts."""

    console: bool = field(True, kind="operational")
    """One live line on a terminal, a plain line now and then elsewhere."""

    console_seconds: float = field(10.0, kind="operational", gt=0, unit="seconds")
    """Without a terminal: at most one line in this time."""

    smoothing: int = field(100, kind="operational", ge=1, unit="steps")
    """Window of the simple moving average of the loss, `loss_sma`; at most a tenth of the run."""

    prometheus: PrometheusConfig = field(default_factory=PrometheusConfig, kind="operational")
    """Live view."""
