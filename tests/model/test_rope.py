"""Rotary positions: frequencies equal transformers' bit for bit, the turn equals the textbook's, gradients too."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from headwater.model.hf_config import config_to_hf
from headwater.model.rope import Rotary, rope_frequencies, rotate
from tests.model.conftest import small_config

SCALINGS: list[dict[str, Any] | None] = [
    None,
    {"rope_type": "linear", "factor": 2.5},
    {"rope_type": "dynamic", "factor": 2.0},
    {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    },
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
    {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 16,
        "beta_fast": 16.0,
        "beta_slow": 2.0,
        "mscale": 0.7,
        "mscale_all_dim": 1.0,
        "truncate": False,
    },
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "attention_factor": 1.5},
]


def names(scaling: dict[str, Any] | None) -> str:
    return "none" if scaling is None else f"{scaling['rope_type']}{len(scaling)}"


@pytest.mark.parametrize("scaling", SCALINGS, ids=names)
@pytest.mark.parametrize("theta", [10000.0, 500000.0])
def test_frequencies_and_attention_factors_equal_those_of_transformers(
    scaling: dict[str, Any] | None, theta: float
) -> None:
    config = small_config(rope_scaling=scaling, rope_theta=theta, head_dim=32)
    theirs = LlamaConfig.from_dict(config_to_hf(config))
    kind = "default" if scaling is None else scaling["rope_type"]
    make = LlamaRotaryEmbedding.compute_default_rope_parameters if kind == "default" else ROPE_INIT_FUNCTIONS[kind]
    expected, factor = make(theirs)
    inv_freq, attention_factor = rope_frequencies(config)
    assert torch.equal(inv_freq, expected)
    assert attention_factor == factor


@pytest.mark.parametrize("scaling", SCALINGS, ids=names)
@pytest.mark.parametrize("longest", [40, 150])  # within and beyond max_position_embeddings (64): dynamic differs
def test_turned_vectors_equal_those_of_transformers(scaling: dict[str, Any] | None, longest: int) -> None:
    config = small_config(rope_scaling=scaling, head_dim=32)
    x = torch.randn(1, longest, 3, 32, generator=torch.Generator().manual_seed(0))
    positions = torch.arange(longest)[None]
    cos, sin = LlamaRotaryEmbedding(LlamaConfig.from_dict(config_to_hf(config)))(x, positions)
    expected, _ = apply_rotary_pos_emb(x, x, cos, sin, unsqueeze_dim=2)
    assert torch.allclose(rotate(x, *Rotary(config)(positions)), expected, atol=2e-6)


def test_a_short_row_is_not_stretched_by_a_long_one_beside_it() -> None:
    rotary = Rotary(small_config(rope_scaling={"rope_type": "dynamic", "factor": 2.0}))
    long = torch.arange(100)
    both = torch.stack([long, long.clamp(max=30)])
    cos, _ = rotary(both)
    alone, _ = rotary(both[1:])
    assert torch.equal(cos[1:], alone)
    assert not torch.equal(cos[0, :30], cos[1, :30])


def test_scores_depend_on_the_distance_only() -> None:
    rotary = Rotary(small_config())
    q, k = torch.randn(2, 1, 1, 1, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(1))

    def score(at_q: int, at_k: int) -> torch.Tensor:
        turned = [rotate(x, *rotary(torch.tensor([[at]]))) for x, at in ((q, at_q), (k, at_k))]
        return (turned[0] * turned[1]).sum()

    assert torch.allclose(score(9, 4), score(25, 20), atol=1e-6)
    assert not torch.allclose(score(9, 4), score(9, 5), atol=1e-3)


def test_the_gradient_of_the_turn() -> None:
    cos, sin = (x.double() for x in Rotary(small_config())(torch.arange(5)[None]))
    x = torch.randn(2, 5, 3, 16, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: rotate(x, cos, sin), (x,))


def test_bfloat16_is_turned_in_float32() -> None:
    cos, sin = Rotary(small_config())(torch.arange(50)[None])
    x = torch.randn(1, 50, 2, 16).bfloat16()
    assert torch.equal(rotate(x, cos, sin), rotate(x.float(), cos, sin).bfloat16())
