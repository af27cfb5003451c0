"""A full disk is a clear error, before or while it fills, and what was finished is kept."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from headwater.core.artifacts import ArtifactStore
from headwater.core.errors import DiskSpaceError
from headwater.core.files import free_bytes, free_bytes_check, gib, space

FULL_DISK = """
import resource, sys
from pathlib import Path
from headwater.core.artifacts import ArtifactStore
from headwater.core.errors import DiskSpaceError
limit, way = int(sys.argv[2]), sys.argv[3]
if limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
with ArtifactStore(Path(sys.argv[1])).writer("demo", "f" * 16, version=1, identity={}, inputs={}) as out:
    out.done("small.bin") or out.write("small.bin", b"s" * 1000)
    try:
        if way == "write":
            out.write("big.bin", bytes(400_000))
        elif way == "shard":
            with out.shard("big.bin") as path:
                path.write_bytes(bytes(400_000))
        else:
            import pyarrow as pa, pyarrow.parquet as pq
            with out.shard("big.bin") as path:
                pq.write_table(pa.table({"a": range(300_000)}), path, compression="none")
    except DiskSpaceError as error:
        print(out.shards(), sorted(path.name for path in out.dir.iterdir()), error, file=sys.stderr)
        sys.exit(28)
    print(out.resumed, out.commit({}).path)
"""


def full_disk(workspace: Path, limit: int, way: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(workspace), str(limit), way], capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("way", ["write", "shard", "parquet"])
def test_a_file_that_cannot_grow_is_a_disk_space_error_and_the_rest_is_kept(way: str, tmp_path: Path) -> None:
    failed = full_disk(tmp_path, 100_000, way)
    assert failed.returncode == 28, failed.stderr
    assert "['small.bin'] ['.sidecars', 'small.bin']" in failed.stderr
    assert "mend: free some space" in failed.stderr
    resumed = full_disk(tmp_path, 0, way)
    assert resumed.returncode == 0, resumed.stderr
    assert "['small.bin']" in resumed.stdout
    ArtifactStore(tmp_path).all("demo")[0].verify(deep=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small tmpfs needs root")
def test_a_full_file_system_is_a_disk_space_error_and_the_rest_is_kept(tmp_path: Path) -> None:
    disk, script = tmp_path / "disk", tmp_path / "full.py"
    disk.mkdir()
    script.write_text(FULL_DISK)
    run = f"{sys.executable} {script} {disk} 0 shard"
    mount = f"mount -t tmpfs -o size=200k none {disk} || exit 77"
    shell = f"{mount}; {run}; code=$?; mount -o remount,size=8m {disk}; {run} && exit $code"
    done = subprocess.run(["unshare", "-m", "sh", "-c", shell], capture_output=True, text=True, check=False)
    if done.returncode == 77:
        pytest.skip("this container may not mount a tmpfs")
    assert done.returncode == 28, done.stderr
    assert "No space left on device" in done.stderr
    assert "['small.bin']" in done.stdout


def test_disk_space_is_refused_before_it_is_used(tmp_path: Path) -> None:
    assert free_bytes(tmp_path / "not" / "yet" / "there") > 0
    free_bytes_check(tmp_path, 1, "the corpus")
    with pytest.raises(DiskSpaceError, match="the corpus needs about 1,000,000 TB"):
        free_bytes_check(tmp_path / "new", 10**18, "the corpus")


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (0, "0 bytes"),
        (812, "812 bytes"),
        (8_470_000, "8.47 MB"),
        (999_700_000, "1 GB"),
        (2.5e9, "2.5 GB"),
        (1.5e16, "15,000 TB"),
    ],
)
def test_room_is_told_so_that_a_small_disk_is_not_nothing(count: float, words: str) -> None:
    assert space(count) == words


def test_memory_is_told_in_powers_of_two() -> None:
    assert [gib(count) for count in (0, 3 << 29, 80 << 30, 2 << 40)] == [
        "0.00 GiB",
        "1.50 GiB",
        "80.0 GiB",
        "2,048.0 GiB",
    ]
