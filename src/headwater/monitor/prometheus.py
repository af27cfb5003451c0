"""The live view: a Prometheus endpoint fed from the same records as `metrics.jsonl`.

In: records (dictionaries by metric key). Out: `http://HOST:PORT/metrics`, and `endpoints.json` in the run folder
saying where. A busy port moves to the next free one.

    sink = PrometheusSink(PrometheusConfig(enabled=True), run_dir, run_id="r1", warn=print); sink.write({"loss": 2.0})
"""

from __future__ import annotations

import errno
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwater.core.errors import UserError
from headwater.core.files import atomic_write
from headwater.monitor.config import PrometheusConfig
from headwater.monitor.registry import METRICS

if TYPE_CHECKING:
    from prometheus_client.core import Metric

PORTS_TRIED = 50


class _Latest:
    """A Prometheus collector of the latest value of every declared metric."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._values: dict[str, Any] = {}

    def update(self, record: Mapping[str, Any]) -> None:
        """Missing and null values leave the earlier figure. The dictionary is replaced, as another thread reads it."""
        self._values = {**self._values, **{key: value for key, value in record.items() if value is not None}}

    def collect(self) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        values = self._values
        for metric in METRICS.values():
            if not metric.prometheus or metric.key not in values:
                continue
            family = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
            made = family(metric.prometheus, f"{metric.help} ({metric.unit})", labels=("run", *metric.labels))
            value = values[metric.key]
            if isinstance(value, Mapping):
                for label, number in value.items():
                    if number is not None:
                        made.add_metric((self._run_id, label), number)
            else:
                made.add_metric((self._run_id,), value)
            yield made


class PrometheusSink:
    """Serves the latest value of every declared metric until `close`."""

    def __init__(self, config: PrometheusConfig, run_dir: Path, run_id: str, warn: Callable[[str], None]) -> None:
        from prometheus_client import CollectorRegistry

        self._latest = _Latest(run_id)
        self._registry = CollectorRegistry()
        self._registry.register(self._latest)
        self._endpoints = run_dir / "endpoints.json"
        self.port = self._serve(config)
        if self.port != config.port:
            warn(f"port {config.port} is in use; metrics are served on {config.host}:{self.port}")
        self.url = f"http://{config.host}:{self.port}/metrics"
        atomic_write(self._endpoints, json.dumps({"metrics": self.url}).encode())

    def _serve(self, config: PrometheusConfig) -> int:
        from prometheus_client import start_http_server

        for port in range(config.port, min(config.port + PORTS_TRIED, 65536)):
            try:
                self._server, self._thread = start_http_server(port, config.host, registry=self._registry)
                return port
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise UserError(
                        f"cannot serve metrics on {config.host}:{port}: {error.strerror}",
                        where="monitor.prometheus",
                        mend="choose another host or port, or set monitor.prometheus.enabled to false",
                    ) from error
        raise UserError(
            f"no free port among {config.port}..{config.port + PORTS_TRIED - 1}",
            where="monitor.prometheus.port",
            mend="choose another port",
        )

    def write(self, record: Mapping[str, Any]) -> None:
        """Show a record; missing and null values leave the earlier figure."""
        self._latest.update(record)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(timeout=5)
        self._endpoints.unlink(missing_ok=True)
