"""Pipelines together with the other axes train as one process does, and validate as it does."""

from __future__ import annotations

from typing import Any

import pytest

from headwater.parallel.config import ParallelConfig
from tests.parallel.parity import MODEL, assert_equal_to_one_process, compare, train_config

LAYOUTS: dict[str, dict[str, Any]] = {
    "pp 2 x zero 0": {"pp": 2, "dp_replicate": 2},
    "pp 2 x zero 1": {"pp": 2, "dp_shard": 2, "zero_stage": 1, "schedule": "interleaved_1f1b", "virtual_stages": 2},
    "pp 2 x zero 3": {"pp": 2, "dp_shard": 2, "schedule": "zbv", "virtual_stages": 2},
    "pp 2 x tp 2": {"pp": 2, "tp": 2},
    "pp 2 x tp 2, zero bubble": {"pp": 2, "tp": 2, "schedule": "interleaved_zero_bubble", "virtual_stages": 2},
    "pp 2 x cp 2": {"pp": 2, "cp": 2, "schedule": "interleaved_1f1b", "virtual_stages": 2},
    "2 x 2 x 2": {"pp": 2, "tp": 2, "dp_shard": 2},
    "2 x 2 x 2, dualpipev": {"pp": 2, "tp": 2, "dp_replicate": 2, "schedule": "dualpipev", "virtual_stages": 2},
}


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_a_pipeline_with_other_axes_trains_as_one_process_does(layout: dict[str, Any]) -> None:
    tied = MODEL.model_copy(update={"tie_word_embeddings": True})
    found = compare(ParallelConfig.model_validate(layout), model=tied, config=train_config(z_loss=1e-3), micro_batch=1)
    assert_equal_to_one_process(found)
