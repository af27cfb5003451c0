"""`headwater launch RECIPE --slurm|--k8s --out DIR`: files that start a training on a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headwater.cli.common import Debug, Json, Set, finish
from headwater.core.errors import UserError


def command(
    recipe: Annotated[Path, typer.Argument(help="The recipe, a YAML or JSON file.", show_default=False)],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the files; nodes must see it.")],
    slurm: Annotated[bool, typer.Option("--slurm", help="A batch script for sbatch.")] = False,
    k8s: Annotated[bool, typer.Option("--k8s", help="Manifests for kubectl.")] = False,
    cluster: Annotated[
        str | None,
        typer.Option(help="GPU:PER_NODExNODES or a cluster file [default: the recipe's].", show_default=False),
    ] = None,
    per_node: Annotated[
        int | None, typer.Option(help="Ranks (GPUs) a node [default: the cluster's, or 8].", show_default=False)
    ] = None,
    workspace: Annotated[
        str | None,
        typer.Option(
            "--workspace", "-w", help="The workspace as nodes see it [default: the recipe's].", show_default=False
        ),
    ] = None,
    time: Annotated[
        str | None,
        typer.Option(help="Limit of a job [default: Slurm 24:00:00; then it queues again].", show_default=False),
    ] = None,
    partition: Annotated[str | None, typer.Option(help="Slurm: the partition.", show_default=False)] = None,
    account: Annotated[str | None, typer.Option(help="Slurm: the account.", show_default=False)] = None,
    image: Annotated[
        str | None,
        typer.Option(help="Container to run in (Slurm: with Pyxis); see the Dockerfile.", show_default=False),
    ] = None,
    claim: Annotated[
        str | None, typer.Option(help="Kubernetes: the volume claim of the workspace.", show_default=False)
    ] = None,
    set_: Set = None,
    json_: Json = False,
    debug: Debug = False,
) -> None:
    """Write what starts a recipe's training on many machines.

    The recipe's layout says how many nodes. Stages before training are best made beforehand, on one machine:
    `headwater run RECIPE --only dataset` and those before it.
    """
    from headwater.pipeline.cluster_files import job_for, seconds, write_kubernetes, write_slurm
    from headwater.pipeline.schema import load

    if slurm == k8s:
        raise UserError("one of --slurm and --k8s is needed", where="headwater launch", mend="name the kind of cluster")
    loaded = load(recipe, set_ or ())
    if time is not None:
        seconds(time)
    place = workspace or str(loaded.config.workspace)
    if k8s and not place.startswith("/"):
        place = "/workspace"
    job = job_for(
        loaded, cluster, per_node, workspace=place if place.startswith("/") else str(Path(place).absolute()),
        time_limit=time, partition=partition, account=account, image=image, claim=claim,
    )  # fmt: skip
    written = (write_slurm if slurm else write_kubernetes)(loaded, out, job)
    facts = {
        "nodes": job.nodes,
        "ranks_per_node": job.ranks_per_node,
        "ranks": job.nodes * job.ranks_per_node,
        "files": [str(path) for path in written],
    }
    submit = f"sbatch {written[-1]}" if slurm else f"kubectl apply -f {written[-1]}"
    lines = [f"{loaded.config.parallel.describe()}: {job.nodes:,} nodes of {job.ranks_per_node}"]
    lines += [f"  {path}" for path in written]
    finish(facts, "\n".join([*lines, f"submit it: {submit}"]), as_json=json_)
