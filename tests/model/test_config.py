"""The model section: what loads, what is refused and how, and exact counts."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from headwater.core.config import Section, field
from headwater.core.errors import RecipeError
from headwater.core.recipe import loads_recipe
from headwater.model import Decoder, ModelConfig, RopeScaling
from tests.model.conftest import random_tokens, small_config, small_model


class Recipe(Section):
    model: ModelConfig = field(ModelConfig())
    """The model."""


LLAMA_7B = {"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "intermediate_size": 11008}


def load(text: str) -> ModelConfig:
    return loads_recipe(text, Recipe).config.model


def test_names_of_other_projects_load() -> None:
    block = "model: {d_model: 4096, n_layers: 32, n_heads: 32, d_ff: 11008, max_seq_len: 4096, vocab_size: 32000}"
    config = load(block)
    assert config == ModelConfig(**LLAMA_7B, max_position_embeddings=4096, vocab_size=32000)
    assert config.parameter_count().total == 6_738_415_616  # Llama 2 7B


def test_a_hugging_face_block_loads_with_its_rope_scaling() -> None:
    config = load(
        "model: {hidden_size: 2048, num_hidden_layers: 16, num_attention_heads: 32, intermediate_size: 8192,"
        " max_position_embeddings: 131072, num_key_value_heads: 8, rope_theta: 500000.0, rope_scaling: {type: llama3,"
        " factor: 32.0, low_freq_factor: 1.0, high_freq_factor: 4.0, original_max_position_embeddings: 8192},"
        " tie_word_embeddings: true, vocab_size: 128256}"
    )
    assert config.parameter_count().total == 1_235_814_400  # Llama 3.2 1B
    assert config.rope_scaling is not None
    assert config.rope_scaling.rope_type == "llama3"


def test_what_is_not_given_follows_from_the_rest() -> None:
    config = ModelConfig(hidden_size=768, num_attention_heads=12)
    assert (config.head_dim, config.num_key_value_heads, config.intermediate_size) == (64, 12, 2048)
    assert ModelConfig.model_validate(config.to_dict()) == config


@pytest.mark.parametrize(
    ("block", "what", "mend"),
    [
        ("{hidden_size: 100, num_attention_heads: 3}", "100 is not a multiple of num_attention_heads 3", "use 99"),
        ("{num_attention_heads: 8, num_key_value_heads: 3}", "not a multiple of num_key_value_heads 3", "1, 2, 4, 8"),
        ("{hidden_size: 24, num_attention_heads: 8}", "head_dim 3 is odd", "even head_dim"),
        ("{qk_norm: true, attention_bias: qkv}", "no Hugging Face architecture", "true or false"),
        ("{hidden_size: 100, num_attention_heads: 8, head_dim: 16}", "Llama and Qwen2 demand", "qk_norm"),
        ("{rope_scaling: {rope_type: llama3, factor: 8}}", "llama3 needs high_freq_factor", "give"),
        ("{rope_scaling: {rope_type: linear, factor: 2, beta_fast: 3}}", "beta_fast has no effect", "remove"),
        ("{rope_scaling: {rope_type: linear, factor: 0.5}}", "factor = 0.5 must be at least 1", ""),
        ("{hiden_size: 64}", "hiden_size", "hidden_size"),
    ],
)
def test_sizes_that_do_not_fit_are_refused_with_the_mend(block: str, what: str, mend: str) -> None:
    with pytest.raises(RecipeError) as caught:
        load(f"model: {block}")
    assert what in str(caught.value)
    assert mend in str(caught.value)


def test_the_vocabulary_comes_from_the_tokenizer_or_must_agree_with_it() -> None:
    config = ModelConfig()
    with pytest.raises(RecipeError, match="vocabulary size is not known"):
        config.parameter_count()
    assert config.with_vocab_size(1000).padded_vocab_size == 1024
    assert config.with_vocab_size(1000).with_vocab_size(1000).true_vocab_size == 1000
    with pytest.raises(RecipeError, match=r"1,000 token ids and the tokenizer 1,001"):
        config.with_vocab_size(1000).with_vocab_size(1001)


@given(
    heads=st.sampled_from([(4, 4), (4, 2), (4, 1)]),
    bias=st.sampled_from([False, True, "qkv"]),
    norm=st.booleans(),
    tied=st.booleans(),
    vocab=st.integers(1, 400),
    layers=st.integers(1, 3),
)
def test_parameter_counts_are_those_of_the_modules(
    heads: tuple[int, int], bias: bool | str, norm: bool, tied: bool, vocab: int, layers: int
) -> None:
    if norm and bias == "qkv":
        bias = False
    config = small_config(
        num_attention_heads=heads[0],
        num_key_value_heads=heads[1],
        attention_bias=bias,
        qk_norm=norm,
        tie_word_embeddings=tied,
        vocab_size=vocab,
        num_hidden_layers=layers,
    )
    with torch.device("meta"):
        model = Decoder(config)
    count = config.parameter_count(padded=True)
    assert sum(p.numel() for p in model.parameters()) == count.total
    assert sum(p.numel() for p in model.model.layers["0"].parameters()) == count.per_layer
    padding = (config.padded_vocab_size - vocab) * 64 * (1 if tied else 2)
    assert config.parameter_count().total == count.total - padding


@pytest.mark.parametrize("tied", [False, True])
def test_flops_are_those_pytorch_counts(tied: bool) -> None:
    model = small_model(vocab_size=384, tie_word_embeddings=tied)  # a multiple of 128: no padding to multiply with
    tokens = random_tokens(2, 33, 384)
    with FlopCounterMode(display=False) as counter:
        logits = model.logits(model(tokens[:, :-1]))
        F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
    counted = counter.get_flop_counts()["Global"]  # attention is one operator of ours, which it does not know
    matrices = sum(flops for operator, flops in counted.items() if str(operator) == "aten.mm")
    config, seq = model.config, 32
    attention = 12 * config.num_hidden_layers * config.num_attention_heads * config.head_dim * seq
    assert config.flops_per_token(seq) - attention == matrices / (2 * seq)
    assert config.flops_per_token(seq) - config.flops_per_token(seq, causal=True) == attention // 2


def test_the_configuration_needs_no_torch() -> None:
    code = "import sys; import headwater.model, headwater.model.config, headwater.model.hf_config, headwater.engine;"
    code += "headwater.model.ModelConfig(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_wrong_type_is_an_error_for_python_users_too() -> None:
    with pytest.raises(ValidationError):
        RopeScaling.model_validate({"rope_type": "ntk", "factor": 2})
