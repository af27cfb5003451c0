"""Parameters and FLOPs: exact against transformers, and against what papers report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headwater.core.errors import InputError
from headwater.plan import counts
from headwater.plan.build import one_case
from headwater.plan.cluster import parse
from headwater.plan.model_spec import ModelSpec
from headwater.plan.train_spec import Layout, TrainSpec

LLAMA = {"model_type": "llama", "num_attention_heads": 32, "hidden_size": 4096, "num_hidden_layers": 32}
# Seventeen public configurations, as their config.json has them.
PUBLIC: dict[str, dict[str, Any]] = {
    "gpt2": {"model_type": "gpt2", "n_layer": 12, "n_embd": 768, "n_head": 12, "vocab_size": 50257,
             "n_positions": 1024},
    "gpt-neox-20b": {
        "model_type": "gpt_neox", "num_hidden_layers": 44, "hidden_size": 6144, "num_attention_heads": 64,
        "intermediate_size": 24576, "vocab_size": 50432, "tie_word_embeddings": False,
    },
    "opt-1.3b": {
        "model_type": "opt", "num_hidden_layers": 24, "hidden_size": 2048, "num_attention_heads": 32, "ffn_dim": 8192,
        "vocab_size": 50272, "max_position_embeddings": 2048, "word_embed_proj_dim": 2048,
    },
    "bloom-7b1": {"model_type": "bloom", "n_layer": 30, "hidden_size": 4096, "n_head": 32, "vocab_size": 250880},
    "llama-2-7b": {**LLAMA, "intermediate_size": 11008, "vocab_size": 32000},
    "llama-2-70b": {
        **LLAMA, "hidden_size": 8192, "num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8,
        "intermediate_size": 28672, "vocab_size": 32000,
    },
    "llama-3.1-8b": {**LLAMA, "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256},
    "llama-3.1-405b": {
        **LLAMA, "hidden_size": 16384, "num_hidden_layers": 126, "num_attention_heads": 128, "num_key_value_heads": 8,
        "intermediate_size": 53248, "vocab_size": 128256,
    },
    "mistral-7b": {
        **LLAMA, "model_type": "mistral", "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 32000,
        "sliding_window": 4096,
    },
    "mixtral-8x7b": {
        **LLAMA, "model_type": "mixtral", "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 32000,
        "num_local_experts": 8, "num_experts_per_tok": 2,
    },
    "qwen2-7b": {
        "model_type": "qwen2", "num_hidden_layers": 28, "hidden_size": 3584, "num_attention_heads": 28,
        "num_key_value_heads": 4, "intermediate_size": 18944, "vocab_size": 152064, "tie_word_embeddings": False,
    },
    "qwen3-0.6b": {
        "model_type": "qwen3", "num_hidden_layers": 28, "hidden_size": 1024, "num_attention_heads": 16,
        "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 3072, "vocab_size": 151936,
        "tie_word_embeddings": True,
    },
    "qwen3-30b-a3b": {
        "model_type": "qwen3_moe", "num_hidden_layers": 48, "hidden_size": 2048, "num_attention_heads": 32,
        "num_key_value_heads": 4, "head_dim": 128, "intermediate_size": 6144, "moe_intermediate_size": 768,
        "num_experts": 128, "num_experts_per_tok": 8, "vocab_size": 151936, "tie_word_embeddings": False,
        "decoder_sparse_step": 1, "mlp_only_layers": [],
    },
    "gemma-7b": {
        "model_type": "gemma", "num_hidden_layers": 28, "hidden_size": 3072, "num_attention_heads": 16,
        "num_key_value_heads": 16, "head_dim": 256, "intermediate_size": 24576, "vocab_size": 256000,
    },
    "gemma-2-9b": {
        "model_type": "gemma2", "num_hidden_layers": 42, "hidden_size": 3584, "num_attention_heads": 16,
        "num_key_value_heads": 8, "head_dim": 256, "intermediate_size": 14336, "vocab_size": 256000,
        "sliding_window": 4096,
    },
    "deepseek-v3": {
        "model_type": "deepseek_v3", "num_hidden_layers": 61, "hidden_size": 7168, "num_attention_heads": 128,
        "num_key_value_heads": 128, "intermediate_size": 18432, "moe_intermediate_size": 2048, "n_routed_experts": 256,
        "n_shared_experts": 1, "num_experts_per_tok": 8, "first_k_dense_replace": 3, "q_lora_rank": 1536,
        "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128, "vocab_size": 129280,
        "n_group": 8, "topk_group": 4,
    },
    "gpt-oss-20b": {
        "model_type": "gpt_oss", "num_hidden_layers": 24, "hidden_size": 2880, "num_attention_heads": 64,
        "num_key_value_heads": 8, "head_dim": 64, "intermediate_size": 2880, "num_local_experts": 32,
        "num_experts_per_tok": 4, "vocab_size": 201088, "sliding_window": 128,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_parameters_are_exactly_those_of_transformers(name: str) -> None:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    raw = dict(PUBLIC[name])
    config = transformers.AutoConfig.for_model(raw.pop("model_type"), **raw)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    expected = sum(parameter.numel() for parameter in model.parameters())
    assert ModelSpec.from_hf_config(PUBLIC[name]).parameters == expected


def test_published_sizes_of_mixtures_are_met() -> None:
    deepseek = ModelSpec.from_hf_config(PUBLIC["deepseek-v3"])
    assert deepseek.parameters == pytest.approx(671e9, rel=0.001)
    assert deepseek.active_parameters == pytest.approx(37e9, rel=0.03)
    assert ModelSpec.from_hf_config(PUBLIC["mixtral-8x7b"]).active_parameters == pytest.approx(12.9e9, rel=0.01)


def test_flops_follow_equation_three_of_the_megatron_paper() -> None:
    layers, h, vocab, s = 96, 12288, 51200, 2048
    model = ModelSpec.from_fields(layers=layers, hidden=h, heads=96, ffn=4 * h, vocab=vocab, gated=False)
    work = TrainSpec(300e9, s, 1536)
    x = one_case(model, work, parse("a100:8x192"), Layout(tp=8, pp=8, dp=24, recompute=1.0))
    batch = 1536 * s
    paper = 96.0 * batch * layers * h * h * (1 + s / (6 * h) + vocab / (16 * layers * h))
    ours = float(counts.hardware_flops_per_token(x, 1.0)[0]) * batch
    assert ours == pytest.approx(paper, rel=1e-12)


def test_causal_counting_halves_attention_and_nothing_else() -> None:
    model = ModelSpec.from_fields(layers=4, hidden=512, heads=8, vocab=1024)
    x = one_case(model, TrainSpec(1e9, 4096, 8), parse("a100:8x1"), Layout(dp=8))
    whole, half = (float(counts.model_flops_per_token(x, k)[0]) for k in (1.0, 0.5))
    core = float(counts.attention_flops_per_token(x, 1.0)[0])
    assert whole - half == pytest.approx(core / 2)
    assert core == pytest.approx(12 * 4 * 512 * 4096)


def test_case_counts_agree_with_the_specification() -> None:
    for name in ("llama-2-7b", "llama-3.1-405b", "mixtral-8x7b", "deepseek-v3"):
        model = ModelSpec.from_hf_config(PUBLIC[name])
        x = one_case(model, TrainSpec(1e9, 4096, 64), parse("h100:8x8"), Layout(dp=64))
        assert float(np.asarray(counts.total_parameters(x))[0]) == pytest.approx(model.parameters, rel=2e-4)


@pytest.mark.parametrize(
    "fields",
    [
        {"layers": 0, "hidden": 512, "heads": 8, "vocab": 100},
        {"layers": 4, "hidden": -1, "heads": 8, "vocab": 100},
        {"layers": 4, "hidden": 512, "heads": 8, "kv_heads": 3, "vocab": 100},
        {"layers": 4, "hidden": 512, "heads": 8, "vocab": 10**12},
        {"layers": 4, "hidden": 512, "vocab": 100},
        {"layers": 4, "hidden": 512, "heads": 8, "vocab": 100, "colour": 3},
        {"layers": "a", "hidden": 512, "heads": 8, "vocab": 100},
        {"layers": 4, "hidden": float("nan"), "heads": 8, "vocab": 100},
        {"layers": 4, "hidden": 512, "heads": 8, "vocab": float("inf")},
        {"layers": 4, "hidden": 512, "heads": 8, "vocab": 100, "head_dim": -64},
        {"layers": 4, "hidden": 512, "heads": 8, "vocab": 100, "window": -5},
        {"layers": 4, "hidden": 512, "heads": 8, "vocab": 100, "kv_heads": -8},
        {"layers": 4, "hidden": 512, "heads": 8, "vocab": 100, "shared_ffn": 1.5},
        {"layers": 4, "hidden": 512, "heads": 8, "vocab": 100, "experts": 4, "topk": 8, "expert_ffn": 64},
    ],
)
def test_absurd_models_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        ModelSpec.from_fields(**fields)


@pytest.mark.parametrize("text", ["[]", "3", "x", '"llama"'])
def test_a_file_that_is_no_configuration_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(InputError, match="model configuration") as error:
        ModelSpec.from_file(tmp_path)
    assert error.value.mend


def test_an_unknown_model_type_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InputError, match="mamba") as error:
        ModelSpec.from_hf_config({"model_type": "mamba"})
    assert "llama" in error.value.mend
