"""What starts a training on a cluster: scripts that bash accepts, manifests that parse, as many nodes as needed."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from headwater.core.errors import InputError, UserError
from headwater.pipeline.cluster_files import RECIPE, ClusterJob, job_for, seconds, write_kubernetes, write_slurm
from headwater.pipeline.schema import load
from tests.conftest import REPOSITORY, RunCli

GPT3 = REPOSITORY / "recipes" / "gpt3-175b-3d.yaml"
TWO_RANKS = [
    f"parallel.{setting}"
    for setting in ("dp_shard=1", "dp_replicate=2", "tp=1", "pp=1", "schedule=1f1b", "virtual_stages=1", "zero_stage=0")
]


def test_slurm_gets_the_layouts_nodes_and_a_script_that_bash_accepts(tmp_path: Path) -> None:
    loaded = load(GPT3)
    files = write_slurm(loaded, tmp_path, job_for(loaded, None, 8, partition="gpu", account="lab"))
    script = files[-1].read_text()
    subprocess.run(["bash", "-n", str(files[-1])], check=True)
    assert "#SBATCH --nodes=512\n" in script
    assert "--nnodes=512 --nproc-per-node=8" in script
    assert "#SBATCH --gpus-per-node=8" in script
    assert "#SBATCH --requeue" in script
    assert "#SBATCH --partition=gpu" in script
    assert "#SBATCH --account=lab" in script
    assert load(tmp_path / RECIPE).config == loaded.config


SLURM = {
    "scontrol": 'echo "scontrol $*" >> "$SAID"; [ "$1" = show ] && printf "node-a\\nnode-b\\n"; exit 0',
    "srun": 'shift; exec "$@"',
    "torchrun": 'trap \'echo "told to save" >> "$SAID"; exit 130\' USR1; echo "$*" >> "$SAID"; '
    "for _ in $(seq 200); do sleep 0.05; done",
}
"""A Slurm of one machine: what the script calls, in a few words."""


def test_the_script_hands_on_the_warning_and_queues_again(tmp_path: Path) -> None:
    loaded = load(GPT3, TWO_RANKS)
    script = write_slurm(loaded, tmp_path, job_for(loaded, None, 1))[-1]
    tools = tmp_path / "bin"
    tools.mkdir()
    for name, text in SLURM.items():
        (tools / name).write_text(f"#!/bin/bash\n{text}\n")
        (tools / name).chmod(0o755)
    said = tmp_path / "said"
    env = {"PATH": f"{tools}:{os.environ['PATH']}", "SAID": str(said), "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "x"}
    process = subprocess.Popen(["bash", str(script)], env=env)
    while not (said.exists() and "--nnodes" in said.read_text()):
        assert process.poll() is None
    process.send_signal(10)
    assert process.wait(20) == 130
    lines = said.read_text()
    assert "--rdzv-endpoint=node-a:29500 --rdzv-id=7-0" in lines
    assert "told to save\nscontrol requeue 7\n" in lines


def test_kubernetes_gets_an_indexed_job_whose_pods_find_the_first(tmp_path: Path) -> None:
    loaded = load(GPT3)
    job = job_for(loaded, None, 8, image="registry.local/headwater:1", claim="disk", workspace="/workspace")
    files = write_kubernetes(loaded, tmp_path, job)
    service, config, jobs = yaml.safe_load_all(files[-1].read_text())
    spec = jobs["spec"]
    pod = spec["template"]["spec"]
    container = pod["containers"][0]
    assert (spec["completions"], spec["parallelism"], spec["completionMode"]) == (512, 512, "Indexed")
    assert container["resources"]["limits"] == {"nvidia.com/gpu": 8}
    name = jobs["metadata"]["name"]
    assert f"--rdzv-endpoint={name}-0.{name}:29500" in container["command"]
    assert pod["subdomain"] == service["metadata"]["name"] == name
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"].items() <= spec["template"]["metadata"]["labels"].items()
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounts == {"workspace": "/workspace", "recipe": "/recipe", "shm": "/dev/shm"}
    assert {volume["name"] for volume in pod["volumes"]} == set(mounts)
    (tmp_path / "copy.yaml").write_text(config["data"][RECIPE])
    assert load(tmp_path / "copy.yaml").config == loaded.config


def test_kubernetes_leads_prometheus_to_the_first_pod(tmp_path: Path) -> None:
    for enabled in (False, True):
        loaded = load(GPT3, [f"monitor.prometheus.enabled={enabled}".lower(), "monitor.prometheus.port=8123"])
        job = job_for(loaded, None, 8, image="registry.local/headwater:1", claim="workspace")
        files = write_kubernetes(loaded, tmp_path / str(enabled), job)
        documents = list(yaml.safe_load_all(files[-1].read_text()))
        services = [one for one in documents if one["kind"] == "Service"]
        assert len(services) == 1 + enabled
    annotations = services[1]["metadata"]["annotations"]
    assert annotations["prometheus.io/scrape"] == "true"
    assert annotations["prometheus.io/port"] == "8123"
    assert services[1]["spec"]["selector"]["batch.kubernetes.io/job-completion-index"] == "0"
    (config,) = [one for one in documents if one["kind"] == "ConfigMap"]
    assert yaml.safe_load(config["data"][RECIPE])["monitor"]["prometheus"]["host"] == "0.0.0.0"
    scrape = yaml.safe_load((REPOSITORY / "deploy" / "prometheus" / "kubernetes.yml").read_text())["scrape_configs"][0]
    wanted = [rule["source_labels"][0] for rule in scrape["relabel_configs"] if rule.get("action") == "keep"]
    found = {f"__meta_kubernetes_service_annotation_{re.sub(r'[./]', '_', name)}" for name in annotations}
    assert set(wanted) <= found
    assert scrape["job_name"] == annotations["prometheus.io/job"]


def test_layouts_that_do_not_fit_the_machines_are_refused() -> None:
    loaded = load(GPT3)
    with pytest.raises(UserError, match="do not fill nodes of 6"):
        job_for(loaded, None, 6)
    with pytest.raises(UserError, match="has 8"):
        job_for(loaded, "a100-80gb:8x8", None)
    with pytest.raises(UserError, match="leaves the fast links, which join 4"):
        job_for(loaded, "rtx4090:4x2000", None)
    assert job_for(loaded, "a100-80gb:8x512", None).nodes == 512
    assert job_for(load(GPT3, TWO_RANKS), None, 8) == ClusterJob(name="gpt3-175b-3d", nodes=1, ranks_per_node=2)


@pytest.mark.parametrize(
    ("limit", "expected"), [("1-00:00:00", 86400), ("24:00:00", 86400), ("90:30", 5430), ("90", 5400), ("1-6", 108000)]
)
def test_time_limits_read_as_slurm_writes_them(limit: str, expected: int) -> None:
    assert seconds(limit) == expected


@pytest.mark.parametrize("limit", ["soon", "", "5", "1:2:3:4"])
def test_senseless_time_limits_are_refused(limit: str) -> None:
    with pytest.raises(InputError):
        seconds(limit)


def test_the_verb_writes_and_says_how_to_submit(run_cli: RunCli, tmp_path: Path) -> None:
    done = run_cli("launch", GPT3, "--slurm", "--out", tmp_path / "job", "--json")
    assert (done.json["nodes"], done.json["ranks"]) == (512, 4096)
    refused = run_cli("launch", GPT3, "--k8s", "--out", tmp_path / "job", code=2)
    assert "--image" in refused.stderr


def test_the_image_copies_what_is_there() -> None:
    text = (REPOSITORY / "Dockerfile").read_text()
    copied = [word for line in re.findall(r"^COPY (.+)$", text, re.M) for word in line.split()[:-1]]
    assert copied
    assert all((REPOSITORY / name).exists() for name in copied)
