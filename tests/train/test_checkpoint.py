"""The checkpoint store: exact, verified, and whole after anything that can happen to a process or a disk."""

from __future__ import annotations

import json
import os
import pickle
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from headwater.core.errors import CorruptArtifactError, DiskSpaceError
from headwater.train.checkpoint import CheckpointStore
from headwater.train.checkpoint_format import INDEX, empty_tensors, read_tensors, tensor_names
from headwater.train.checkpoint_load import load_checkpoint
from headwater.train.run_folder import list_checkpoints


def some_tensors(seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "weights.a": torch.randn(7, 5, generator=generator),
        "weights.b": torch.randn(3, generator=generator).bfloat16(),
        "optimizer.a/step": torch.tensor(float(seed)),
        "weights.strided": torch.randn(6, 4, generator=generator).T,
        "rng.torch": torch.get_rng_state(),
        "empty": torch.zeros(0, 3),
        "counts": torch.arange(5),
    }


def read_back(store: CheckpointStore) -> tuple[int, dict[str, torch.Tensor]]:
    loaded = store.newest_good()
    assert loaded is not None
    tensors = empty_tensors(loaded.ref.path)
    read_tensors(loaded.ref.path, tensors)
    return loaded.ref.step, tensors


def assert_equal(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> None:
    assert a.keys() == b.keys()
    for name in a:
        assert a[name].dtype == b[name].dtype
        assert torch.equal(a[name], b[name]), name


@pytest.mark.parametrize("asynchronous", [False, True])
def test_what_is_saved_comes_back_bit_for_bit(tmp_path: Path, asynchronous: bool) -> None:
    store = CheckpointStore(tmp_path, run_id="r")
    state = {"step": 3, "x": 0.1 + 0.2, "rng": [1, 2**40], "name": "中文"}
    store.save(3, some_tensors(), state, facts={"ledger": "abc"}, asynchronous=asynchronous)
    store.close()
    step, tensors = read_back(store)
    assert step == 3
    assert_equal(tensors, some_tensors())
    loaded = store.newest_good()
    assert loaded is not None
    assert loaded.state == state
    assert loaded.ref.manifest()["ledger"] == "abc"


def test_an_asynchronous_save_keeps_the_values_of_its_moment(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    tensors = some_tensors()
    store.save(1, tensors, {}, asynchronous=True)
    for tensor in tensors.values():
        tensor.zero_()
    store.wait()
    assert_equal(read_back(store)[1], some_tensors())


def test_retention_keeps_the_last_and_the_permanent(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=2, permanent_every=4)
    for step in range(1, 10):
        store.save(step, some_tensors(step), {})
    assert sorted(ref.step for ref in list_checkpoints(tmp_path)) == [4, 8, 9]
    assert json.loads((tmp_path / "newest.json").read_text())["newest_first"][0] == "step-00000009"


def test_after_a_rewind_the_newest_is_the_one_written_last(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=3)
    for step in (10, 20, 15):
        store.save(step, some_tensors(step), {})
    assert [ref.step for ref in list_checkpoints(tmp_path)] == [15, 20, 10]
    store.save(20, some_tensors(20), {})
    assert [ref.step for ref in list_checkpoints(tmp_path)] == [20, 15, 10]


def test_a_permanent_one_that_a_rewind_went_back_behind_takes_no_place_and_is_not_the_newest(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=2, permanent_every=4)
    for step in (3, 4):
        store.save(step, {"weights.a": torch.full((2,), step)}, {"step": step})
    later = CheckpointStore(tmp_path, keep=2)  # how often is a setting that may change; what is permanent stays so
    later.forget(lambda ref: ref.step > 3)
    assert [ref.step for ref in list_checkpoints(tmp_path)] == [3, 4]
    store.save(5, {"weights.a": torch.zeros(2)}, {"step": 5})
    assert [ref.step for ref in list_checkpoints(tmp_path)] == [5, 3, 4]


def test_one_committed_just_before_a_kill_is_the_newest_even_if_the_pointer_does_not_know(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=3)
    store.save(20, some_tensors(20), {})
    pointer = (tmp_path / "newest.json").read_bytes()
    store.save(15, some_tensors(15), {})
    (tmp_path / "newest.json").write_bytes(pointer)
    assert [ref.step for ref in list_checkpoints(tmp_path)] == [15, 20]
    store.save(30, some_tensors(30), {})
    assert [ref.step for ref in list_checkpoints(tmp_path)] == [30, 15, 20]
    (tmp_path / "newest.json").write_bytes(b"torn")
    assert [ref.step for ref in list_checkpoints(tmp_path)] == [30, 20, 15]


def test_equal_state_gives_equal_files(tmp_path: Path) -> None:
    """What is downstream of a run is keyed by its manifest: a run that was killed and resumed must give the same."""
    manifests = []
    for name in "ab":
        store = CheckpointStore(tmp_path / name, run_id="r")
        for step in range(1 if name == "a" else 3, 4):
            store.save(step, some_tensors(step), {"step": step})
        manifests.append((tmp_path / name / "step-00000003" / "manifest.json").read_bytes())
    assert manifests[0] == manifests[1]


def test_saving_a_step_again_replaces_it(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    store.save(1, some_tensors(1), {})
    store.save(1, some_tensors(2), {})
    assert_equal(read_back(store)[1], some_tensors(2))


def damage_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


DAMAGES = {
    "a flipped bit in the data": lambda folder: damage_bit(next(folder.glob("*.distcp"))),
    "a flipped bit in the index": lambda folder: damage_bit(folder / INDEX),
    "a flipped bit in the state": lambda folder: damage_bit(folder / "state.json"),
    "a missing data file": lambda folder: next(folder.glob("*.distcp")).unlink(),
    "a missing manifest": lambda folder: (folder / "manifest.json").unlink(),
    "half a data file": lambda folder: os.truncate(next(folder.glob("*.distcp")), 100),
    "an empty manifest": lambda folder: (folder / "manifest.json").write_bytes(b""),
    "a manifest that is no JSON": lambda folder: (folder / "manifest.json").write_bytes(b"{"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_reported_and_the_one_before_used(tmp_path: Path, damage: str) -> None:
    warnings: list[str] = []
    store = CheckpointStore(tmp_path, warn=warnings.append)
    store.save(1, some_tensors(1), {"step": 1})
    store.save(2, some_tensors(2), {"step": 2})
    DAMAGES[damage](tmp_path / "step-00000002")
    step, tensors = read_back(store)
    assert step == 1
    assert_equal(tensors, some_tensors(1))
    assert len(warnings) == 1
    assert "step-00000002 IS DAMAGED" in warnings[0]
    assert (tmp_path / "step-00000002.corrupt").is_dir()
    store.save(2, some_tensors(2), {"step": 2})
    assert read_back(store)[0] == 2


def test_if_none_is_whole_it_stops_instead_of_starting_over(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, warn=lambda _: None)
    assert store.newest_good() is None
    store.save(1, some_tensors(), {})
    damage_bit(tmp_path / "step-00000001" / "state.json")
    for _ in range(2):
        with pytest.raises(CorruptArtifactError) as caught:
            store.newest_good()
        assert "delete the run folder" in caught.value.mend


def test_no_pickle_is_read(tmp_path: Path) -> None:
    """Neither the index nor the state is a pickle, and a pickled object in place of a tensor does not run."""
    store = CheckpointStore(tmp_path)
    store.save(1, some_tensors(), {})
    folder = tmp_path / "step-00000001"
    assert not (folder / ".metadata").exists()
    proof = tmp_path / "ran"

    class Evil:
        def __reduce__(self) -> tuple[object, ...]:
            return (Path.touch, (proof,))

    data = next(folder.glob("*.distcp"))
    payload = pickle.dumps(Evil())
    data.write_bytes(payload)
    index = json.loads((folder / INDEX).read_text())
    for entry in index["tensors"].values():
        entry["chunks"] = [[o, s, f, 0, len(payload)] for o, s, f, _, _ in entry["chunks"]]
    (folder / INDEX).write_text(json.dumps(index))
    with pytest.raises(CorruptArtifactError, match="Weights only"):
        read_tensors(folder, empty_tensors(folder))
    assert not proof.exists()


def test_an_index_cannot_point_outside_its_folder(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    store.save(1, some_tensors(), {})
    index = tmp_path / "step-00000001" / INDEX
    index.write_text(index.read_text().replace("__0_0.distcp", "../../secret"))
    with pytest.raises(CorruptArtifactError, match="plain file name"):
        tensor_names(index.parent)


def test_a_newer_format_names_the_way_out(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    store.save(1, some_tensors(), {})
    manifest = tmp_path / "step-00000001" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"format": 1', '"format": 9'))
    with pytest.raises(CorruptArtifactError) as caught:
        load_checkpoint(list_checkpoints(tmp_path)[0])
    assert "version of Headwater" in caught.value.mend


FULL_DISK = """
import resource, signal, sys
from pathlib import Path
import torch
from headwater.core.errors import DiskSpaceError
from headwater.train.checkpoint import CheckpointStore
folder, asynchronous = Path(sys.argv[1]), sys.argv[2] == "async"
store = CheckpointStore(folder)
store.save(1, {"weights.a": torch.arange(1000.0)}, {"step": 1})
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    store.save(2, {"weights.a": torch.arange(1_000_000.0)}, {"step": 2}, asynchronous=asynchronous)
    store.wait()
except DiskSpaceError as error:
    print("refused:", error.what)
"""


@pytest.mark.parametrize("how", ["sync", "async"])
def test_a_full_disk_leaves_the_last_good_checkpoint(tmp_path: Path, how: str) -> None:
    """A file-size limit fails writes in the middle of the data file, as a full disk does."""
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(tmp_path), how], capture_output=True, text=True, check=True
    )
    assert "refused:" in done.stdout, done.stderr
    assert "intact" in done.stdout
    assert [p.name for p in tmp_path.iterdir() if p.is_dir()] == ["step-00000001"]
    loaded = CheckpointStore(tmp_path).newest_good()
    assert loaded is not None
    assert loaded.state["step"] == 1


SAVER = """
import sys
from pathlib import Path
import torch
from headwater.train.checkpoint import CheckpointStore
torch.set_num_threads(1)
store = CheckpointStore(Path(sys.argv[1]), keep=2)
store.clean()
loaded = store.newest_good()
step = loaded.ref.step if loaded else 0
print("ready", step, flush=True)
while True:
    step += 1
    store.save(step, {f"weights.{i}": torch.full((40, 40), float(step + i)) for i in range(20)}, {"step": step})
"""


@pytest.fixture
def kills(request: pytest.FixtureRequest) -> int:
    return request.param


@pytest.mark.parametrize(
    "kills", [4, pytest.param(50, marks=[pytest.mark.soak, pytest.mark.timeout(3600)])], indirect=True
)
def test_a_process_killed_while_saving_leaves_only_whole_checkpoints(tmp_path: Path, kills: int) -> None:
    rng = random.Random(5)
    last = 0
    for _ in range(kills):
        process = subprocess.Popen([sys.executable, "-c", SAVER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        assert process.stdout.readline() == f"ready {last}\n"
        time.sleep(rng.uniform(0.0, 0.4))
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        for ref in list_checkpoints(tmp_path):
            state = load_checkpoint(ref).state
            tensors = empty_tensors(ref.path)
            read_tensors(ref.path, tensors)
            assert state["step"] == ref.step
            assert all((t == ref.step + int(name.split(".")[1])).all() for name, t in tensors.items())
        steps = [ref.step for ref in list_checkpoints(tmp_path)]
        last = steps[0] if steps else 0
    assert last > 0


def test_disk_space_error_is_what_the_command_line_knows() -> None:
    assert DiskSpaceError("x").exit_code == 2
