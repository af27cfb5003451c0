"""Layouts: how ranks multiply, which combinations are refused, what a layout says of itself."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from headwater.core.config import identity
from headwater.core.errors import RecipeError
from headwater.model.config import ModelConfig
from headwater.parallel.config import ParallelConfig, with_virtual_stages
from headwater.parallel.divisibility import check_divisible, tensor_problems
from headwater.pipeline.schema import loads

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


SHAPE = {"hidden_size": 256, "num_attention_heads": 8, "num_key_value_heads": 2, "intermediate_size": 704}


@pytest.mark.parametrize(
    ("shape", "tp", "lengths", "what", "mend"),
    [
        (
            {},
            4,
            {},
            "num_key_value_heads 2 does not divide over tp 4",
            "use tp 2, or set model.num_key_value_heads to a multi",
        ),
        ({"num_key_value_heads": 8}, 8, {"train.seq_len": 100}, "train.seq_len 100 does not divide", "multiple of 8"),
        ({"num_key_value_heads": 8, "intermediate_size": 700}, 8, {}, "intermediate_size 700 does not", "use tp 4"),
        (
            {"num_attention_heads": 6, "num_key_value_heads": 6, "head_dim": 32, "qk_norm": True},
            4,
            {},
            "6 does not",
            "tp 2",
        ),
        (
            {"num_attention_heads": 3, "num_key_value_heads": 3, "head_dim": 32, "qk_norm": True},
            3,
            {},
            "rows of embedding and head (128)",
            "tp 1",
        ),
    ],
)
def test_a_model_that_tensor_parallelism_cannot_cut_is_refused_with_the_reason(
    shape: dict[str, Any], tp: int, lengths: dict[str, int], what: str, mend: str
) -> None:
    model = ModelConfig.model_validate(SHAPE | shape | {"vocab_size": 100})
    problems = list(tensor_problems(model, ParallelConfig(tp=tp), lengths))
    assert any(what in problem[1] and mend in problem[2] for problem in problems), problems
    with pytest.raises(RecipeError, match="tp"):
        check_divisible(model, ParallelConfig(tp=tp), lengths)
    assert not list(tensor_problems(model, ParallelConfig(), lengths))


def test_a_model_that_divides_is_cut() -> None:
    model = ModelConfig.model_validate(SHAPE)
    assert not list(tensor_problems(model, ParallelConfig(tp=2), {"train.seq_len": 128}))


def test_megatrons_layers_of_a_virtual_stage_become_stages() -> None:
    layout = with_virtual_stages({"pp": 4, "layers_per_virtual_stage": 2}, layers=32)
    assert layout == {"pp": 4, "virtual_stages": 4, "schedule": "interleaved_1f1b"}
    assert with_virtual_stages({"pp": 4, "layers_per_virtual_stage": 8}, 32) == {"pp": 4, "virtual_stages": 1}
    zero_bubble = {"pp": 2, "layers_per_virtual_stage": 1, "schedule": "zbv"}
    assert with_virtual_stages(zero_bubble, 4) == {"pp": 2, "virtual_stages": 2, "schedule": "zbv"}
    for unresolved in ({"pp": 4, "layers_per_virtual_stage": 3}, {"layers_per_virtual_stage": 2}):
        assert with_virtual_stages(unresolved, 32) == unresolved
        with pytest.raises(ValidationError, match="give virtual_stages"):
            ParallelConfig.model_validate(unresolved)


def test_names_of_other_trainers_load() -> None:
    text = """
    model: {num_hidden_layers: 16, num_attention_heads: 8, hidden_size: 256}
    train: {global_batch: 64, steps: 1}
    parallel:
      hybrid_zero_degree: 2
      pipeline_model_parallel_size: 2
      tensor_model_parallel_size: 4
      num_layers_per_virtual_pipeline_stage: 4
      train_micro_batch_size_per_gpu: 2
      zero_optimization: {stage: 1}
    """
    layout = loads(text).config.parallel
    assert (layout.dp_shard, layout.pp, layout.tp, layout.zero, layout.micro_batch) == (2, 2, 4, 1, 2)
    assert (layout.virtual_stages, layout.schedule) == (2, "interleaved_1f1b")
    for name, field in (("pipeline_size", "pp"), ("tensor_parallel_size", "tp"), ("context_parallel_size", "cp")):
        assert getattr(loads(f"{{train: {{global_batch: 64}}, parallel: {{{name}: 2}}}}").config.parallel, field) == 2


def test_a_batch_that_does_not_divide_names_the_divisor() -> None:
    with pytest.raises(ValueError, match="use a multiple of 3"):
        ParallelConfig(dp_replicate=3).accumulation(32)
    with pytest.raises(ValueError, match="choose a divisor of 8"):
        ParallelConfig(dp_replicate=4, micro_batch=3).accumulation(32)
