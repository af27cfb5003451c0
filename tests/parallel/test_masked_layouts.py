"""A masked language model trains in every layout as in one process: loss, gradients, norm, weights, evaluation."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from headwater.model import ModelConfig
from headwater.parallel.config import ParallelConfig
from headwater.parallel.mesh import build_mesh
from headwater.train.train_module import TrainModule
from tests.parallel.parity import assert_equal_to_one_process, batch, compare, train_config
from tests.parallel.ranks import run_ranks

ENCODER: dict[str, Any] = {
    "architecture": "encoder",
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "intermediate_size": 96,
    "vocab_size": 120,
    "max_position_embeddings": 64,
    "tie_word_embeddings": True,
    "encoder": {"local_attention": 12},
}
BIASES = {"norm_bias": True, "mlp_bias": True, "decoder_bias": True, "classifier_bias": True, "local_attention": 12}
LAYOUTS = {
    "dp 2": {"dp_replicate": 2},
    "zero 3": {"dp_shard": 2},
    "tp 2": {"tp": 2},
    "pp 2": {"pp": 2},
    "tp 2 x dp 2": {"tp": 2, "dp_shard": 2},
    "pp 2 x tp 2": {"pp": 2, "tp": 2},
    "pp 2 x dp 2, interleaved": {"pp": 2, "dp_shard": 2, "schedule": "interleaved_1f1b", "virtual_stages": 2},
}


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_a_masked_model_trains_in_a_layout_as_in_one_process(layout: dict[str, Any]) -> None:
    found = compare(
        ParallelConfig.model_validate(layout),
        model=ModelConfig.model_validate(ENCODER),
        config=train_config(objective="mlm"),
    )
    assert_equal_to_one_process(found)


@pytest.mark.parametrize("layout", [{"tp": 2}, {"pp": 2}], ids=str)
def test_biases_and_an_untied_head_survive_a_layout(layout: dict[str, Any]) -> None:
    model = ModelConfig.model_validate(
        ENCODER | {"encoder": BIASES, "attention_bias": True, "tie_word_embeddings": False}
    )
    found = compare(ParallelConfig.model_validate(layout), model=model, config=train_config(objective="mlm"))
    assert_equal_to_one_process(found)


def _evaluate(parallel: ParallelConfig) -> tuple[float, int, int]:
    mesh = build_mesh(parallel, torch.device("cpu"))
    module = TrainModule.build(
        ModelConfig.model_validate(ENCODER),
        train_config(objective="mlm"),
        mesh=mesh,
        precision="fp32",
        micro_batch=2,
        seed=3,
    )
    rows = range(0, 8) if mesh.size("dp") == 1 else range(4 * mesh.coordinate("dp"), 4 * mesh.coordinate("dp") + 4)
    for _ in range(8):  # until something is right
        module.train_step(1, batch(1, rows, masked=True), lr_factor=20.0)
    with module.evaluation(averaged=False):
        return module.evaluate(batch(1, masked=True))


def test_loss_and_accuracy_are_those_of_one_process() -> None:
    torch.set_num_threads(1)
    nats, predicted, correct = _evaluate(ParallelConfig())
    assert 0 < correct < predicted
    for layout in ({"dp_shard": 2}, {"tp": 2}, {"pp": 2}):
        parallel = ParallelConfig.model_validate(layout)
        for found in run_ranks(2, _evaluate, parallel):
            assert found[0] == pytest.approx(nats, rel=1e-3)
            assert found[1:] == (predicted, correct)
