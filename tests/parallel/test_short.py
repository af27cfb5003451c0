"""A layout in one line: what it names, and that what is no layout is told so."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.core.errors import UserError
from headwater.parallel.config import ParallelConfig
from headwater.parallel.short import parse_layout, short_layout


@pytest.mark.parametrize(
    ("line", "fields", "precision"),
    [
        ("dp=2", {"dp_replicate": 2}, None),
        ("dp=2,zero=0", {"dp_replicate": 2, "zero_stage": 0}, None),
        ("dp=2,zero=3", {"dp_shard": 2, "zero_stage": 3}, None),
        ("dp_replicate=2, dp_shard=4, zero_stage=1", {"dp_replicate": 2, "dp_shard": 4, "zero_stage": 1}, None),
        ("pp=2,schedule=zbv", {"pp": 2, "schedule": "zbv", "virtual_stages": 2}, None),
        ("pp=2,schedule=interleaved_1f1b,v=3", {"pp": 2, "schedule": "interleaved_1f1b", "virtual_stages": 3}, None),
        ("tp=4,precision=fp16,micro_batch=1", {"tp": 4, "micro_batch": 1}, "fp16"),
        ("cp=2,cp_method=all_gather", {"cp": 2, "cp_method": "all_gather"}, None),
        ("hybrid_zero_degree=2,zero_optimization.stage=2", {"dp_shard": 2, "zero_stage": 2}, None),
        ("tensor_model_parallel_size=2,pipeline_size=2", {"tp": 2, "pp": 2}, None),
    ],
)
def test_a_line_names_a_layout(line: str, fields: dict[str, Any], precision: str | None) -> None:
    assert parse_layout(line) == (fields, precision)
    ParallelConfig.model_validate(fields)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("dp", "dp has no value"),
        ("dq=2", "'dq=2' is no part of a layout"),
        ("", "'' is no part of a layout"),
        ("tp=2,tp=4", "tp is given twice"),
        ("tp=two", "tp = 'two' is not a whole number"),
        ("tp=-1", "tp = -1 is less than 1"),
        ("tp=0", "tp = 0 is less than 1"),
        ("zero_stage=5", "zero = 5 is no ZeRO stage"),
        ("dp=2,dp_shard=2", "dp is given beside dp_replicate or dp_shard"),
    ],
)
def test_what_is_no_layout_is_refused(line: str, message: str) -> None:
    with pytest.raises(UserError, match=message.replace("(", "\\(")):
        parse_layout(line)


@given(
    st.sampled_from([1, 2, 4]),
    st.sampled_from([1, 2, 4]),
    st.sampled_from([1, 2]),
    st.sampled_from(["1f1b", "gpipe", "interleaved_1f1b", "zbv"]),
    st.sampled_from(["auto", "ulysses", "all_gather"]),
    st.sampled_from([None, 2]),
)
def test_every_layout_has_a_line_that_reads_as_it(
    replicate: int, shard: int, degree: int, schedule: str, method: str, micro: int | None
) -> None:
    several = degree > 1 and schedule in ("interleaved_1f1b", "zbv")
    layout = ParallelConfig.model_validate(
        {
            "dp_replicate": replicate,
            "dp_shard": shard,
            "tp": degree,
            "pp": degree,
            "cp": degree,
            "schedule": schedule if degree > 1 else "1f1b",
            "virtual_stages": 2 if several else 1,
            "cp_method": method if degree > 1 else "auto",
            "micro_batch": micro,
        }
    )
    line = short_layout(layout, "bf16")
    if layout.ranks == 1:
        assert line.endswith("precision=bf16")
        return
    fields, precision = parse_layout(line)
    assert ParallelConfig.model_validate(fields) == layout
    assert precision == "bf16"
