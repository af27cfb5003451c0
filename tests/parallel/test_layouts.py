"""Every data-parallel and tensor-parallel layout trains as one process does: loss, gradients, norm, weights."""

from __future__ import annotations

import pytest

from headwater.parallel.config import ParallelConfig
from tests.parallel.parity import MODEL, assert_equal_to_one_process, compare, train_config

LAYOUTS = {
    "zero 0": {"dp_replicate": 2},
    "zero 1": {"dp_shard": 2, "zero_stage": 1},
    "zero 2": {"dp_shard": 2, "zero_stage": 2},
    "zero 3": {"dp_shard": 2, "zero_stage": 3},
    "hybrid": {"dp_replicate": 2, "dp_shard": 2},
    "tp 2": {"tp": 2},
    "tp 4": {"tp": 4},
    "tp 2 x dp 2": {"tp": 2, "dp_shard": 2},
    "tp 2 x replicate 2": {"tp": 2, "dp_replicate": 2},
}


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_a_layout_trains_as_one_process_does(layout: dict[str, int]) -> None:
    assert_equal_to_one_process(compare(ParallelConfig.model_validate(layout)))


@pytest.mark.parametrize("layout", [{"tp": 2}, {"tp": 2, "dp_shard": 2}], ids=str)
def test_biases_head_norms_and_tied_embeddings_survive_tensor_parallelism(layout: dict[str, int]) -> None:
    model = MODEL.model_copy(update={"attention_bias": True, "qk_norm": True, "tie_word_embeddings": True})
    found = compare(ParallelConfig.model_validate(layout), model=model, config=train_config(z_loss=1e-3))
    assert_equal_to_one_process(found)


@pytest.mark.parametrize("layout", [{"dp_shard": 2}, {"tp": 2}, {"tp": 2, "dp_shard": 2}], ids=str)
def test_muon_orthogonalises_whole_matrices_in_every_layout(layout: dict[str, int]) -> None:
    config = train_config(optimizer={"name": "muon", "lr": 0.02, "adamw_lr": 1e-3, "eps": 1e-6})
    assert_equal_to_one_process(compare(ParallelConfig.model_validate(layout), config=config))
