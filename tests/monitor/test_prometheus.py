"""The endpoint, asked over HTTP."""

from __future__ import annotations

import json
import socket
import urllib.request
from pathlib import Path

import pytest

from headwater.core.errors import UserError
from headwater.monitor.config import PrometheusConfig
from headwater.monitor.prometheus import PrometheusSink


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_the_endpoint_shows_the_latest_record(tmp_path: Path) -> None:
    sink = PrometheusSink(PrometheusConfig(enabled=True, port=free_port()), tmp_path, "first", pytest.fail)
    try:
        sink.write({"step": 1, "loss": 9.0, "gpu_util": None})
        sink.write({"step": 2, "loss": 3.5, "tokens": 4096, "val_loss": {"all": 3.25, "代码": 2.0}, "time": 1.0})
        assert json.loads((tmp_path / "endpoints.json").read_text()) == {"metrics": sink.url}
        with urllib.request.urlopen(sink.url, timeout=5) as answer:
            text = answer.read().decode()
    finally:
        sink.close()
    assert 'llm_train_loss{run="first"} 3.5' in text
    assert 'llm_tokens_total{run="first"} 4096.0' in text
    assert 'llm_val_loss{domain="代码",run="first"} 2.0' in text
    assert "# TYPE llm_tokens_total counter" in text
    assert "# TYPE llm_train_loss gauge" in text
    assert "llm_gpu_utilisation_ratio" not in text
    assert "# HELP llm_train_loss Cross-entropy of the step's batch (nats/token)" in text
    assert not (tmp_path / "endpoints.json").exists()


def test_a_busy_port_moves_to_the_next_with_a_warning(tmp_path: Path) -> None:
    warnings: list[str] = []
    port = free_port()
    for name in "ab":
        (tmp_path / name).mkdir()
    first = PrometheusSink(PrometheusConfig(enabled=True, port=port), tmp_path / "a", "a", pytest.fail)
    second = PrometheusSink(PrometheusConfig(enabled=True, port=port), tmp_path / "b", "b", warnings.append)
    try:
        assert second.port > first.port == port
        assert f"port {port} is in use" in warnings[0]
    finally:
        first.close()
        second.close()


def test_an_address_that_is_not_ours_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        PrometheusSink(PrometheusConfig(enabled=True, host="203.0.113.1"), tmp_path, "a", pytest.fail)
    assert caught.value.where == "monitor.prometheus"
