"""The loss scale of fp16: it grows, backs off, skips, stops at its floor, and all ranks agree."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from headwater.parallel.scaler import DynamicScaler, LossScaleError
from headwater.parallel.step_config import LossScaleConfig

CPU = torch.device("cpu")
INF, NAN = float("inf"), float("nan")


def scaler(**config: float) -> DynamicScaler:
    group = dist.group.WORLD if dist.is_initialized() else None
    return DynamicScaler(LossScaleConfig(**config), CPU, group)  # type: ignore[arg-type]


def test_it_starts_with_the_numbers_people_know() -> None:
    one = scaler()
    assert one.scale == 65536
    for _ in range(1999):
        one.update(False)
    assert one.scale == 65536
    one.update(False)
    assert one.scale == 131072
    one.update(True)
    assert one.scale == 65536
    assert one.skipped == 1


@given(
    st.lists(st.booleans(), max_size=60),
    st.sampled_from([1.5, 2.0, 4.0]),
    st.sampled_from([0.25, 0.5, 0.75]),
    st.integers(1, 7),
)
def test_it_moves_as_torch_moves_its_own(overflows: list[bool], growth: float, backoff: float, interval: int) -> None:
    one = scaler(
        init_scale=1024.0, growth_factor=growth, backoff_factor=backoff, growth_interval=interval, min_scale=1e-30
    )
    theirs, tracker = torch.full((1,), 1024.0), torch.zeros(1, dtype=torch.int32)
    for overflow in overflows:
        one.update(overflow)
        torch._amp_update_scale_(theirs, tracker, torch.tensor([float(overflow)]), growth, backoff, interval)
        assert one.scale == pytest.approx(theirs.item(), rel=1e-5)
        assert one.growth_tracker == tracker.item()
    assert one.skipped == sum(overflows)


@pytest.mark.parametrize("value", [INF, -INF, NAN])
def test_one_bad_value_anywhere_is_an_overflow(value: float) -> None:
    gradients = [torch.ones(5), torch.ones(2, 3)]
    assert not scaler().unscale_(gradients)
    gradients[1][0, 2] = value
    assert scaler().unscale_(gradients)


def test_unscaling_a_power_of_two_is_exact() -> None:
    gradient = torch.randn(100)
    scaled = gradient * 65536
    assert not scaler().unscale_([scaled, torch.zeros(0)])
    assert torch.equal(scaled, gradient)


def test_no_gradients_are_no_overflow() -> None:
    assert not scaler().unscale_([])


def test_the_floor_stops_the_run_with_words() -> None:
    one = scaler(init_scale=4.0)
    one.update(True)
    one.update(True)
    assert one.scale == 1
    with pytest.raises(LossScaleError, match=r"step 7: .*scale of 1.*floor 1.*\n.*bf16"):
        one.update(True, where="step 7")
    assert one.scale == 1


def test_the_scale_never_grows_beyond_a_float() -> None:
    one = scaler(init_scale=2.0**127, growth_interval=1)
    one.update(False)
    assert one.scale == 2.0**127


def test_state_goes_on_bitwise() -> None:
    one, other = scaler(growth_interval=3, growth_factor=1.7), scaler(growth_interval=3, growth_factor=1.7)
    for overflow in (False, True, False, False, False, False):
        one.update(overflow)
    other.load_state_tensors({name: tensor.clone() for name, tensor in one.state_tensors().items()})
    assert (other.scale, other.growth_tracker, other.skipped) == (one.scale, one.growth_tracker, one.skipped)
    for overflow in (False, False, True, False):
        one.update(overflow)
        other.update(overflow)
    assert (other.scale, other.growth_tracker, other.skipped) == (one.scale, one.growth_tracker, one.skipped)


def test_a_floor_above_the_start_is_refused() -> None:
    with pytest.raises(ValueError, match="above init_scale"):
        LossScaleConfig(init_scale=1.0, min_scale=2.0)


def _disagree(rank: int, world: int) -> tuple[float, bool, bool, list[float]]:
    """Every rank has gradients of its own, as pipeline stages do; the last one's overflow, then nobody's."""
    one = scaler()
    mine: list[Tensor] = [torch.full((3 + rank,), 65536.0)]
    if rank == world - 1:
        mine[0][0] = INF
    first = one.unscale_(mine)
    one.update(first)
    clean = torch.full((2,), one.scale)
    second = one.unscale_([clean] if rank else [])  # a rank without gradients takes part
    one.update(second)
    return one.scale, first, second, clean.tolist()


def test_an_overflow_on_one_rank_is_one_on_every_rank() -> None:
    from tests.parallel.ranks import run_ranks

    results = run_ranks(3, _by_rank)
    for rank, (scale, first, second, clean) in enumerate(results):
        assert (scale, first, second) == (32768, True, False)
        assert clean == ([1.0, 1.0] if rank else [32768.0, 32768.0])


def _by_rank() -> tuple[float, bool, bool, list[float]]:
    return _disagree(dist.get_rank(), dist.get_world_size())


def _sharded() -> tuple[bool, bool, list[float]]:
    """Gradients that are DTensors, of which one rank's part overflows."""
    from torch.distributed.fsdp import fully_shard

    layer = nn.Linear(4, 4, bias=False)
    nn.init.ones_(layer.weight)
    fully_shard(layer)
    one = scaler()
    (layer(torch.ones(2, 4)).sum() * one.scale).backward()
    gradient = layer.weight.grad
    assert gradient is not None
    fine = one.unscale_([gradient])
    values = gradient.to_local().flatten().tolist()  # type: ignore[attr-defined]
    if dist.get_rank() == 1:
        gradient.to_local().fill_(INF)  # type: ignore[attr-defined]
    return fine, one.unscale_([gradient]), values


def test_sharded_gradients_are_unscaled_in_place_and_agreed_on() -> None:
    from tests.parallel.ranks import run_ranks

    for fine, broken, values in run_ranks(2, _sharded):
        assert not fine
        assert broken
        assert values == [2.0] * 8
