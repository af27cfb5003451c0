"""Ranks as a grid, and how a process learns which one it is."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from headwater.core.errors import InputError, RecipeError
from headwater.parallel import environment
from headwater.parallel.config import ParallelConfig
from headwater.parallel.environment import World
from headwater.parallel.mesh import AXES, Mesh, build_mesh
from tests.parallel.ranks import RankError, run_ranks

CPU = torch.device("cpu")
SET = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "MASTER_ADDR": "a",
    "MASTER_PORT": "1",
}


def test_one_process_is_a_grid_of_one() -> None:
    mesh = build_mesh(ParallelConfig(micro_batch=2), CPU)
    assert mesh.config.micro_batch == 2
    for axis in (*AXES, "dp", "fsdp", "loss", "world"):
        assert (mesh.size(axis), mesh.coordinate(axis), mesh.group(axis)) == (1, 0, None)
    assert mesh.maximum(3.5) == 3.5
    assert mesh.place() == "rank 0"
    with pytest.raises(ValueError, match="one process has no grid"):
        mesh.submesh("tp")
    with pytest.raises(ValueError, match="not one process"):
        Mesh.single(CPU, ParallelConfig(tp=2))


def test_a_layout_without_its_processes_is_refused() -> None:
    with pytest.raises(RecipeError, match=r"2 ranks .* 1 process runs") as caught:
        build_mesh(ParallelConfig(tp=2), CPU)
    assert "torchrun --nproc-per-node 2" in caught.value.mend


degrees = st.sampled_from((1, 2, 3))


@given(degrees, degrees, degrees, degrees, degrees)
def test_every_rank_has_a_place_of_its_own_and_neighbours_share_matrices(
    pp: int, replicate: int, shard: int, cp: int, tp: int
) -> None:
    config = ParallelConfig(pp=pp, dp_replicate=replicate, dp_shard=shard, cp=cp, tp=tp)
    mesh = Mesh(config, CPU, None)
    assert (mesh.size("dp"), mesh.size("fsdp"), mesh.size("loss")) == (
        replicate * shard,
        shard * cp,
        config.ranks // pp // tp,
    )
    places = [tuple(mesh._coordinate(rank, axis) for axis in AXES) for rank in range(config.ranks)]
    assert places == list(product(range(pp), range(replicate), range(shard), range(cp), range(tp)))
    for rank, (_, r, s, c, _) in enumerate(places):
        assert mesh._coordinate(rank, "dp") == r * shard + s
        assert mesh._coordinate(rank, "fsdp") == s * cp + c
        assert mesh._coordinate(rank, "world") == rank


def neighbours(config: ParallelConfig) -> dict[str, Any]:
    """The ranks of each of this rank's groups, and what the maximum of the ranks' numbers is."""
    mesh = build_mesh(config, CPU)
    found: dict[str, Any] = {"place": mesh.place(), "maximum": mesh.maximum(float(mesh.rank))}
    for axis in (*AXES, "dp", "fsdp", "loss", "world"):
        group = mesh.group(axis)
        found[axis] = None if group is None else sorted(dist.get_process_group_ranks(group))
        if group is not None:
            assert dist.get_rank(group) == mesh.coordinate(axis)
    if mesh.size("fsdp") > 1:
        found["hybrid"] = tuple(mesh.submesh("dp_replicate", "fsdp").mesh.shape)
    return found


def test_groups_are_the_ranks_that_differ_along_an_axis() -> None:
    found = run_ranks(8, neighbours, ParallelConfig(dp_replicate=2, dp_shard=2, tp=2))
    assert found[5]["place"] == "rank 5 (dp_replicate 1, dp_shard 0, tp 1)"
    assert found[5]["tp"] == [4, 5]
    assert found[5]["dp_shard"] == found[5]["fsdp"] == [5, 7]
    assert found[5]["dp_replicate"] == [1, 5]
    assert found[5]["dp"] == found[5]["loss"] == [1, 3, 5, 7]
    assert found[5]["world"] == list(range(8))
    assert found[5]["pp"] is None
    assert all(one["hybrid"] == (2, 2) and one["maximum"] == 7 for one in found)


def test_context_parallel_ranks_share_parameters() -> None:
    found = run_ranks(4, neighbours, ParallelConfig(dp_shard=2, cp=2))
    assert found[0]["fsdp"] == found[0]["loss"] == [0, 1, 2, 3]
    assert found[0]["dp"] == [0, 2]
    assert all(one["hybrid"] == (1, 4) for one in found)


def test_a_process_learns_its_place_from_torchrun() -> None:
    assert World.from_env({}) == World()
    assert World.from_env(SET) == World(5, 8, 1, 4, launched=True)
    assert World.from_env(SET).device("cpu") == CPU
    with pytest.raises(InputError, match="MASTER_PORT not set"):
        World.from_env({name: value for name, value in SET.items() if name != "MASTER_PORT"})
    for wrong in ({"RANK": "8"}, {"RANK": "x"}, {"LOCAL_RANK": "4"}):
        with pytest.raises(InputError, match="make no sense"):
            World.from_env(SET | wrong)


def huge() -> tuple[int, str]:
    environment.stop()
    environment.start(World(1000, 4096), CPU, backend="fake")
    mesh = build_mesh(ParallelConfig(dp_replicate=64, tp=8, pp=8), CPU)
    place = mesh.place()
    environment.stop()
    return mesh.size("world"), place


def test_a_world_that_is_not_there_can_be_laid_out() -> None:
    assert run_ranks(1, huge) == [(4096, "rank 1000 (pp 1, dp_replicate 61, tp 0)")]


def fails(on: int) -> None:
    if dist.get_rank() == on:
        raise ValueError(f"told to fail on {on}")
    dist.barrier()


def test_an_error_of_a_rank_is_raised_with_its_number_and_leaves_no_process() -> None:
    with pytest.raises(RankError, match=r"rank 1:(.|\n)*told to fail on 1"):
        run_ranks(2, fails, 1, timeout=20)
