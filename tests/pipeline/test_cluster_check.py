"""A cluster is looked at before a run: what is measured is real, what is wrong is said with what to do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from headwater.parallel.probe import Link, Probe, Storage
from headwater.pipeline.cluster_check import ClusterCheck, Finding, judge
from tests.conftest import RunCli

GOOD = Probe(
    rank=0,
    host="a",
    links={"tp": Link(2, 20e-6, 300e9)},
    storage=Storage(1e9, 2e9, 0.01),
    clock_seconds=0.0,
    free_memory_bytes=80 * 10**9,
    free_disk_bytes=10**12,
    versions={"torch": "2.13.0"},
)


def four(**changes: object) -> list[Probe]:
    """Four ranks on two machines, the last of them changed."""
    probes = [replace(GOOD, rank=rank, host="ab"[rank // 2]) for rank in range(4)]
    return [*probes[:3], replace(probes[3], **changes)]  # type: ignore[arg-type]


def found(probes: list[Probe], name: str, **options: object) -> Finding:
    return {finding.name: finding for finding in judge(probes, gpus=True, **options)}[name]  # type: ignore[arg-type]


def test_good_machines_are_fit() -> None:
    findings = judge(four(), gpus=True, checkpoint_bytes=10**9)
    assert {finding.level for finding in findings} == {"good"}
    assert [finding.name for finding in findings] == ["versions", "axis tp", "storage", "disk", "clocks", "memory"]


def test_what_is_wrong_is_named_with_its_rank_and_what_to_do() -> None:
    versions = found(four(versions={"torch": "2.12.0"}), "versions")
    assert versions.level == "bad"
    assert "torch is 2.13.0 on rank 0 (a) and 2.12.0 on rank 3 (b)" in versions.found
    slow = found(four(links={"tp": Link(2, 20e-6, 100e9)}), "axis tp")
    assert slow.level == "warning"
    assert "rank 3 (b) is less than half as fast" in slow.mend
    clocks = found(four(clock_seconds=-4.0), "clocks")
    assert clocks.level == "warning"
    assert "rank 3 on b" in clocks.found
    storage = found(four(storage=Storage(5e6, 1e9, 0.1)), "storage")
    assert storage.level == "warning"
    assert "rank 3" in storage.found
    disk = found(four(free_disk_bytes=10**9), "disk", checkpoint_bytes=6 * 10**8)
    assert disk.level == "bad"
    assert "two must fit" in disk.mend


def test_slow_links_matter_to_tensor_parallelism_on_gpus() -> None:
    probes = [replace(GOOD, rank=rank, links={"tp": Link(2, 1e-3, 1e9)}) for rank in range(2)]
    assert "NVLink" in found(probes, "axis tp").mend
    assert {finding.level for finding in judge(probes, gpus=False)} == {"good"}


def test_the_verb_measures_ranks_that_it_starts(run_cli: RunCli, tmp_path: Path) -> None:
    done = run_cli("check", "cluster", "--ranks", "2", "--workspace", tmp_path / "w", "--megabytes", "1", "--json")
    assert done.json["fit"] is True
    check = ClusterCheck.from_json(done.json)
    assert [item["rank"] for item in check.probes] == [0, 1]
    link = check.probes[1]["links"]["dp_replicate"]
    assert link["ranks"] == 2
    assert 0 < link["latency_seconds"] < 1
    assert link["bandwidth"] > 1e6
    assert check.text().splitlines()[-1] == "the cluster is fit for this layout"
    assert not list((tmp_path / "w").iterdir())


def test_a_layout_larger_than_the_machine_names_the_way_out(run_cli: RunCli, tmp_path: Path) -> None:
    refused = run_cli("check", "cluster", "--ranks", "1000", "--workspace", tmp_path, code=2)
    assert "headwater launch" in refused.stderr
