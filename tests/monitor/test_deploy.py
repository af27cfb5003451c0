"""The files of deploy/: up to date, accepted by Prometheus' own tools, and free of names that do not exist."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
import yaml

from headwater.cli import alerts as alerts_verb
from headwater.cli import exporter as exporter_verb
from headwater.monitor.alerts import PORT as BRIDGE_PORT
from headwater.monitor.alerts_rules import DETECTORS, RULES
from headwater.monitor.alerts_words import CHINESE
from headwater.monitor.config import PrometheusConfig
from headwater.monitor.deploy_files import Places, files, main
from headwater.monitor.endpoints import META
from headwater.monitor.exporter import PORT as EXPORTER_PORT
from headwater.monitor.grafana import BOARDS, NEEDS, Board, Chart, Query, _filled, queries
from headwater.monitor.live_metrics import exposed
from headwater.monitor.registry import METRICS
from tests.conftest import REPOSITORY

DEPLOY = REPOSITORY / "deploy"
BY_HAND = {"docker-compose.yml", "docker-compose.gpu.yml"}
PREFIXES = ("llm_", "machine_", "DCGM_")


def tool(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed (Debian: prometheus, prometheus-alertmanager)")
    return found


def checked(*command: str | Path) -> str:
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def names_in(expression: str) -> set[str]:
    found = set(re.findall(r"\b((?:llm|machine|DCGM)_\w+)", re.sub(r'"[^"]*"', "", expression)))
    return {re.sub(r"_(bucket|sum|count)$", "", name) if name not in exposed() else name for name in found}


def test_the_files_are_those_that_the_registry_makes() -> None:
    made = files()
    for name, text in made.items():
        now = (DEPLOY / name).read_text(encoding="utf-8") if (DEPLOY / name).exists() else ""
        assert now == text, f"deploy/{name} is not up to date: run `python -m headwater.monitor.deploy_files`"
    here = {path.relative_to(DEPLOY).as_posix() for path in DEPLOY.rglob("*") if path.is_file()}
    assert here == set(made) | BY_HAND


def test_every_name_in_a_panel_or_rule_is_declared_and_every_declared_metric_is_shown() -> None:
    shown = {name for _, query in queries() for name in names_in(query.expression)}
    assert shown == set(exposed()), "a metric without a panel, or a panel without a metric"
    for rule in RULES:
        assert names_in(rule.expression) <= set(exposed()), rule.alert
    assert set(NEEDS) <= set(METRICS)
    assert set(CHINESE) == {rule.alert for rule in RULES}
    assert len({rule.alert for rule in RULES}) == len(RULES)
    with pytest.raises(KeyError, match="no_such"):
        _filled("<no_such>{@}", BOARDS["training.json"])


def test_names_follow_prometheus_conventions() -> None:
    for name, metric in exposed().items():
        assert re.fullmatch(r"[a-zA-Z][a-zA-Z0-9_]*", name)
        assert name.startswith(PREFIXES)
        if name.startswith("DCGM_"):
            continue
        assert (metric.kind == "counter") == name.endswith("_total"), name
        for unit, suffix in (("seconds", "_seconds"), ("bytes", "_bytes")):
            if metric.unit == unit:
                assert suffix in name, name
        assert metric.unit != "percent"
        assert "run" not in metric.labels
        assert (metric.kind == "histogram") == bool(metric.buckets)
        assert list(metric.buckets) == sorted(metric.buckets)


def test_dashboards_are_whole() -> None:
    for name, board in BOARDS.items():
        made = json.loads((DEPLOY / "grafana" / "dashboards" / name).read_text())
        assert made["uid"] == board.uid
        assert made["schemaVersion"] >= 36
        ids = [panel["id"] for panel in made["panels"]]
        assert len(set(ids)) == len(ids)
        _no_overlap([panel["gridPos"] for panel in made["panels"]])
        for panel in made["panels"]:
            if panel["type"] != "row":
                assert panel["datasource"]["uid"] == "${datasource}"
                assert [target["refId"] for target in panel["targets"]] == list("ABCDEFGH"[: len(panel["targets"])])
        variables = {variable["name"] for variable in made["templating"]["list"]}
        used = set(re.findall(r"\$\{?(\w+)", json.dumps([panel.get("targets") for panel in made["panels"]])))
        assert used <= variables


def _no_overlap(places: list[dict[str, int]]) -> None:
    taken: set[tuple[int, int]] = set()
    for place in places:
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken
        assert place["x"] + place["w"] <= 24
        taken |= cells


def test_the_jobs_and_ports_are_the_documented_ones() -> None:
    config = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    jobs = {job["job_name"]: job["static_configs"][0]["targets"] for job in config["scrape_configs"]}
    assert jobs == {"training_metrics": ["trainer:8000"], "gpu_metrics": ["gpu-exporter:9100"]}
    assert PrometheusConfig().port == 8000
    defaults = {verb: signature(verb.command).parameters["port"].default for verb in (exporter_verb, alerts_verb)}
    assert defaults == {exporter_verb: EXPORTER_PORT, alerts_verb: BRIDGE_PORT}
    compose = yaml.safe_load((DEPLOY / "docker-compose.yml").read_text())
    services = compose["services"]
    hosts = {place.split(":")[0] for place in vars(Places()).values() if ":" in place}
    assert hosts <= set(services)
    pinned = [service["image"] for service in services.values() if "/" in service["image"]]
    assert len(pinned) == 3
    assert all(re.fullmatch(r"[\w./-]+:v?\d+\.\d+\.\d+", image) for image in pinned)
    published = [port for service in services.values() for port in service.get("ports", [])]
    assert all(port.startswith("127.0.0.1:") for port in published)
    mounts = [mount for service in services.values() for mount in service.get("volumes", []) if mount.startswith("./")]
    assert all((DEPLOY / mount.split(":")[0]).is_dir() for mount in mounts)
    assert any(mount.endswith(f":{Places().targets}:ro") for mount in services["prometheus"]["volumes"])
    gpu = yaml.safe_load((DEPLOY / "docker-compose.gpu.yml").read_text())
    assert set(gpu["services"]) <= set(services)


def test_the_commands_of_the_compose_file_are_ours(capsys: pytest.CaptureFixture[str]) -> None:
    from headwater.cli.main import run_command

    compose = yaml.safe_load((DEPLOY / "docker-compose.yml").read_text())
    verbs = {
        service["command"].split()[1] for service in compose["services"].values() if service["image"] == "headwater"
    }
    assert verbs == {"run", "exporter", "alerts"}
    for verb in verbs:
        assert run_command([verb, "--help"]) == 0
    given = capsys.readouterr().out
    assert "--path" in given
    overrides = re.findall(r"--set (\S+)=", compose["services"]["trainer"]["command"])
    assert [name.split(".")[-1] for name in overrides] == ["enabled", "host"]
    assert set(PrometheusConfig.model_fields) >= {"enabled", "host"}


def test_prometheus_and_alertmanager_accept_the_files(tmp_path: Path) -> None:
    promtool = tool("promtool")
    main(["--out", str(tmp_path), "--trainer", "localhost:8001", "--targets", str(tmp_path)])
    said = checked(promtool, "check", "config", tmp_path / "prometheus" / "prometheus.yml")
    assert f"{len(RULES)} rules found" in said
    assert "localhost:8001" in (tmp_path / "prometheus" / "prometheus.yml").read_text()
    # Debian's build has no discovery of Kubernetes; the rest of that file can be checked.
    cluster = yaml.safe_load((tmp_path / "prometheus" / "kubernetes.yml").read_text())
    for job in cluster["scrape_configs"]:
        assert job.pop("kubernetes_sd_configs") == [{"role": "endpoints"}]
    (tmp_path / "prometheus" / "rest.yml").write_text(yaml.safe_dump(cluster))
    checked(promtool, "check", "config", tmp_path / "prometheus" / "rest.yml")
    checked(tool("amtool"), "check-config", tmp_path / "alertmanager" / "alertmanager.yml")


def test_kubernetes_runs_an_exporter_on_every_node_that_prometheus_finds() -> None:
    service, daemons = yaml.safe_load_all((DEPLOY / "kubernetes" / "exporter.yml").read_text())
    config = yaml.safe_load((DEPLOY / "prometheus" / "kubernetes.yml").read_text())
    job = next(job for job in config["scrape_configs"] if job["job_name"] == "gpu_metrics")
    marks = service["metadata"]["annotations"]
    found = {f"__meta_kubernetes_service_annotation_{re.sub(r'[./]', '_', name)}": marks[name] for name in marks}
    for rule in job["relabel_configs"]:
        if rule.get("action") == "keep":
            assert re.fullmatch(rule["regex"], found[rule["source_labels"][0]])
    assert service["spec"]["selector"] == daemons["spec"]["template"]["metadata"]["labels"]
    container = daemons["spec"]["template"]["spec"]["containers"][0]
    assert marks["prometheus.io/port"] == str(container["ports"][0]["containerPort"]) == "9100"
    assert container["command"][:2] == ["headwater", "exporter"]


RUN = '{run="r1", job="training_metrics", instance="trainer:8000"}'
MACHINE = '{job="gpu_metrics", instance="gpu-exporter:9100"}'


def rising(name: str, labels: str) -> dict[str, str]:
    """A counter that goes from 0 to 1 in the third minute."""
    return {"series": f"{name}{labels}", "values": "0 0 0 1x60"}


def fires(alert: str, minute: int, *, found: bool = True, labels: dict[str, str] | None = None) -> dict[str, Any]:
    rule = next(rule for rule in RULES if rule.alert == alert)
    where = {"run": "r1", "job": "training_metrics", "instance": "trainer:8000"} if labels is None else labels
    run, instance = where.get("run"), where["instance"]
    texts = {
        "summary": f"{f'run {run}' if run else instance}: {rule.summary}",
        "summary_zh": f"{f'训练 {run}' if run else instance}：{CHINESE[alert]}",
    }
    expected = {
        "exp_labels": {"severity": rule.severity, **where},
        "exp_annotations": {**texts, "description": "`headwater doctor RUN` says more."},
    }
    return {"eval_time": f"{minute}m", "alertname": alert, "exp_alerts": [expected] if found else []}


def rule_tests() -> list[dict[str, Any]]:
    """Each rule on a series that has its fault: silent before, firing after."""
    found, when = [], []
    for name, (alert, _, _) in DETECTORS.items():
        found.append(rising("llm_alerts_total", RUN.replace("}", f', detector="{name}"}}')))
        where = {"run": "r1", "job": "training_metrics", "instance": "trainer:8000", "detector": name}
        when += [fires(alert, 2, found=False), fires(alert, 4, labels=where), fires(alert, 30, found=False)]
    tests = [{"input_series": found, "alert_rule_test": when}]
    machine = {"job": "gpu_metrics", "instance": "gpu-exporter:9100"}
    root = MACHINE.replace("}", ', mountpoint="/"}')
    gpu = MACHINE.replace("}", ', gpu="0"}')
    mounted, card = {**machine, "mountpoint": "/"}, {**machine, "gpu": "0"}
    pace = [
        {"series": f"llm_step_duration_seconds_sum{RUN}", "values": "0+60x5 _x60"},
        {"series": f"llm_step_duration_seconds_count{RUN}", "values": "0+30x5 _x60"},
    ]
    down = {"series": 'up{job="training_metrics", instance="trainer:8000"}', "values": "1x5 0x60"}
    for planned, told in ((10_000, True), (160, False)):  # long before its end; at its end
        series = [*pace, down, {"series": f"llm_step{RUN}", "values": "0+30x5 _x60"},
                  {"series": f"llm_steps_planned{RUN}", "values": f"{planned}x5 _x60"}]  # fmt: skip
        tests.append(
            {
                "input_series": series,
                "alert_rule_test": [fires("TrainingDown", 5, found=False), fires("TrainingDown", 8, found=told)],
            }
        )
    behind = [(f"llm_step{RUN}", "0+30x60"), (f"llm_step_timestamp_seconds{RUN}", "-36000+60x60")]
    tests.append(  # a clock that is ten hours behind says nothing
        {
            "input_series": [{"series": series, "values": values} for series, values in behind],
            "alert_rule_test": [fires("NoProgress", 30, found=False)],
        }
    )
    for alert, series, before, after, labels in (
        ("NoProgress", [(f"llm_step{RUN}", "0+30x5 150x60")], 10, 20, None),
        ("CheckpointStale", [(f"llm_checkpoint_last_success_timestamp_seconds{RUN}", "0x200")], 59, 70, None),
        ("ThroughputDrop", [(f"llm_tokens_per_second{RUN}", "1000x60 500x60")], 60, 75, None),
        ("ExporterDown", [(f"up{MACHINE}", "1x5 0x60")], 5, 9, machine),
        ("DiskNearlyFull", [(f"machine_filesystem_free_bytes{root}", "50x5 4x60"),
                            (f"machine_filesystem_size_bytes{root}", "100x70")], 5, 9, mounted),
        ("MachineMemoryNearlyFull", [(f"machine_memory_available_bytes{MACHINE}", "50x5 4x60"),
                                     (f"machine_memory_total_bytes{MACHINE}", "100x70")], 5, 9, machine),
        ("GpuError", [(f"DCGM_FI_DEV_XID_ERRORS{gpu}", "0x5 79x60")], 5, 7, card),
        ("GpuMemoryErrors", [(f"DCGM_FI_DEV_ECC_DBE_VOL_TOTAL{gpu}", "0x5 2x60")], 5, 7, card),
        ("GpuHot", [(f"DCGM_FI_DEV_GPU_TEMP{gpu}", "70x5 91x60")], 5, 12, card),
    ):  # fmt: skip
        tests.append({
            "input_series": [{"series": name, "values": values} for name, values in series],
            "alert_rule_test": [fires(alert, before, found=False), fires(alert, after, labels=labels)],
        })  # fmt: skip
    for alert, counter, label, value in (("SinkFails", "llm_sink_failures_total", "sink", "wandb"),
                                         ("Recovery", "llm_events_total", "event", "recovery")):  # fmt: skip
        labels = {"run": "r1", "job": "training_metrics", "instance": "trainer:8000", label: value}
        tests.append({
            "input_series": [rising(counter, RUN.replace("}", f', {label}="{value}"}}'))],
            "alert_rule_test": [fires(alert, 2, found=False), fires(alert, 4, labels=labels)],
        })  # fmt: skip
    return tests


def test_every_rule_fires_on_its_fault_and_not_before(tmp_path: Path) -> None:
    promtool = tool("promtool")
    tests = rule_tests()
    assert {one["alertname"] for test in tests for one in test["alert_rule_test"]} == {rule.alert for rule in RULES}
    named = {"rule_files": [str(DEPLOY / "prometheus" / "alerts.yml")], "evaluation_interval": "1m"}
    (tmp_path / "tests.yml").write_text(
        yaml.safe_dump({**named, "tests": [{"interval": "1m", **one} for one in tests]})
    )
    assert "SUCCESS" in checked(promtool, "check", "rules", DEPLOY / "prometheus" / "alerts.yml")
    assert "SUCCESS" in checked(promtool, "test", "rules", tmp_path / "tests.yml")


def test_the_page_on_alerts_lists_every_rule() -> None:
    page = (REPOSITORY / "docs" / "prometheus.md").read_text(encoding="utf-8")
    assert not [rule.alert for rule in RULES if f"| `{rule.alert}` | {rule.severity} | {rule.summary}" not in page]


def test_targets_of_exporters_are_told_from_runs_by_the_label_that_publishes_them() -> None:
    config = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    for job in config["scrape_configs"]:
        assert job["relabel_configs"][0]["source_labels"] == [f"{META}kind"]


def test_a_board_with_a_metric_that_no_row_names_shows_it_in_a_row_of_its_own() -> None:
    from headwater.monitor.grafana import REST, _rows

    board = Board(
        "u", "t", "run", "step", tuple(METRICS.values()), (("Loss", (Chart("Loss", "1", (Query("<loss>{@}", ""),)),)),)
    )
    rows = dict(_rows(board))
    assert list(rows) == ["Loss", REST]
    assert len(rows[REST]) == len([one for one in METRICS.values() if one.prometheus]) - 1
