"""`headwater check cluster`: whether the machines are fit for a run, before it is started.

In: the ranks of a layout (started by torchrun or srun, or here), a workspace. Out: a `ClusterCheck`: figures a rank,
findings in words, each with what to do. Thresholds stand in this module.

    check_cluster(ParallelConfig(dp_shard=2, tp=2), Path("workspace"), reporter=reporter).text()
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from headwater.core.jsonl import parse_json
from headwater.core.progress import Reporter
from headwater.parallel.config import ParallelConfig
from headwater.pipeline.ranks import joined

if TYPE_CHECKING:
    from headwater.parallel.probe import Probe

CLOCK_SECONDS = 1.0
"""Clocks farther apart make times in records and logs hard to read together."""

SLOW_LINK_SHARE = 0.5
"""A group whose bandwidth is below this share of its axis' median waits for one bad link or card."""

TP_BANDWIDTH = 50e9
"""Bytes/s below which tensor parallelism on GPUs waits for its links: PCIe 5.0 x16 gives about 50 GB/s, NVLink more."""

WRITE_BANDWIDTH = 100e6
"""Bytes/s and rank below which checkpoints take long: 1 GB in ten seconds."""

FSYNC_SECONDS = 1.0
RANK = "headwater.pipeline.cluster_check"

Level = Literal["good", "warning", "bad"]


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at: what was found, and what to do if it is not good."""

    name: str
    level: Level
    found: str
    mend: str = ""


@dataclass(frozen=True)
class ClusterCheck:
    """All figures and findings. `fit`: nothing is bad; warnings are for a person to weigh."""

    layout: str
    findings: tuple[Finding, ...]
    probes: tuple[dict[str, Any], ...]

    @property
    def fit(self) -> bool:
        return all(finding.level != "bad" for finding in self.findings)

    def to_json(self) -> dict[str, Any]:
        return {
            "layout": self.layout,
            "fit": self.fit,
            "findings": [asdict(finding) for finding in self.findings],
            "ranks": list(self.probes),
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> ClusterCheck:
        return cls(value["layout"], tuple(Finding(**item) for item in value["findings"]), tuple(value["ranks"]))

    def text(self) -> str:
        """A table: a finding a line, with what to do below those that are not good."""
        marks = {"good": "ok", "warning": "warning", "bad": "BAD"}
        width = max(len(finding.name) for finding in self.findings)
        lines = [self.layout]
        for finding in self.findings:
            lines.append(f"  {finding.name:<{width}}  {marks[finding.level]:<7}  {finding.found}")
            if finding.mend:
                lines.append(f"  {'':<{width}}           {finding.mend}")
        lines.append("the cluster is fit for this layout" if self.fit else "the cluster is NOT fit for this layout")
        return "\n".join(lines)


def check_cluster(
    layout: ParallelConfig,
    workspace: Path,
    *,
    reporter: Reporter,
    device: str = "auto",
    megabytes: int = 64,
    checkpoint_bytes: int = 0,
) -> ClusterCheck:
    """Measure with the ranks that a launcher has started, or with ranks started here. Collective under a launcher.

    `checkpoint_bytes`: what one checkpoint of the run takes, for the question whether the disk holds two. UserError if
    the workspace is not shared, or this machine has too few GPUs for the layout.
    """
    if layout.ranks > 1 and not joined():
        return _started_here(layout, workspace, reporter, device, megabytes, checkpoint_bytes)
    from headwater.parallel.probe import probe
    from headwater.train.start import connected

    with connected(layout, device) as (mesh, ranks):
        workspace.mkdir(parents=True, exist_ok=True)
        probes = probe(mesh, ranks, workspace, megabytes=megabytes)
        findings = judge(probes, gpus=mesh.device.type == "cuda", checkpoint_bytes=checkpoint_bytes)
    return ClusterCheck(layout.describe(), tuple(findings), tuple(asdict(item) for item in probes))


def _started_here(
    layout: ParallelConfig, workspace: Path, reporter: Reporter, device: str, megabytes: int, checkpoint_bytes: int
) -> ClusterCheck:
    from headwater.core.files import atomic_write
    from headwater.core.jsonl import pretty_json
    from headwater.parallel.launch import launch_local
    from headwater.pipeline.ranks import check_machine

    check_machine(layout, device)
    with tempfile.TemporaryDirectory(prefix="headwater-check-") as name:
        folder = Path(name)
        job = {
            "layout": layout.model_dump(mode="json"),
            "workspace": str(workspace.absolute()),
            "device": device,
            "megabytes": megabytes,
            "checkpoint_bytes": checkpoint_bytes,
            "result": str(folder / "result.json"),
        }
        atomic_write(folder / "job.json", pretty_json(job))
        command = [sys.executable, "-m", RANK, str(folder / "job.json")]
        launch_local(command, ranks=layout.ranks, logs=folder / "logs", max_restarts=0, reporter=reporter)
        return ClusterCheck.from_json(parse_json((folder / "result.json").read_bytes()))


def judge(probes: Sequence[Probe], *, gpus: bool, checkpoint_bytes: int = 0) -> list[Finding]:
    """Findings from figures."""
    axes = [_link(probes, axis, gpus=gpus) for axis in probes[0].links]
    findings = [_versions(probes), *axes, _storage(probes)]
    if checkpoint_bytes:
        findings.append(_disk(probes, checkpoint_bytes))
    if len(probes) > 1:
        findings.append(_clocks(probes))
    least = min(probes, key=lambda item: item.free_memory_bytes)
    share = "" if len(probes) == 1 else f", least on rank {least.rank} ({least.host})"
    findings.append(Finding("memory", "good", f"{least.free_memory_bytes / 1e9:.1f} GB free{share}"))
    return findings


def _versions(probes: Sequence[Probe]) -> Finding:
    first = probes[0]
    for other in probes[1:]:
        for name, value in first.versions.items():
            if other.versions.get(name) != value:
                return Finding(
                    "versions",
                    "bad",
                    f"{name} is {value} on rank 0 ({first.host}) and {other.versions.get(name)} on rank {other.rank} "
                    f"({other.host})",
                    "install the same environment or container on all machines: results would depend on the rank",
                )
    shown = ", ".join(f"{name} {value}" for name, value in first.versions.items())
    hosts = len({item.host for item in probes})
    return Finding("versions", "good", f"{shown}; {_many(len(probes), 'rank')} on {_many(hosts, 'machine')}")


def _many(count: int, what: str) -> str:
    return f"{count:,} {what}{'s' * (count != 1)}"


def _link(probes: Sequence[Probe], axis: str, *, gpus: bool) -> Finding:
    links = {item.rank: item.links[axis] for item in probes}
    slowest = min(links, key=lambda rank: links[rank].bandwidth)
    usual = statistics.median(link.bandwidth for link in links.values())
    latency = max(link.latency_seconds for link in links.values())
    found = (
        f"{links[slowest].ranks} ranks, all-reduce {usual / 1e9:.2f} GB/s, slowest "
        f"{links[slowest].bandwidth / 1e9:.2f} (rank {slowest}); {latency * 1e6:,.0f} microseconds for one number"
    )
    if links[slowest].bandwidth < SLOW_LINK_SHARE * usual:
        return Finding(
            f"axis {axis}",
            "warning",
            found,
            f"rank {slowest} ({probes[slowest].host}) is less than half as fast as the others: look at its card, cable "
            "or neighbours, or leave the machine out",
        )
    if axis == "tp" and gpus and usual < TP_BANDWIDTH:
        return Finding(
            f"axis {axis}",
            "warning",
            found,
            f"below {TP_BANDWIDTH / 1e9:.0f} GB/s tensor parallelism waits for its links: keep tp inside NVLink, or "
            "use dp or pp in its place",
        )
    return Finding(f"axis {axis}", "good", found)


def _storage(probes: Sequence[Probe]) -> Finding:
    slow = min(probes, key=lambda item: item.storage.write_bandwidth)
    total = sum(item.storage.write_bandwidth for item in probes)
    lag = max(item.storage.fsync_seconds for item in probes)
    read = min(item.storage.read_bandwidth for item in probes)
    found = (
        f"written and synced {total / 1e6:,.0f} MB/s by all ranks together, slowest "
        f"{slow.storage.write_bandwidth / 1e6:,.0f} (rank {slow.rank}); read {read / 1e6:,.0f} MB/s a rank; "
        f"a small sync {lag * 1e3:,.1f} ms"
    )
    if slow.storage.write_bandwidth < WRITE_BANDWIDTH or lag > FSYNC_SECONDS:
        return Finding(
            "storage",
            "warning",
            found,
            f"checkpoints will be slow: below {WRITE_BANDWIDTH / 1e6:.0f} MB/s a rank or above {FSYNC_SECONDS:g} s a "
            "sync; use a faster file system for the workspace, or train.checkpoint.ephemeral_dir",
        )
    return Finding("storage", "good", found)


def _disk(probes: Sequence[Probe], checkpoint_bytes: int) -> Finding:
    from headwater.core.files import space

    free = min(item.free_disk_bytes for item in probes)
    found = f"{space(free)} free, one checkpoint takes about {space(checkpoint_bytes)}"
    if free < 2 * checkpoint_bytes:  # a new one is written before an old one goes
        return Finding("disk", "bad", found, "free some space, or choose another --workspace: two must fit")
    return Finding("disk", "good", found)


def _clocks(probes: Sequence[Probe]) -> Finding:
    worst = max(probes, key=lambda item: abs(item.clock_seconds))
    found = f"at most {abs(worst.clock_seconds) * 1e3:,.1f} ms apart (rank {worst.rank} on {worst.host})"
    if abs(worst.clock_seconds) > CLOCK_SECONDS:
        return Finding("clocks", "warning", found, "start a time service (chrony, ntpd) on all machines")
    return Finding("clocks", "good", found)


def _rank(job: dict[str, Any]) -> None:
    from headwater.core.files import atomic_write
    from headwater.core.jsonl import pretty_json
    from headwater.parallel.environment import World
    from headwater.parallel.rank_process import watched_rank

    layout = ParallelConfig.model_validate(job["layout"])
    world = World.from_env()
    result = Path(job["result"])
    with watched_rank(result.parent / "logs", world, timeout_seconds=layout.timeout_seconds):
        check = check_cluster(
            layout,
            Path(job["workspace"]),
            reporter=Reporter(quiet=True),
            device=job["device"],
            megabytes=job["megabytes"],
            checkpoint_bytes=job["checkpoint_bytes"],
        )
    if world.rank == 0:
        atomic_write(result, pretty_json(check.to_json()))


if __name__ == "__main__":
    _rank(parse_json(Path(sys.argv[1]).read_bytes()))
