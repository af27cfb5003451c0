"""Precision, loss scale and recomputation in a recipe, in our words and in those of other trainers."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from headwater.core.errors import RecipeError
from headwater.core.recipe import loads_recipe
from headwater.train.config import TrainConfig


def load(text: str) -> TrainConfig:
    config: TrainConfig = loads_recipe(text, TrainConfig, name="r.yaml").config
    return config


@pytest.mark.parametrize(
    ("text", "precision"),
    [
        ("{}", "auto"),
        ("precision: tf32", "tf32"),
        ("mixed_precision: fp16", "fp16"),
        ("mixed_precision: no", "fp32"),
        ("precision: bf16-mixed", "bf16"),
        ("precision: 16-mixed", "fp16"),
        ("precision: 32", "fp32"),
        ("dtype: bfloat16", "bf16"),
        ("fp16: true", "fp16"),
        ("bf16: true", "bf16"),
        ("fp8: true", "fp8"),
        ("{bf16: true, fp16: false}", "bf16"),
        ("bf16: {enabled: true}", "bf16"),
        ("fp16: {enabled: false}", "auto"),
    ],
)
def test_precision_in_every_trainers_words(text: str, precision: str) -> None:
    assert load(text).precision == precision


def test_a_deepspeed_block_is_taken_whole() -> None:
    config = load(
        "fp16: {enabled: true, loss_scale: 0, initial_scale_power: 12, loss_scale_window: 500, min_loss_scale: 2}"
    )
    assert config.precision == "fp16"
    assert config.scaler.init_scale == 4096
    assert config.scaler.growth_interval == 500
    assert config.scaler.min_scale == 2


def test_the_names_of_pytorch_s_scaler_reach_it() -> None:
    config = load("{init_scale: 1024, growth_factor: 4, backoff_factor: 0.25, growth_interval: 10}")
    assert config.scaler.model_dump() == {
        "init_scale": 1024, "growth_factor": 4, "backoff_factor": 0.25, "growth_interval": 10, "min_scale": 1,
    }  # fmt: skip


def test_the_defaults_are_the_ones_people_know() -> None:
    assert TrainConfig().scaler.model_dump() == {
        "init_scale": 65536, "growth_factor": 2, "backoff_factor": 0.5, "growth_interval": 2000, "min_scale": 1,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("gradient_checkpointing: true", {"activation_checkpointing": "full"}),
        ("gradient_checkpointing: false", {"activation_checkpointing": "none"}),
        (
            "{recompute_granularity: full, recompute_method: block, recompute_num_layers: 2}",
            {"activation_checkpointing": "full", "recompute": {"num_layers": 2}},
        ),
        (
            "{activations_checkpoint_granularity: selective, activations_checkpoint_num_layers: 1}",
            {"activation_checkpointing": "selective", "recompute": {"num_layers": 1}},
        ),
        (
            "{activation_checkpointing: selective, recompute: {selective: attention, every: 2}}",
            {"activation_checkpointing": "selective", "recompute": {"selective": "attention", "every": 2}},
        ),
        ("cpu_checkpointing: true", {"recompute": {"offload": True}}),
    ],
)
def test_recomputation_in_other_trainers_words(text: str, expected: dict[str, Any]) -> None:
    assert load(text) == TrainConfig(**expected)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{fp16: true, bf16: true}", "both set precision"),
        ("fp16: {enabled: true, loss_scale: 128}", "fixed loss scale of 128"),
        ("fp16: {enabled: true, hysteresis: 2}", "unknown key 'fp16.hysteresis'"),
        ("fp16: {initial_scale_power: 99}", "power of two from 0 to 60"),
        ("{activation_checkpointing: full, recompute_method: uniform}", "checkpoint of its own"),
        ("recompute: {every: 2}", "activation_checkpointing is none"),
        ("precision: fp4", "expected one of auto, fp32, tf32"),
        ("scaler: {min_scale: 2, init_scale: 1}", "above init_scale"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_words(text: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        load(text)


def test_the_same_words_work_from_python() -> None:
    assert TrainConfig(precision="bf16-mixed", activation_checkpointing=True) == TrainConfig(
        precision="bf16", activation_checkpointing="full"
    )
    with pytest.raises(ValidationError):
        TrainConfig(precision="fp4")
