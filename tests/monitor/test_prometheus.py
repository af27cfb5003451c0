"""The endpoint, asked over HTTP."""

from __future__ import annotations

import json
import math
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from headwater.core.errors import UserError
from headwater.core.jsonl import JsonlLog
from headwater.monitor.alerts_rules import DETECTORS
from headwater.monitor.config import PrometheusConfig
from headwater.monitor.detectors import default_detectors
from headwater.monitor.endpoints import publish_target, sweep_targets, withdraw_target
from headwater.monitor.prometheus import EVENTS, MOST_SERIES, PrometheusSink
from tests.conftest import REPOSITORY

SOURCE = REPOSITORY / "src" / "headwater"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The folder of a run, beside which target files go."""
    (tmp_path / "runs" / "r").mkdir(parents=True)
    return tmp_path / "runs" / "r"


def serve(run: Path, name: str, warn: Callable[[str], None] = pytest.fail, **options: Any) -> PrometheusSink:
    return PrometheusSink(PrometheusConfig(enabled=True, **{"port": free_port(), **options}), run, name, warn)


def scraped(sink: PrometheusSink) -> str:
    with urllib.request.urlopen(sink.url, timeout=5) as answer:
        return answer.read().decode()


def targets(folder: Path) -> list[str]:
    return [json.loads(path.read_text())[0]["targets"][0] for path in sorted(folder.glob("*.json"))]


def test_the_endpoint_shows_the_latest_record(run: Path) -> None:
    sink = serve(run, "first")
    try:
        sink.write({"step": 1, "loss": 9.0, "gpu_util": None})
        sink.write({"step": 2, "loss": 3.5, "tokens": 4096, "val_loss": {"all": 3.25, "代码": 2.0}, "time": 1.0})
        assert json.loads((run / "endpoints.json").read_text()) == {"metrics": sink.url}
        text = scraped(sink)
    finally:
        sink.close()
    assert 'llm_train_loss{run="first"} 3.5' in text
    assert 'llm_tokens_total{run="first"} 4096.0' in text
    assert 'llm_val_loss{domain="代码",run="first"} 2.0' in text
    assert "# TYPE llm_tokens_total counter" in text
    assert "# TYPE llm_train_loss gauge" in text
    assert "llm_gpu_utilisation_ratio" not in text
    assert "# HELP llm_train_loss Cross-entropy of the step's batch (nats/token)" in text
    assert not (run / "endpoints.json").exists()


def test_a_busy_port_moves_to_the_next_with_a_warning_and_the_files_say_where(tmp_path: Path) -> None:
    warnings: list[str] = []
    port = free_port()
    for name in "ab":
        (tmp_path / name).mkdir()
    first = serve(tmp_path / "a", "a", port=port)
    second = serve(tmp_path / "b", "b", warnings.append, port=port)
    try:
        assert second.port > first.port == port
        assert f"port {port} is in use" in warnings[0]
        assert json.loads((tmp_path / "b" / "endpoints.json").read_text()) == {"metrics": second.url}
        shared = [f"127.0.0.1:{first.port}", f"127.0.0.1:{second.port}"]
        assert targets(tmp_path / "prometheus-targets") == shared
    finally:
        first.close()
        second.close(failed=True)
    assert targets(tmp_path / "prometheus-targets") == shared[1:], "a run that broke off is seen as down"


def test_all_addresses_are_scraped_by_the_machines_name(run: Path, tmp_path: Path) -> None:
    sink = serve(run, "r", host="0.0.0.0", targets=str(tmp_path / "shared"))
    try:
        assert "llm_run_info" not in scraped(sink)
        assert targets(tmp_path / "shared") == [f"{socket.gethostname()}:{sink.port}"]
    finally:
        sink.close()
    assert targets(tmp_path / "shared") == []


def test_the_target_of_a_killed_run_goes_with_the_next_start(tmp_path: Path) -> None:
    folder = tmp_path / "targets"
    folder.mkdir()
    (folder / "by-hand.json").write_text('[{"targets": ["other:9100"]}]')
    (folder / "broken.json").write_text("{")
    code = f"""
import os
from pathlib import Path
from headwater.monitor.endpoints import publish_target
publish_target(Path({str(folder)!r}), "run", "killed", "127.0.0.1:1")
os.kill(os.getpid(), 9)
"""
    subprocess.run([sys.executable, "-c", code], check=False)
    assert len(list(folder.glob("run-killed-*.json"))) == 1
    mine = publish_target(folder, "run", "mine", "127.0.0.1:2")
    assert sorted(path.name for path in folder.iterdir()) == sorted(["broken.json", "by-hand.json", mine.name])
    assert sweep_targets(folder) == []
    withdraw_target(mine)
    assert not mine.exists()


def test_a_run_that_goes_on_elsewhere_has_one_target_and_its_namesake_another(tmp_path: Path) -> None:
    before = publish_target(tmp_path, "run", "quickstart 速成", "node-a:8000", known_by="one")
    text = before.read_text().replace(socket.gethostname(), "node-a")
    before.write_text(text)  # as another machine wrote it
    again = publish_target(tmp_path, "run", "quickstart 速成", "node-b:8000", known_by="one")
    other = publish_target(tmp_path, "run", "quickstart 速成", "node-b:8001", known_by="another")
    assert again == before
    assert sorted(targets(tmp_path)) == ["node-b:8000", "node-b:8001"]
    withdraw_target(other)
    assert targets(tmp_path) == ["node-b:8000"]


def test_figures_of_any_kind_leave_the_answer_readable(run: Path) -> None:
    sink = serve(run, 'a"b\\c\nd')
    many = {f"domain {number}": float(number) for number in range(MOST_SERIES + 50)}
    odd = {"bad \ud800": 1.0, "x" * 999: 2.0, "none": None, "text": "NaN", "nan": math.nan, "a\nb": True}
    try:
        sink.write({"step": 1, "loss": math.nan, "lr": "high", "val_loss": many, "domain_tokens": odd, "mfu": [1]})
        sink.write({"step": 2, "val_loss": 3.0, "grad_norm": math.inf, "val_perplexity": {"a": {"b": 1}}})
        read = {one.name: one for one in text_string_to_metric_families(scraped(sink))}
    finally:
        sink.close()
    assert read["llm_step"].samples[0].labels == {"run": 'a"b\\c\nd'}
    assert math.isnan(read["llm_train_loss"].samples[0].value)
    assert read["llm_grad_norm"].samples[0].value == math.inf
    domains = {sample.labels["domain"]: sample.value for sample in read["llm_domain_tokens"].samples}
    assert set(domains) == {"bad ?", "x" * 200, "nan"}
    assert not {"llm_learning_rate", "llm_mfu_ratio", "llm_val_loss", "llm_val_perplexity"} & read.keys()


def test_a_metric_shows_only_so_many_series(run: Path) -> None:
    sink = serve(run, "r")
    try:
        sink.write({"val_loss": {f"domain {number}": float(number) for number in range(MOST_SERIES + 50)}})
        assert scraped(sink).count("\nllm_val_loss{") == MOST_SERIES
    finally:
        sink.close()


def test_durations_are_a_histogram_of_all_steps_between_scrapes(run: Path) -> None:
    sink = serve(run, "r")
    try:
        for seconds in (0.02, 0.03, 0.03, 7.0, 1e4, math.nan):
            sink.write({"step_seconds": seconds})
        read = {one.name: one for one in text_string_to_metric_families(scraped(sink))}
    finally:
        sink.close()
    samples = read["llm_step_duration_seconds"].samples
    buckets = {one.labels["le"]: one.value for one in samples if one.name.endswith("_bucket")}
    assert buckets["0.01"] == 0
    assert buckets["0.025"] == 1
    assert buckets["0.05"] == buckets["5.0"] == 3
    assert buckets["250.0"] == 4


def test_events_are_counted_over_all_processes_of_a_run(run: Path) -> None:
    def event(kind: str, **facts: Any) -> None:
        with JsonlLog(run / "events.jsonl") as log:
            log.append({"time": 5.0, "event": kind, **facts})

    (run / "run.json").write_text('{"steps": 500, "dataset": "4f2a", "created": "2026-01-01"}')
    event("started")
    event("alert", detector="loss_spike")
    sink = serve(run, "r")
    try:
        text = scraped(sink)
        assert 'llm_alerts_total{detector="loss_spike",run="r"} 1.0' in text
        assert 'llm_alerts_total{detector="non_finite",run="r"} 0.0' in text
        assert "llm_checkpoint_last" not in text
        event("checkpoint", step=3)
        with open(run / "events.jsonl", "ab") as file:
            file.write(b'not json\n{"event": "warn')
        text = scraped(sink)
        with open(run / "events.jsonl", "ab") as file:
            file.write(b'ing"}\n')
        later = scraped(sink)
    finally:
        sink.close()
    assert 'llm_events_total{event="checkpoint",run="r"} 1.0' in text
    assert 'llm_events_total{event="warning",run="r"} 0.0' in text
    assert 'llm_checkpoint_last_success_timestamp_seconds{run="r"} 5.0' in text
    assert 'llm_steps_planned{run="r"} 500.0' in text
    assert 'dataset="4f2a"' in text
    assert 'llm_events_total{event="warning",run="r"} 1.0' in later


def written(pattern: str) -> set[str]:
    """What a pattern finds in the source of whatever trains."""
    paths = (*(SOURCE / "train").rglob("*.py"), *(SOURCE / "parallel").rglob("*.py"))
    return {found for path in paths for found in re.findall(pattern, path.read_text(encoding="utf-8"))}


def test_a_run_that_breaks_off_is_read_once_more_if_it_was_read_before(run: Path) -> None:
    sink, texts = serve(run, "r"), []
    scraped(sink)
    with JsonlLog(run / "events.jsonl") as log:
        log.append({"event": "alert", "detector": "non_finite"})
    later = threading.Timer(0.5, lambda: texts.append(scraped(sink)))
    later.start()
    began = time.monotonic()
    sink.close(failed=True)
    assert time.monotonic() - began < 10
    later.join(10)
    assert 'llm_alerts_total{detector="non_finite",run="r"} 1.0' in texts[0]
    sink, began = serve(run, "r"), time.monotonic()
    sink.close(failed=True)
    assert time.monotonic() - began < 5, "nobody read it"


def test_every_event_is_counted_from_zero() -> None:
    assert written(r'\.event\(\s*"(\w+)"') == set(EVENTS), "so that the first one is an increase"


def test_every_detector_has_a_rule_of_its_own() -> None:
    named = {one.name for one in default_detectors()} | written(r'\bAlert\(\s*"(\w+)"')
    assert "out_of_memory" in named
    assert named <= set(DETECTORS), "add it to headwater.monitor.alerts_rules.DETECTORS"
    assert len({alert for alert, _, _ in DETECTORS.values()}) == len(DETECTORS)


def test_an_address_that_is_not_ours_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        PrometheusSink(PrometheusConfig(enabled=True, host="203.0.113.1"), tmp_path, "a", pytest.fail)
    assert caught.value.where == "monitor.prometheus"


def test_what_was_found_before_the_first_scrape_is_an_increase(run: Path) -> None:
    def found(detector: str) -> None:
        with JsonlLog(run / "events.jsonl") as log:
            log.append({"event": "alert", "detector": detector, "step": 1})

    found("plateau")  # by the process before this one
    sink = serve(run, "r")
    try:
        found("slow_data")
        for count in ("0.0", "1.0", "1.0"):
            text = scraped(sink)
            assert 'llm_alerts_total{detector="plateau",run="r"} 1.0' in text
            assert f'llm_alerts_total{{detector="slow_data",run="r"}} {count}' in text
    finally:
        sink.close()
