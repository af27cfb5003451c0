"""Files that start a recipe's training on a cluster: a Slurm batch script, or Kubernetes manifests.

In: a recipe, its machines, names and limits of the cluster. Out: a folder with the recipe and what submits it. One
torchrun a node starts a process a GPU; nodes meet by torchrun's c10d rendezvous at the first of them. Some time before
the job's end all ranks are told, save, and the job queues again.

    write_slurm(loaded, Path("job"), ClusterJob(nodes=64, ranks_per_node=8, name="gpt3"))
"""

from __future__ import annotations

import math
import re
import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from headwater.core.errors import InputError, UserError
from headwater.core.files import atomic_write
from headwater.core.recipe import Loaded
from headwater.monitor.alerts_rules import TRAINING_JOB
from headwater.monitor.config import PrometheusConfig
from headwater.pipeline.schema import Recipe

RECIPE = "recipe.yaml"
SLURM = "job.sbatch"
KUBERNETES = "job.yaml"
PORT = 29500
WARNED_SECONDS = 600
"""Time for ranks to finish a step and save, before the job's end and before a pod is killed."""

DEFAULT_LIMIT = "24:00:00"
SHM_GIBIBYTES = 64


@dataclass(frozen=True)
class ClusterJob:
    """What a job asks of a cluster. `time_limit` as Slurm writes it; `image` a container; `workspace` as nodes see it;
    `gpus` False for CPU-only nodes."""

    name: str
    nodes: int
    ranks_per_node: int
    gpus: bool = True
    workspace: str = "workspace"
    time_limit: str | None = None
    partition: str | None = None
    account: str | None = None
    image: str | None = None
    claim: str | None = None


def job_for(loaded: Loaded[Recipe], cluster: str | None, per_node: int | None, **options: Any) -> ClusterJob:
    """The job of a recipe's layout. Ranks of a node: `per_node`, else the cluster's GPUs a node (`cluster`, or the
    recipe's own), else 8.

    Raises UserError if the layout does not fill whole nodes or the cluster is too small.
    """
    from headwater.plan.cluster import parse

    recipe = loaded.config
    ranks, where = recipe.parallel.ranks, "parallel"
    named = cluster or recipe.cluster
    machines = parse(named) if named else None
    each = per_node or (machines.gpus_per_node if machines is not None else 8)
    if each < 1:
        raise InputError(f"{each} ranks a node", where="--per-node", mend="at least one")
    each = min(each, ranks)
    if ranks % each:
        fitting = ", ".join(str(n) for n in range(each, 0, -1) if ranks % n == 0)
        raise UserError(
            f"{ranks:,} ranks do not fill nodes of {each}",
            where=where,
            mend=f"choose a layout whose ranks divide by {each}, or --per-node {fitting.split(',')[0]}",
        )
    nodes = ranks // each
    if machines is not None and nodes > machines.nodes:
        raise UserError(
            f"the layout needs {nodes:,} nodes of {each}, and {named} has {machines.nodes:,}",
            where=where,
            mend=f"choose a layout of at most {machines.nodes * each:,} ranks, or name another cluster",
        )
    domain = max(each, machines.domain if machines is not None else 0)
    if recipe.parallel.tp > domain:
        raise UserError(
            f"tensor parallelism over {recipe.parallel.tp} ranks leaves the fast links, which join {domain}",
            where="parallel.tp",
            mend=f"set tp to at most {domain}",
        )
    return ClusterJob(
        name=re.sub(r"[^a-z0-9-]+", "-", recipe.name.lower()).strip("-")[:40] or "run",
        nodes=nodes,
        ranks_per_node=each,
        gpus=recipe.train.device != "cpu",
        **{name: value for name, value in options.items() if value is not None},
    )


def torchrun(job: ClusterJob, rendezvous: str, run_id: str, recipe: str, *, max_restarts: int) -> list[str]:
    """The command that each node runs; words may hold shell variables."""
    return [
        "torchrun",
        f"--nnodes={job.nodes}",
        f"--nproc-per-node={job.ranks_per_node}",
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint={rendezvous}",
        f"--rdzv-id={run_id}",
        f"--max-restarts={max_restarts}",
        "--signals-to-handle=SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1",
        f"--shutdown-timeout={WARNED_SECONDS}",
        "--no-python",
        "headwater",
        "train",
        recipe,
        "--workspace",
        job.workspace,
    ]


def write_slurm(loaded: Loaded[Recipe], out: Path, job: ClusterJob) -> list[Path]:
    """Write the recipe and `job.sbatch`; the files written."""
    layout = loaded.config.parallel
    place = shlex.quote(str(out.absolute()))
    command = torchrun(
        job, f'"$head:{PORT}"', '"$SLURM_JOB_ID-$SLURM_RESTART_COUNT"', f"{place}/{RECIPE}",
        max_restarts=layout.max_restarts,
    )  # fmt: skip
    command[-1] = shlex.quote(job.workspace)
    extra = [f"#SBATCH --partition={job.partition}"] if job.partition else []
    extra += [f"#SBATCH --account={job.account}"] if job.account else []
    extra += [f"#SBATCH --gpus-per-node={job.ranks_per_node}"] if job.gpus else []
    container = ""
    if job.image:
        mounts = f"{place},{shlex.quote(job.workspace)}" if job.workspace.startswith("/") else place
        container = f" --container-image={shlex.quote(job.image)} --container-mounts={mounts}"
    lines = [
        "#!/bin/bash",
        f"# {layout.describe()}",
        f"# Submit: sbatch {SLURM}    Made by `headwater launch`; the recipe beside it is what is trained.",
        f"#SBATCH --job-name={job.name}",
        f"#SBATCH --nodes={job.nodes}",
        "#SBATCH --ntasks-per-node=1",
        "#SBATCH --exclusive",
        f"#SBATCH --time={job.time_limit or DEFAULT_LIMIT}",
        f"#SBATCH --chdir={Path.cwd()}",
        "#SBATCH --requeue",
        "#SBATCH --open-mode=append",
        f"#SBATCH --signal=B:USR1@{WARNED_SECONDS + 60}",
        f"#SBATCH --output={out.absolute()}/slurm-%j.log",
        *extra,
        "",
        "set -u",
        ': "${SLURM_RESTART_COUNT:=0}"; export SLURM_RESTART_COUNT',
        'head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
        "export OMP_NUM_THREADS=${OMP_NUM_THREADS:-8}",
        "",
        "# Slurm warns this script, srun hands the signal to torchrun, torchrun to all ranks: they save and end.",
        "warned=",
        "trap 'warned=1; kill -USR1 \"$step\" 2>/dev/null' USR1 TERM",
        "",
        f"srun --kill-on-bad-exit=1{container} \\",
        *_folded(command),
        "step=$!",
        'wait "$step"; code=$?',
        'while kill -0 "$step" 2>/dev/null; do wait "$step"; code=$?; done    # a signal ends a wait early',
        "",
        'if [ -n "$warned" ] && [ "$code" -ne 0 ]; then',
        '  scontrol requeue "$SLURM_JOB_ID"    # goes on from the checkpoint it has just saved',
        "fi",
        'exit "$code"',
        "",
    ]
    return _write(out, {RECIPE: _recipe_text(loaded), SLURM: "\n".join(lines)})


def _folded(command: list[str]) -> list[str]:
    """The words of a command, in the background, some to a line."""
    split = command.index("--no-python")
    first, second = " ".join(command[: split + 1]), " ".join(command[split + 1 :])
    return [f"  {first} \\", f"  {second} &"]


def write_kubernetes(loaded: Loaded[Recipe], out: Path, job: ClusterJob) -> list[Path]:
    """Write the recipe and `job.yaml`: a headless service, the recipe as a config map, an indexed job of a pod a node;
    with `monitor.prometheus` a service that leads Prometheus to the first pod, whose rank 0 has the endpoint.

    UserError without an image or a claim for the workspace.
    """
    if not job.image or not job.claim:
        missing = "--image" if not job.image else "--claim"
        raise UserError(
            f"pods need {missing}",
            where="--k8s",
            mend="name the image built from the Dockerfile, and a persistent volume claim that all pods can write to",
        )
    loaded = _reachable(loaded)
    layout, endpoint = loaded.config.parallel, loaded.config.monitor.prometheus
    labels = {"app.kubernetes.io/name": "headwater", "app.kubernetes.io/instance": job.name}
    command = torchrun(
        job, f"{job.name}-0.{job.name}:{PORT}", job.name, f"/recipe/{RECIPE}", max_restarts=layout.max_restarts
    )
    container: dict[str, Any] = {
        "name": "ranks",
        "image": job.image,
        "command": command,
        "ports": [{"containerPort": PORT, "name": "rendezvous"}],
        "volumeMounts": [
            {"name": "workspace", "mountPath": job.workspace},
            {"name": "recipe", "mountPath": "/recipe"},
            {"name": "shm", "mountPath": "/dev/shm"},
        ],
    }
    if endpoint.enabled:
        container["ports"].append({"containerPort": endpoint.port, "name": "metrics"})
    if job.gpus:
        container["resources"] = {"limits": {"nvidia.com/gpu": job.ranks_per_node}}
    pod = {
        "subdomain": job.name,
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": WARNED_SECONDS,
        "containers": [container],
        "volumes": [
            {"name": "workspace", "persistentVolumeClaim": {"claimName": job.claim}},
            {"name": "recipe", "configMap": {"name": f"{job.name}-recipe"}},
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": f"{SHM_GIBIBYTES}Gi"}},
        ],
    }
    if job.nodes > 1:  # a pod a node
        term = {"labelSelector": {"matchLabels": labels}, "topologyKey": "kubernetes.io/hostname"}
        pod["affinity"] = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    documents = [
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": job.name, "labels": labels},
            "spec": {
                "clusterIP": "None",
                "publishNotReadyAddresses": True,
                "selector": labels,
                "ports": [{"name": "rendezvous", "port": PORT}],
            },
        },
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": f"{job.name}-recipe", "labels": labels},
            "data": {RECIPE: _recipe_text(loaded)},
        },
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": job.name, "labels": labels},
            "spec": {
                "completionMode": "Indexed",
                "completions": job.nodes,
                "parallelism": job.nodes,
                "backoffLimit": max(6, 3 * job.nodes),
                "template": {"metadata": {"labels": labels}, "spec": pod},
            },
        },
    ]
    if endpoint.enabled:
        documents.append(_metrics_service(job.name, labels, endpoint.port))
    if job.time_limit:
        documents[2]["spec"]["activeDeadlineSeconds"] = seconds(job.time_limit)  # type: ignore[index]
    head = f"# {layout.describe()}\n# Submit: kubectl apply -f {KUBERNETES}    Made by `headwater launch`.\n"
    text = head + "---\n".join(yaml.dump(item, Dumper=_Plain, sort_keys=False, width=120) for item in documents)
    return _write(out, {RECIPE: _recipe_text(loaded), KUBERNETES: text})


def _reachable(loaded: Loaded[Recipe]) -> Loaded[Recipe]:
    """In a pod, loopback is reached by nothing: an endpoint that is asked for listens on all the pod's addresses."""
    monitor = loaded.config.monitor
    if not monitor.prometheus.enabled or monitor.prometheus.host != PrometheusConfig().host:
        return loaded
    endpoint = monitor.prometheus.model_copy(update={"host": "0.0.0.0"})
    config = loaded.config.model_copy(update={"monitor": monitor.model_copy(update={"prometheus": endpoint})})
    return replace(loaded, config=config)


def _metrics_service(name: str, labels: dict[str, str], port: int) -> dict[str, Any]:
    """What Prometheus finds by its annotations (`deploy/prometheus/kubernetes.yml`), and nothing but the first pod."""
    annotations = {"scrape": "true", "port": str(port), "path": "/metrics", "job": TRAINING_JOB}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": f"{name}-metrics",
            "labels": labels,
            "annotations": {f"prometheus.io/{key}": value for key, value in annotations.items()},
        },
        "spec": {
            "selector": {**labels, "batch.kubernetes.io/job-completion-index": "0"},
            "ports": [{"name": "metrics", "port": port}],
        },
    }


class _Plain(yaml.SafeDumper):
    """YAML as people write manifests: nothing by reference, longer text as it is."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)


_Plain.add_representer(str, _text)


def seconds(limit: str) -> int:
    """Seconds of `days-hours:minutes:seconds`, `hours:minutes:seconds`, `minutes:seconds` or `minutes` (Slurm's ways).
    InputError for anything else."""
    match = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", limit.strip())
    if match is None:
        raise InputError(f"{limit!r} is no time limit", where="--time", mend="give it as hours:minutes:seconds")
    days, *parts = match.groups()
    given = [int(part) for part in parts if part is not None]
    if days is not None:  # days-hours[:minutes[:seconds]]
        hours, minutes, rest = [*given, 0, 0][:3]
    elif len(given) == 3:
        hours, minutes, rest = given
    else:  # minutes[:seconds]
        hours, minutes, rest = 0, *[*given, 0][:2]
    total = ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + rest
    if total <= WARNED_SECONDS + 60:
        least = math.ceil((WARNED_SECONDS + 60) / 60)
        raise InputError(
            f"a limit of {limit} leaves no time to train: ranks are told to save {least} minutes before",
            where="--time",
            mend="give a longer one",
        )
    return total


def _recipe_text(loaded: Loaded[Recipe]) -> str:
    from headwater.pipeline.training import recipe_yaml

    return recipe_yaml(loaded.config)


def _write(out: Path, files: dict[str, str]) -> list[Path]:
    out.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        atomic_write(out / name, text.encode())
    return [out / name for name in files]
