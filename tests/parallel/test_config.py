"""Layouts: how ranks multiply, which combinations are refused, what a layout says of itself."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from headwater.core.config import identity
from headwater.parallel.config import ParallelConfig

degrees = st.integers(1, 16)


@given(degrees, degrees, degrees, degrees, degrees)
def test_ranks_are_the_product_of_all_degrees(replicate: int, shard: int, tp: int, pp: int, cp: int) -> None:
    layout = ParallelConfig(dp_replicate=replicate, dp_shard=shard, tp=tp, pp=pp, cp=cp)
    assert layout.ranks == replicate * shard * tp * pp * cp
    assert layout.data_parallel == replicate * shard
    assert layout.zero == (3 if shard > 1 else 0)


@given(degrees, degrees, st.integers(1, 8))
def test_global_batch_is_data_parallel_times_micro_batches_times_micro_batch(dp: int, steps: int, micro: int) -> None:
    layout = ParallelConfig(dp_replicate=dp, micro_batch=micro)
    assert layout.accumulation(dp * steps * micro) == steps
    assert ParallelConfig(dp_replicate=dp).accumulation(dp * steps) is None


def test_a_layout_never_changes_what_is_trained() -> None:
    assert identity(ParallelConfig(dp_shard=8, tp=8, pp=8, micro_batch=2)) == {}


def test_the_bubble_is_the_idle_share_of_narayanan() -> None:
    assert ParallelConfig(pp=8).bubble_ratio(24) == pytest.approx(7 / 31)
    interleaved = ParallelConfig(pp=8, schedule="interleaved_1f1b", virtual_stages=4)
    assert interleaved.bubble_ratio(24) == pytest.approx(7 / 103)


def test_a_layout_describes_itself() -> None:
    assert ParallelConfig().describe() == "1 rank (one process)"
    text = ParallelConfig(dp_shard=64, tp=8, pp=8, zero_stage=1).describe()
    assert text == "4,096 ranks = dp 64 (replicate 1 x shard 64) x cp 1 x tp 8 x pp 8, ZeRO 1, 1f1b"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"pp": 2, "schedule": "interleaved_1f1b"}, "at least 2, not 1"),
        ({"pp": 2, "schedule": "zbv", "virtual_stages": 3}, "exactly 2 stages on a rank, not 3"),
        ({"virtual_stages": 2}, "has one stage on a rank, not 2"),
        ({"dp_replicate": 4, "zero_stage": 2}, "dp_shard is 1"),
        ({"dp_shard": 4, "zero_stage": 0}, "shares nothing at zero_stage 0"),
        ({"zero_stage": 4}, "less than or equal to 3"),
        ({"tp": 0}, "greater than or equal to 1"),
    ],
)
def test_layouts_that_cannot_be_are_refused(fields: dict[str, int | str], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        ParallelConfig.model_validate(fields)


def test_a_batch_that_does_not_divide_names_the_divisor() -> None:
    with pytest.raises(ValueError, match="use a multiple of 3"):
        ParallelConfig(dp_replicate=3).accumulation(32)
    with pytest.raises(ValueError, match="choose a divisor of 8"):
        ParallelConfig(dp_replicate=4, micro_batch=3).accumulation(32)
