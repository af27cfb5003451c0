"""The files of `deploy/`, made from one source: what Prometheus scrapes and alerts on, what Grafana shows.

In: addresses of trainers, exporters, Alertmanager and the webhook bridge. Out: `files()`, {path below deploy/: text},
or the folder itself:

    python -m headwater.monitor.deploy_files                                    # deploy/ as it is in the repository
    python -m headwater.monitor.deploy_files --out here --trainer localhost:8000 --exporter localhost:9100 \\
        --alertmanager localhost:9093 --bridge localhost:9095 --targets workspace/runs/prometheus-targets
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import yaml

from headwater.core.files import atomic_write
from headwater.monitor.alerts import PORT as BRIDGE_PORT
from headwater.monitor.alerts_rules import MACHINE_JOB, TRAINING_JOB, rule_groups
from headwater.monitor.config import PrometheusConfig
from headwater.monitor.endpoints import META
from headwater.monitor.exporter import PORT as EXPORTER_PORT
from headwater.monitor.grafana import dashboards

HEAD = "# Made by `python -m headwater.monitor.deploy_files`; change the registry or that module, not this file.\n"
SCRAPE_SECONDS = 15
TRAINER_PORT = int(PrometheusConfig.model_fields["port"].default)
DASHBOARDS = "/var/lib/grafana/dashboards"


@dataclass(frozen=True)
class Places:
    """Where things are, as Prometheus and Alertmanager reach them; the defaults are the names in docker-compose.yml."""

    trainer: str = f"trainer:{TRAINER_PORT}"
    exporter: str = f"gpu-exporter:{EXPORTER_PORT}"
    alertmanager: str = "alertmanager:9093"
    bridge: str = f"alerts:{BRIDGE_PORT}"
    prometheus: str = "prometheus:9090"
    targets: str = "/var/lib/headwater/targets"


def files(places: Places | None = None) -> dict[str, str]:
    """Text of every generated file, by its path below `deploy/`."""
    places = places or Places()
    made: dict[str, Any] = {
        "prometheus/prometheus.yml": prometheus_config(places),
        "prometheus/alerts.yml": rule_groups(),
        "prometheus/kubernetes.yml": kubernetes_config(places),
        "alertmanager/alertmanager.yml": alertmanager_config(places),
        "grafana/provisioning/datasources/prometheus.yml": {
            "apiVersion": 1,
            "datasources": [
                {"name": "Prometheus", "uid": "prometheus", "type": "prometheus", "access": "proxy",
                 "url": f"http://{places.prometheus}", "isDefault": True,
                 "jsonData": {"timeInterval": f"{SCRAPE_SECONDS}s"}}
            ],
        },
        "grafana/provisioning/dashboards/headwater.yml": {
            "apiVersion": 1,
            "providers": [
                {"name": "headwater", "folder": "Headwater", "type": "file", "allowUiUpdates": True,
                 "options": {"path": DASHBOARDS}}
            ],
        },
    }  # fmt: skip
    texts = {name: HEAD + _yaml(value) for name, value in made.items()}
    texts["kubernetes/exporter.yml"] = HEAD + "---\n".join(map(_yaml, exporter_manifests()))
    for name, board in dashboards().items():
        texts[f"grafana/dashboards/{name}"] = json.dumps(board, indent=1, ensure_ascii=False) + "\n"
    return texts


def _yaml(value: Any) -> str:
    apart = json.loads(json.dumps(value))  # equal parts are then written out, not referred to
    return yaml.safe_dump(apart, sort_keys=False, width=1000, allow_unicode=True)


def prometheus_config(places: Places) -> dict[str, Any]:
    """Both jobs at their stated addresses, and every run and exporter that tells where it is by a target file."""
    return {
        **_common(places),
        "scrape_configs": [
            {
                "job_name": TRAINING_JOB,
                "static_configs": [{"targets": [places.trainer]}],
                "file_sd_configs": [{"files": [f"{places.targets}/*.json"], "refresh_interval": "15s"}],
                # The folder holds exporters as well, whose job is the next.
                "relabel_configs": [_of_kind("drop", "exporter")],
            },
            {
                "job_name": MACHINE_JOB,
                "static_configs": [{"targets": [places.exporter], "labels": {f"{META}kind": "exporter"}}],
                "file_sd_configs": [{"files": [f"{places.targets}/*.json"], "refresh_interval": "15s"}],
                "relabel_configs": [_of_kind("keep", "exporter")],
            },
        ],
    }


def kubernetes_config(places: Places) -> dict[str, Any]:
    """In a Kubernetes cluster: every service that `headwater launch --k8s` marked, by its annotations."""
    annotation = "__meta_kubernetes_service_annotation_prometheus_io_"
    return {
        **_common(places),
        "scrape_configs": [
            {
                "job_name": job,
                "kubernetes_sd_configs": [{"role": "endpoints"}],
                "relabel_configs": [
                    {"source_labels": [f"{annotation}scrape"], "action": "keep", "regex": "true"},
                    {"source_labels": [f"{annotation}job"], "action": "keep", "regex": job},
                    {
                        "source_labels": ["__address__", f"{annotation}port"],
                        "regex": r"(.+?)(?::\d+)?;(\d+)",
                        "replacement": "$1:$2",
                        "target_label": "__address__",
                    },
                    {"source_labels": ["__meta_kubernetes_namespace"], "target_label": "namespace"},
                ],
            }
            for job in (TRAINING_JOB, MACHINE_JOB)
        ],
    }


def exporter_manifests() -> list[dict[str, Any]]:
    """Kubernetes: an exporter on every node, and the service by which Prometheus finds them."""
    labels = {"app.kubernetes.io/name": "headwater-exporter"}
    annotations = {"scrape": "true", "port": str(EXPORTER_PORT), "path": "/metrics", "job": MACHINE_JOB}
    container = {
        "name": "exporter",
        "image": "headwater",
        "command": ["headwater", "exporter", "--host", "0.0.0.0", "--port", str(EXPORTER_PORT)],
        "ports": [{"name": "metrics", "containerPort": EXPORTER_PORT}],
        # The NVIDIA runtime then shows all GPUs of the node, and takes none of them away from jobs.
        "env": [
            {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"},
            {"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "utility"},
        ],
        "resources": {"requests": {"cpu": "20m", "memory": "128Mi"}, "limits": {"memory": "512Mi"}},
        "securityContext": {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True},
    }
    pod = {
        "hostNetwork": True,  # else the network figures would be the pod's
        "automountServiceAccountToken": False,
        "tolerations": [{"operator": "Exists", "effect": "NoSchedule"}],
        "containers": [container],
    }
    return [
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {
                "name": "headwater-exporter",
                "labels": labels,
                "annotations": {f"prometheus.io/{key}": value for key, value in annotations.items()},
            },
            "spec": {
                "clusterIP": "None",
                "selector": labels,
                "ports": [{"name": "metrics", "port": EXPORTER_PORT}],
            },
        },
        {
            "apiVersion": "apps/v1",
            "kind": "DaemonSet",
            "metadata": {"name": "headwater-exporter", "labels": labels},
            "spec": {
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": pod},
            },
        },
    ]


def alertmanager_config(places: Places) -> dict[str, Any]:
    """All alerts of a run in one message, to the webhook bridge `headwater alerts`."""
    return {
        "route": {
            "receiver": "headwater",
            "group_by": ["run", "instance"],
            "group_wait": "15s",
            "group_interval": "1m",
            "repeat_interval": "4h",
        },
        "receivers": [
            {
                "name": "headwater",
                "webhook_configs": [{"url": f"http://{places.bridge}/", "send_resolved": True, "max_alerts": 50}],
            }
        ],
        "inhibit_rules": [
            # A run that is down makes no progress either.
            {
                "source_matchers": ['alertname="TrainingDown"'],
                "target_matchers": ['alertname=~"NoProgress|CheckpointStale|ThroughputDrop"'],
                "equal": ["run"],
            }
        ],
    }


def _common(places: Places) -> dict[str, Any]:
    return {
        "global": {"scrape_interval": f"{SCRAPE_SECONDS}s", "evaluation_interval": f"{SCRAPE_SECONDS}s"},
        "rule_files": ["alerts.yml"],
        "alerting": {"alertmanagers": [{"static_configs": [{"targets": [places.alertmanager]}]}]},
    }


def _of_kind(action: str, name: str) -> dict[str, Any]:
    return {"source_labels": [f"{META}kind"], "action": action, "regex": name}


def write(out: Path, places: Places | None = None) -> list[Path]:
    """Write all files below `out`; which those are."""
    written = []
    for name, text in files(places).items():
        path = out / name
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(path, text.encode())
        written.append(path)
    return written


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Write the files of Prometheus, Alertmanager and Grafana.")
    parser.add_argument("--out", type=Path, default=Path("deploy"), help="folder to write into [default: deploy]")
    for place in fields(Places):
        parser.add_argument(f"--{place.name}", default=place.default, help=f"[default: {place.default}]")
    given = parser.parse_args(arguments)
    places = Places(**{place.name: getattr(given, place.name) for place in fields(Places)})
    for path in write(given.out, places):
        sys.stdout.write(f"{path}\n")


if __name__ == "__main__":
    main()
