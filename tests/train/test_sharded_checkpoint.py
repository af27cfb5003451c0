"""Checkpoints of several ranks: exact in any layout, one error for all, damage seen by one is damage for all."""

from __future__ import annotations

import os
import resource
import signal
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.placement_types import Placement

from headwater.core.errors import CorruptArtifactError, DiskSpaceError, HeadwaterError, UserError
from headwater.parallel.agreement import Ranks
from headwater.train.checkpoint import CheckpointStore
from headwater.train.checkpoint_format import INDEX, empty_tensors, read_tensors
from headwater.train.run_folder import list_checkpoints
from tests.parallel.ranks import run_ranks

LAYOUTS = {1: (), 2: (2,), 4: (4,), 8: (2, 2, 2)}
"""World size -> mesh: one axis of data-parallel shards, or pp x fsdp x tp."""

SHAPES = {"weights.embed": (14, 8), "weights.layers.0.up": (12, 8), "weights.layers.1.up": (12, 8)}
"""14 rows over 4 ranks are uneven."""


def whole(name: str) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(name.encode()))
    return torch.randn(SHAPES[name.removeprefix("optimizer.")], generator=generator)


def state(world: int, *, filled: bool) -> dict[str, torch.Tensor]:
    """This rank's tensors in the layout of `world` ranks: weights and moments sharded over fsdp and tp, layers over pp,
    the tied embedding on both stages, a plain counter on all."""
    names = [prefix + name for name in SHAPES for prefix in ("", "optimizer.")]
    if world == 1:
        tensors = {name: whole(name) if filled else torch.zeros_like(whole(name)) for name in names}
    else:
        mesh = init_device_mesh("cpu", LAYOUTS[world])
        tensors = {}
        stage, inner, placements = placing(mesh)
        for name in names:
            if stage is None or "embed" in name or f"layers.{stage}" in name:
                full = whole(name) if filled else torch.zeros_like(whole(name))
                tensors[name] = distribute_tensor(full, inner, placements)
    return tensors | {"optimizer.step": torch.tensor(7.0 if filled else 0.0)}


def placing(mesh: DeviceMesh) -> tuple[int | None, DeviceMesh, list[Placement]]:
    if mesh.ndim == 1:
        return None, mesh, [Shard(0)]
    names = init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("pp", "fsdp", "tp"))
    return names.get_local_rank("pp"), names["fsdp", "tp"], [Shard(0), Shard(1)]


def check_filled(tensors: dict[str, torch.Tensor]) -> None:
    for name, tensor in tensors.items():
        if name == "optimizer.step":
            assert float(tensor) == 7.0
            continue
        full = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        assert torch.equal(full, whole(name)), name


def save_in(world: int, folder: Path, asynchronous: bool = False) -> int:
    store = CheckpointStore(folder, ranks=Ranks.new())
    tensors = state(world, filled=True)
    store.save(1, tensors, {"step": 1}, asynchronous=asynchronous)
    for tensor in tensors.values():
        if asynchronous:
            (tensor.to_local() if isinstance(tensor, DTensor) else tensor).zero_()
    store.close()
    return len(store.poll())


def load_in(world: int, folder: Path) -> None:
    loaded = CheckpointStore(folder, ranks=Ranks.new()).newest_good()
    assert loaded is not None
    tensors = state(world, filled=False)
    read_tensors(loaded.ref.path, tensors)
    check_filled(tensors)


@pytest.mark.parametrize(("before", "after"), [(1, 8), (8, 4), (4, 1), (2, 8), (4, 2)])
def test_a_checkpoint_loads_in_any_other_layout(tmp_path: Path, before: int, after: int) -> None:
    """Pipeline stages included: the tied embedding of both has one name, and is written once."""
    run_ranks(before, save_in, before, tmp_path)
    run_ranks(after, load_in, after, tmp_path)
    ref = list_checkpoints(tmp_path)[0]
    alone = empty_tensors(ref.path)
    read_tensors(ref.path, alone)
    check_filled(alone)
    needed = sum(tensor.nbytes for tensor in alone.values())
    data = sum(path.stat().st_size for path in ref.path.glob("*.distcp"))
    overhead = 1500 * sum(len(entry) for entry in ref.manifest()["files"].values()) * len(alone)
    assert data < needed + overhead


def test_an_asynchronous_sharded_save_keeps_the_values_of_its_moment(tmp_path: Path) -> None:
    assert run_ranks(2, save_in, 2, tmp_path, True) == [1, 1]
    run_ranks(2, load_in, 2, tmp_path)


def test_replicas_are_written_by_one_rank(tmp_path: Path) -> None:
    def save() -> None:
        mesh = init_device_mesh("cpu", (2,))
        tensor = distribute_tensor(torch.arange(1000.0), mesh, [Replicate()])
        CheckpointStore(tmp_path, ranks=Ranks.new()).save(1, {"a": tensor, "b": torch.arange(1000.0)}, {})

    run_ranks(2, save)
    sizes = [path.stat().st_size for path in (tmp_path / "step-00000001").glob("*.distcp")]
    assert len(sizes) == 2  # one of the two each: the load is balanced
    assert max(sizes) < 8000


def damage_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


DAMAGES = {
    "a bit of rank 1's file": lambda folder: damage_bit(folder / "__1_0.distcp"),
    "rank 1's file missing": lambda folder: (folder / "__1_0.distcp").unlink(),
    "half of rank 1's file": lambda folder: os.truncate(folder / "__1_0.distcp", 100),
    "a bit of the index": lambda folder: damage_bit(folder / INDEX),
    "no manifest": lambda folder: (folder / "manifest.json").unlink(),
}


def test_damage_that_one_rank_finds_makes_all_fall_back_together(tmp_path: Path) -> None:
    def save_and_load() -> list[tuple[int, list[str]]]:
        found = []
        for number, damage in enumerate(DAMAGES.values()):
            warnings: list[str] = []
            folder = tmp_path / str(number)
            store = CheckpointStore(folder, warn=warnings.append, ranks=Ranks.new())
            store.save(1, state(2, filled=True), {"step": 1})
            store.save(2, state(2, filled=True), {"step": 2})
            if dist.get_rank() == 0:
                damage(folder / "step-00000002")
            dist.barrier()
            loaded = store.newest_good()
            assert loaded is not None
            found.append((loaded.state["step"], warnings))
        return found

    first, second = run_ranks(2, save_and_load)
    assert [step for step, _ in first] == [step for step, _ in second] == [1] * len(DAMAGES)
    assert all(len(warnings) == 1 and "step-00000002 IS DAMAGED" in warnings[0] for _, warnings in first)
    assert all(warnings == [] for _, warnings in second)


def test_if_none_is_whole_every_rank_says_so(tmp_path: Path) -> None:
    def load() -> str:
        store = CheckpointStore(tmp_path, warn=lambda _: None, ranks=Ranks.new())
        with pytest.raises(CorruptArtifactError) as caught:
            store.newest_good()
        return caught.value.mend

    run_ranks(2, save_in, 2, tmp_path)
    damage_bit(tmp_path / "step-00000001" / "__0_0.distcp")
    assert all("delete the run folder" in mend for mend in run_ranks(2, load))


@pytest.mark.parametrize("asynchronous", [False, True])
def test_one_rank_without_space_is_an_error_on_every_rank(tmp_path: Path, asynchronous: bool) -> None:
    def save() -> str:
        store = CheckpointStore(tmp_path, ranks=Ranks.new())
        mesh = init_device_mesh("cpu", (2,))
        store.save(1, {"a": distribute_tensor(torch.arange(1000.0), mesh, [Shard(0)])}, {"step": 1})
        if dist.get_rank() == 1:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        large = distribute_tensor(torch.arange(1_000_000.0), mesh, [Shard(0)])
        try:
            store.save(2, {"a": large}, {"step": 2}, asynchronous=asynchronous)
            store.wait()
        except DiskSpaceError as error:
            return error.what
        return "it fitted"

    said = run_ranks(2, save)
    assert all("rank 1 could not write" in what and "intact" in what for what in said)
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["step-00000001"]


def test_a_newer_ephemeral_checkpoint_is_used_and_its_loss_costs_only_time(tmp_path: Path) -> None:
    durable, fast = tmp_path / "durable", tmp_path / "fast"

    def train() -> list[int]:
        store = CheckpointStore(durable, ephemeral=fast, ranks=Ranks.new(), warn=lambda _: None)
        for step in range(1, 7):
            store.save(step, state(2, filled=True), {"step": step}, ephemeral=step not in (1, 4))
        found = [store.newest_good()]
        if dist.get_rank() == 0:  # rank 0 deletes what retention lets go, after all have saved
            steps = [ref.step for ref in list_checkpoints(durable)], [ref.step for ref in list_checkpoints(fast)]
            assert steps == ([4, 1], [6])
            damage_bit(fast / "step-00000006" / "__0_0.distcp")
        dist.barrier()
        found.append(store.newest_good())
        return [loaded.state["step"] for loaded in found if loaded is not None]

    assert run_ranks(2, train) == [[6, 4], [6, 4]]


def test_a_folder_that_is_not_shared_is_refused_on_every_rank(tmp_path: Path) -> None:
    def make() -> str:
        ranks = Ranks.new()
        own = tmp_path / f"node-{dist.get_rank()}"
        with pytest.raises(UserError) as caught:
            CheckpointStore(tmp_path / "run", ephemeral=own, ranks=ranks)
        return caught.value.what

    assert all("rank 1 on" in what for what in run_ranks(2, make))


def test_an_error_of_one_rank_is_the_error_of_all() -> None:
    def fail() -> list[str]:
        ranks = Ranks.new()
        said = []

        def work(who: int) -> int:
            if dist.get_rank() == who:
                raise UserError(f"rank {who} has no disk", where="x", mend="buy one")
            return 1

        for who in range(2):
            with pytest.raises(HeadwaterError) as caught:
                ranks.together(lambda who=who: work(who))
            said.append(caught.value.what)
        with pytest.raises(ZeroDivisionError):
            ranks.on_first(lambda: 1 // 0)
        assert ranks.together(lambda: dist.get_rank() * 10) == [0, 10]
        return said

    assert run_ranks(2, fail) == [["rank 0 has no disk", "rank 1 has no disk"]] * 2
