"""The real Prometheus and Alertmanager on a real run and a real exporter: every panel and rule is asked.

One run trains all through the module; what needs a GPU or an option that it does not have is listed in `NEEDS` and must
then have no value.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from headwater.core.jsonl import JsonlLog
from headwater.monitor.alerts_rules import DETECTORS, RULES
from headwater.monitor.config import PrometheusConfig
from headwater.monitor.deploy_files import Places, write
from headwater.monitor.grafana import queries
from headwater.monitor.live_metrics import exposed
from headwater.monitor.prometheus import PrometheusSink
from tests.conftest import clean_environment, cli_command
from tests.monitor.test_prometheus import free_port
from tests.train.conftest import World, world

__all__ = ["world"]  # a fixture, found here by its name

PATIENCE = 120.0
RUN_NAME = "live-run"
SETTINGS = (
    "model.hidden_size=32", "model.num_hidden_layers=2", "model.num_attention_heads=2", "train.seq_len=64",
    "model.max_position_embeddings=64", "train.global_batch=4", "train.steps=1000000", "train.validation.every=10",
    "train.validation.windows_per_domain=4", "train.checkpoint.every=20", "monitor.prometheus.enabled=true",
    "monitor.detectors.data_wait_share=1e-9",
)  # fmt: skip
"""A tiny model for as long as the tests take; one detector that always finds something."""


@dataclass
class Watched:
    """What runs: addresses, the messages that a robot got, and the training process."""

    prometheus: str
    folder: Path
    messages: list[dict[str, Any]]
    trainer: subprocess.Popen[bytes]
    trainer_port: int

    def ask(self, path: str, **parameters: str) -> Any:
        url = f"{self.prometheus}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            return json.load(answer)["data"]

    def series(self, expression: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.ask("query", query=expression)["result"]
        return found


def until(said: Callable[[], Any], what: str, seconds: float = PATIENCE) -> Any:
    """Ask again until there is an answer."""
    end = time.monotonic() + seconds
    while not (found := _quietly(said)):
        assert time.monotonic() < end, f"after {seconds:g} s still no {what}"
        time.sleep(0.1)
    return found


def _quietly(said: Callable[[], Any]) -> Any:
    try:
        return said()
    except OSError:
        return None


@pytest.fixture(scope="module")
def watched(world: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    for name in ("prometheus", "prometheus-alertmanager"):
        if shutil.which(name) is None:
            pytest.skip(f"{name} is not installed (Debian package {name})")
    folder = tmp_path_factory.mktemp("live")
    with ExitStack() as stack:
        yield _start(folder, world, stack)


def _start(folder: Path, world: World, stack: ExitStack) -> Watched:
    """Robot <- bridge <- Alertmanager <- Prometheus -> trainer, exporter. All stopped by the stack."""

    def start(*command: str | Path, env: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
        log = folder / f"{Path(command[0]).name}-{Path(command[1]).name[:20]}.log"
        process = subprocess.Popen(
            [*map(str, command)], cwd=folder, stdout=log.open("wb"), stderr=subprocess.STDOUT,
            env=clean_environment(env),
        )  # fmt: skip
        stack.callback(process.wait, 30)
        stack.callback(process.terminate)
        return process

    headwater = cli_command()
    ports = {name: free_port() for name in ("trainer", "exporter", "bridge", "alertmanager", "prometheus")}
    targets = folder / "prometheus-targets"
    trainer = start(
        *headwater, "train", world.dataset, "--tokenizer", world.tokenizer, "--out", folder / RUN_NAME,
        *(word for setting in SETTINGS for word in ("--set", setting)),
        "--set", f"monitor.prometheus.port={ports['trainer']}",
    )  # fmt: skip
    start(*headwater, "exporter", "--port", str(ports["exporter"]), "--targets", targets)
    messages, robot = _robot(stack)
    chats = {f"HEADWATER_{name}_WEBHOOK": f"{robot}{name}" for name in ("SLACK", "FEISHU", "DINGTALK")}
    start(*headwater, "alerts", "--port", str(ports["bridge"]), env={**chats, "HEADWATER_FEISHU_SECRET": "s"})
    places = {name: f"127.0.0.1:{port}" for name, port in ports.items()}
    write(folder, Places(**places, targets=str(targets)))
    _hurry(folder)
    alertmanager = (
        "prometheus-alertmanager", f"--config.file={folder}/alertmanager/alertmanager.yml", "--cluster.listen-address=",
        f"--web.listen-address={places['alertmanager']}", f"--storage.path={folder}/am",
    )  # fmt: skip
    start(*alertmanager)
    start("prometheus", f"--config.file={folder}/prometheus/prometheus.yml", f"--storage.tsdb.path={folder}/tsdb",
          f"--web.listen-address={places['prometheus']}")  # fmt: skip
    return Watched(f"http://{places['prometheus']}", folder, messages, trainer, ports["trainer"])


def _robot(stack: ExitStack) -> tuple[list[dict[str, Any]], str]:
    messages: list[dict[str, Any]] = []

    class Robot(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            messages.append({"place": self.path[1:].lower(), **body})
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"code": 0, "errcode": 0}')

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Robot)
    thread = Thread(target=server.serve_forever)
    thread.start()
    stack.callback(thread.join)
    stack.callback(server.server_close)
    stack.callback(server.shutdown)
    return messages, f"http://127.0.0.1:{server.server_port}/"


def _hurry(folder: Path) -> None:
    """The generated files with seconds in place of quarters of a minute; nothing else is changed."""
    for name in ("prometheus/prometheus.yml", "alertmanager/alertmanager.yml"):
        text = (folder / name).read_text()
        assert "15s" in text
        (folder / name).write_text(text.replace("15s", "1s"))


def test_every_panel_has_data_or_says_what_it_needs(watched: Watched) -> None:
    until(lambda: watched.series("llm_val_loss and on () (llm_checkpoint_last_success_timestamp_seconds > 0)"), "run")
    until(lambda: watched.series("rate(llm_tokens_total[5m]) and on () rate(machine_cpu_seconds_total[5m])"), "rates")
    empty, unexpected = [], []
    for title, query in queries():
        expression = query.expression.replace("$run", ".*").replace("$instance", ".*")
        found = _quietly(lambda expression=expression: watched.series(expression))
        assert found is not None, f"{title}: Prometheus refuses {expression}"
        if not found and not query.needs:
            empty.append((title, expression))
        if found and query.needs == "a GPU" and not _has_gpu():
            unexpected.append((title, expression))
    assert not empty
    assert not unexpected


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def test_every_rule_is_loaded_and_its_value_is_there(watched: Watched) -> None:
    groups = until(lambda: watched.ask("rules")["groups"], "rules")
    loaded = {rule["name"]: rule for group in groups for rule in group["rules"]}
    assert set(loaded) == {rule.alert for rule in RULES}
    assert not [rule["name"] for rule in loaded.values() if rule["health"] == "err"]
    missing = [rule.alert for rule in RULES if not rule.needs and not until(
        lambda rule=rule: watched.series(rule.value), f"value of {rule.alert}")]  # fmt: skip
    assert not missing


def test_what_prometheus_says_of_the_names_is_what_the_registry_says(watched: Watched) -> None:
    known = until(lambda: watched.ask("metadata"), "metadata")
    checked = 0
    for name, metric in exposed().items():
        if told := known.get(name):
            assert told[0]["type"] == metric.kind, name
            assert told[0]["help"].startswith(metric.help[:40].strip()), name
            checked += 1
    assert checked >= 30


def test_promtool_finds_nothing_to_say_of_the_names(watched: Watched) -> None:
    until(lambda: watched.series("up == 1"), "scrape")
    for target in watched.ask("targets")["activeTargets"]:
        text = until(lambda url=target["scrapeUrl"]: _read(url), "answer")
        done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, check=False)
        assert done.stdout.decode().split() == []
        assert done.returncode == 0, done.stderr.decode()


def _read(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return bytes(answer.read())


def test_a_run_that_is_named_twice_is_scraped_once(watched: Watched) -> None:
    until(lambda: watched.series("llm_step"), "run")
    assert len(list((watched.folder / "prometheus-targets").glob("*.json"))) == 2
    assert [one["metric"]["job"] for one in watched.series("llm_step")] == ["training_metrics"]
    assert {one["metric"]["job"] for one in watched.series("machine_cpus")} == {"gpu_metrics"}
    assert len(watched.series("up")) == 2
    assert watched.series(f'llm_run_info{{run="{RUN_NAME}"}}')


def test_a_detectors_finding_reaches_the_chat(watched: Watched) -> None:
    alert, _, summary = DETECTORS["slow_data"]
    until(lambda: watched.series(f'ALERTS{{alertname="{alert}", alertstate="firing"}}'), "alert in Prometheus")
    wanted = f"🟡 {alert}: run {RUN_NAME}: {summary} (since "
    for place in ("slack", "feishu", "dingtalk"):
        told = until(lambda place=place: _told(watched, place, wanted), f"message at {place}")
        assert ("sign" in told) == (place == "feishu")


def _told(watched: Watched, place: str, words: str) -> dict[str, Any] | None:
    """The message at a place that has these words."""
    said = (one for one in list(watched.messages) if one["place"] == place)
    return next((one for one in said if words in json.dumps(one, ensure_ascii=False)), None)


def test_the_finding_that_ends_a_run_is_read_before_it_is_gone(watched: Watched) -> None:
    run = watched.folder / "doomed"
    run.mkdir()
    sink = PrometheusSink(PrometheusConfig(enabled=True, port=free_port()), run, "doomed", pytest.fail)
    sink.write({"step": 7, "loss": 2.0})
    try:
        until(lambda: watched.series('llm_alerts_total{run="doomed",detector="non_finite"}'), "scrape")
        with JsonlLog(run / "events.jsonl") as log:
            log.append({"event": "alert", "detector": "non_finite", "time": time.time()})
    finally:
        sink.close(failed=True)
    until(lambda: watched.series('ALERTS{alertname="NonFinite",run="doomed",alertstate="firing"}'), "alert")
    until(lambda: watched.series(f'up{{instance="127.0.0.1:{sink.port}"}} == 0'), "scrape that fails")


def test_a_killed_run_is_seen_as_down_until_it_starts_again(watched: Watched) -> None:
    """Last, as it ends the run."""
    watched.trainer.send_signal(signal.SIGKILL)
    watched.trainer.wait(30)
    until(lambda: watched.series(f'up{{instance="127.0.0.1:{watched.trainer_port}"}} == 0'), "scrape that fails")
    until(lambda: watched.series(f'ALERTS{{alertname="TrainingDown",run="{RUN_NAME}"}}'), "alert that it is down")
    assert watched.series("llm_step") == [], "no old figure is shown as if it were of now"
