"""Artifacts: committed or resumable, never half; what a kill, damage or a second writer can do to them."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from headwater.core.artifacts import Artifact, ArtifactStore, ArtifactWriter, ShardFolder
from headwater.core.errors import CorruptArtifactError, InputError, LockedError, UserError
from headwater.core.files import TEMP_PREFIX, atomic_write, sha256_file
from headwater.core.stage import StageContext
from tests.conftest import REPOSITORY, Killer, clean_environment
from tests.core import staged_writer
from tests.core.staged_writer import KEY


def snapshot(folder: Path) -> dict[str, str]:
    """Every file of an artifact but its provenance, by content."""
    return {
        path.relative_to(folder).as_posix(): sha256_file(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "provenance.json"
    }


def open_writer(workspace: Path, key: str = "0123456789abcdef") -> ArtifactWriter:
    return ArtifactStore(workspace).writer("demo", key, version=1, identity={"a": 1}, inputs={"raw": "ff" * 16})


def committed(workspace: Path, key: str = "0123456789abcdef") -> Artifact:
    with open_writer(workspace, key) as out:
        out.write("a/one.bin", b"one", rows=1)
        out.write("two.bin", b"two")
        return out.commit({"rows": 1})


def command(workspace: Path, kind: str) -> list[str]:
    """A run of the staged writer in a process of its own."""
    script = "import sys; from tests.core import staged_writer as s; s.run(s.Path(sys.argv[1]), sys.argv[2])"
    return [sys.executable, "-c", script, str(workspace), kind]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return snapshot(staged_writer.run(tmp_path_factory.mktemp("reference"), "inline", slow=False).path)


@pytest.mark.parametrize(("kind", "kills"), [("inline", 12), ("process", 8)])
def test_a_writer_killed_at_random_moments_commits_the_same_bytes(
    kind: str, kills: int, tmp_path: Path, killer: Killer, reference: dict[str, str]
) -> None:
    hits = killer.kill_until_done(command(tmp_path, kind), kills=kills, shortest=0.1, longest=0.5, cwd=REPOSITORY)
    assert hits > 0
    artifact = ArtifactStore(tmp_path).find("staged", KEY)
    assert artifact is not None
    artifact.verify(deep=True)
    assert snapshot(artifact.path) == reference, f"seed {killer.seed}, {hits} kills"
    assert ArtifactStore(tmp_path).partial("staged") == []
    assert list(artifact.path.rglob(TEMP_PREFIX + "*")) == []


@pytest.mark.soak
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("kind", ["inline", "process"])
def test_two_hundred_kills_never_change_a_byte(
    kind: str, tmp_path: Path, killer: Killer, reference: dict[str, str]
) -> None:
    hits = rounds = 0
    while hits < 100:
        rounds += 1
        workspace = tmp_path / str(rounds)
        hits += killer.kill_until_done(command(workspace, kind), kills=40, shortest=0.05, longest=0.4, cwd=REPOSITORY)
        [artifact] = ArtifactStore(workspace).all("staged")
        assert snapshot(artifact.path) == reference, f"seed {killer.seed}, round {rounds}"


CRASH_POINTS = """
import os, signal, sys
from pathlib import Path
from tests.core import staged_writer

EVENTS = {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.truncate", "shutil.rmtree"}
staged_writer.SHARDS = 3

def run(workspace, die_at):
    child = os.fork()
    if child == 0:
        seen = 0
        def hook(event, arguments):
            nonlocal seen
            if event in EVENTS and sys.argv[1] in str(arguments[0]):
                seen += 1
                if seen == die_at:
                    os.kill(os.getpid(), signal.SIGKILL)
        sys.addaudithook(hook)
        staged_writer.run(workspace, "inline", slow=False)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

point = 0
while True:
    point += 1
    workspace = Path(sys.argv[1]) / str(point)
    first, second = run(workspace, point), run(workspace, point)
    assert first in (0, -9) and second in (0, -9), (point, first, second)
    assert run(workspace, 0) == 0, point
    if first == 0:
        break
print(point)
"""


@pytest.fixture
def fast_path(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory where there is one: a kill, unlike a power cut, does not care whether fsync is slow."""
    if not os.access("/dev/shm", os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


def test_a_kill_at_every_single_file_operation_and_again_on_resume_commits_the_same_bytes(fast_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CRASH_POINTS, str(fast_path)],
        cwd=REPOSITORY,
        env=clean_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    points = int(done.stdout)
    assert points > 60, "the hook sees the operations"
    undisturbed = snapshot(fast_path / str(points) / "staged" / KEY)
    for point in range(1, points):
        assert snapshot(fast_path / str(point) / "staged" / KEY) == undisturbed, f"killed at operation {point}"


def test_resuming_keeps_finished_shards_and_removes_everything_else(tmp_path: Path) -> None:
    with open_writer(tmp_path) as out:
        out.write("good.bin", b"good", rows=3)
        out.write("shrunk.bin", b"12345")
        (out.dir / "shrunk.bin").write_bytes(b"123")
        out.temp("sub/left.bin").write_bytes(b"half")
        (out.dir / "no-sidecar.bin").write_bytes(b"renamed, then killed")
        (out.scratch / "x").write_bytes(b"x")
    inode = (out.dir / "good.bin").stat().st_ino
    with open_writer(tmp_path) as out:
        assert out.resumed == ["good.bin"]
        assert out.done("good.bin") == {
            "name": "good.bin",
            "size": 4,
            "sha256": sha256_file(out.dir / "good.bin"),
            "rows": 3,
        }
        assert out.done("shrunk.bin") is None
        left = {path.relative_to(out.dir).as_posix() for path in out.dir.rglob("*") if path.is_file()}
        assert left == {"good.bin", ".sidecars/good.bin.json"}
        assert (out.dir / "good.bin").stat().st_ino == inode


def test_a_partial_artifact_is_never_found_or_opened(tmp_path: Path) -> None:
    with open_writer(tmp_path) as out:
        out.write("one.bin", b"1")
    store = ArtifactStore(tmp_path)
    assert store.find("demo", "0123456789abcdef") is None
    assert store.all("demo") == []
    assert store.partial("demo") == [out.dir]
    with pytest.raises(InputError, match="not finished"):
        Artifact.open(out.dir)


def raise_after_half(path: Path) -> None:
    path.write_bytes(b"half")
    path.parent.write_bytes(b"")


def test_an_error_inside_a_shard_leaves_no_trace_of_it(tmp_path: Path) -> None:
    with open_writer(tmp_path) as out:
        with pytest.raises(IsADirectoryError), out.shard("a/one.bin") as path:
            raise_after_half(path)
        assert out.done("a/one.bin") is None
        assert [path for path in out.dir.rglob("*") if path.is_file()] == []


def test_the_manifest_lists_all_and_time_and_host_stay_outside_of_it(tmp_path: Path) -> None:
    first, second = committed(tmp_path / "one"), committed(tmp_path / "two")
    assert first.manifest == second.manifest
    assert snapshot(first.path) == snapshot(second.path)
    assert first.files() == ["a/one.bin", "two.bin"]
    assert first.files("a/") == ["a/one.bin"]
    assert first.facts("a/one.bin")["rows"] == 1
    assert first.file("two.bin").read_bytes() == b"two"
    assert (first.counts, first.version, first.identity, first.inputs) == ({"rows": 1}, 1, {"a": 1}, {"raw": "ff" * 16})
    assert first.provenance["versions"]["headwater"]
    (first.path / "provenance.json").unlink()
    assert Artifact.open(first.path).provenance == {}
    with pytest.raises(InputError, match=r"no file 'three.bin'"):
        first.file("three.bin")


def test_damage_is_found_by_size_and_by_hash(tmp_path: Path) -> None:
    artifact = committed(tmp_path)
    artifact.verify(deep=True)
    artifact.file("two.bin").write_bytes(b"TWO")
    artifact.verify()
    with pytest.raises(CorruptArtifactError, match=r"two.bin has other content"):
        artifact.verify(deep=True)
    artifact.file("two.bin").write_bytes(b"twofold")
    artifact.file("a/one.bin").unlink()
    with pytest.raises(CorruptArtifactError, match=r"a/one.bin is missing; two.bin has 7 bytes instead of 3"):
        artifact.verify()


@pytest.mark.parametrize(("version", "mend"), [(0, "no such migration"), (99, "newer Headwater")])
def test_another_format_names_the_migration(version: int, mend: str, tmp_path: Path) -> None:
    artifact = committed(tmp_path)
    manifest = {**artifact.manifest, "format_version": version}
    (artifact.path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(UserError, match=f"artifact-format-{version}-to-1") as caught:
        ArtifactStore(tmp_path).find(artifact.stage, artifact.fingerprint)
    assert mend in caught.value.mend


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"format_version": 1}', b'{"format_version": "1"}', b"\xff"])
def test_a_broken_manifest_is_a_clear_error(data: bytes, tmp_path: Path) -> None:
    artifact = committed(tmp_path)
    (artifact.path / "manifest.json").write_bytes(data)
    with pytest.raises(CorruptArtifactError, match="cannot read the manifest") as caught:
        Artifact.open(artifact.path)
    assert "run again" in caught.value.mend


def test_a_damaged_old_artifact_stands_in_nobody_s_way(tmp_path: Path) -> None:
    artifact = committed(tmp_path)
    broken = artifact.path.with_name("e" * 16)
    shutil.copytree(artifact.path, broken)
    (broken / "manifest.json").write_bytes(b"{")
    heard: list[Path] = []
    store = ArtifactStore(tmp_path)
    assert store.all("demo", lambda path, _: heard.append(path)) == store.all("demo") == [artifact]
    assert heard == [broken]
    with pytest.raises(CorruptArtifactError):
        store.find("demo", broken.name)


def test_a_folder_moved_to_another_name_is_refused(tmp_path: Path) -> None:
    artifact = committed(tmp_path)
    shutil.copytree(artifact.path, artifact.path.with_name("f" * 16))
    with pytest.raises(CorruptArtifactError, match=artifact.fingerprint):
        ArtifactStore(tmp_path).find("demo", "f" * 16)
    (artifact.path / "manifest.json").unlink()
    with pytest.raises(CorruptArtifactError, match="is missing"):
        ArtifactStore(tmp_path).find("demo", artifact.fingerprint)


def test_a_second_writer_is_told_who_writes(tmp_path: Path) -> None:
    with open_writer(tmp_path) as out:
        with pytest.raises(LockedError, match=f"process {os.getpid()} on"), open_writer(tmp_path):
            pass
        with open_writer(tmp_path, "f" * 16) as other:  # another artifact of the stage is free
            assert other.dir != out.dir
        out.write("one.bin", b"1")
        out.commit({})
    with pytest.raises(LockedError, match="finished this artifact in the meantime"), open_writer(tmp_path):
        pass


def test_two_processes_at_once_make_one_artifact(tmp_path: Path, reference: dict[str, str]) -> None:
    pair = [
        subprocess.Popen(
            command(tmp_path, "inline"), cwd=REPOSITORY, env=clean_environment(), stderr=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    errors = [process.communicate(timeout=60)[1] for process in pair]
    codes = sorted(process.returncode for process in pair)
    assert codes in ([0, 0], [0, 1])
    if codes == [0, 1]:
        assert "LockedError" in "".join(errors)
    artifact = ArtifactStore(tmp_path).find("staged", KEY)
    assert artifact is not None
    assert snapshot(artifact.path) == reference


def test_a_writer_that_lost_its_lock_does_not_commit(tmp_path: Path) -> None:
    with open_writer(tmp_path) as out:
        out.write("one.bin", b"1")
        lock = out.dir.with_name(f".{out.dir.name}.lock")
        lock.write_bytes(lock.read_bytes().replace(b'"token":"', b'"token":"another'))
        with pytest.raises(LockedError, match="lock was lost"):
            out.commit({})
    assert lock.exists(), "the other's lock is not ours to remove"
    assert ArtifactStore(tmp_path).all("demo") == []


def test_commit_refuses_a_changed_shard_and_a_file_without_sidecar(tmp_path: Path) -> None:
    with open_writer(tmp_path) as out:
        out.write("one.bin", b"1")
        (out.dir / "one.bin").write_bytes(b"changed")
        with pytest.raises(CorruptArtifactError, match=r"one.bin changed"):
            out.commit({})
        out.write("one.bin", b"1")
        (out.dir / "stray.bin").write_bytes(b"?")
        with pytest.raises(ValueError, match=r"stray.bin was not written by"):
            out.commit({})
        (out.dir / "stray.bin").unlink()
        with pytest.raises(ValueError, match="manifest has its own inputs"):
            out.commit({}, inputs={})
        assert out.commit({}, note="extra").manifest["note"] == "extra"


@pytest.mark.parametrize("name", ["", "/a", "../a", "a/../b", "./a", "a//b", ".hidden", "a/.b", "a/", "manifest.json"])
def test_a_shard_name_stays_inside_its_folder(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="name"):
        ShardFolder(tmp_path).write(name, b"")


def test_facts_cannot_hide_size_or_hash(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="sha256"):
        ShardFolder(tmp_path).write("a.bin", b"", sha256="0")


def test_a_worker_receives_only_the_right_to_write_shards(tmp_path: Path) -> None:
    with open_writer(tmp_path) as out:
        copy = pickle.loads(pickle.dumps(out))
        assert type(copy) is ShardFolder
        copy.write("from-worker.bin", b"w", rows=1)
        assert out.done("from-worker.bin") is not None
        assert out.shards() == ["from-worker.bin"]


def test_a_shard_written_again_replaces_the_first(tmp_path: Path) -> None:
    with open_writer(tmp_path) as out:
        out.write("a.bin", b"first")
        out.write("a.bin", b"second!", rows=2)
        artifact = out.commit({})
    artifact.verify(deep=True)
    assert artifact.facts("a.bin")["rows"] == 2


def test_atomic_write_replaces_and_leaves_no_temporary(tmp_path: Path) -> None:
    atomic_write(tmp_path / "a", b"1")
    atomic_write(tmp_path / "a", b"22")
    assert (tmp_path / "a").read_bytes() == b"22"
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError):
        atomic_write(tmp_path / "folder", b"")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "folder"]


def test_a_stage_context_works_without_any_setting(tmp_path: Path) -> None:
    context = StageContext(tmp_path)
    assert list(context.executor.map(str, [1, 2])) == ["1", "2"]
