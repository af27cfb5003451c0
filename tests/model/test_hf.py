"""Hugging Face folders, both ways, against transformers itself."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from headwater.core.errors import DiskSpaceError, InputError, UserError
from headwater.model import Decoder, ModelConfig, load_hf, save_hf
from headwater.model.hf_config import config_from_hf, config_to_hf
from tests.model.conftest import random_tokens, small_config, small_model
from tests.model.test_rope import SCALINGS, names

KINDS: dict[str, dict[str, Any]] = {
    "llama": {"head_dim": 32},
    "llama-bias": {"attention_bias": True, "num_key_value_heads": 4},
    "qwen2": {"attention_bias": "qkv"},
    "qwen3": {"qk_norm": True, "head_dim": 32},
}


def logits_of_transformers(folder: Path, tokens: torch.Tensor) -> tuple[torch.nn.Module, torch.Tensor]:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        return model, model(tokens).logits


def ours(model: Decoder, tokens: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return model.logits(model(tokens))


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("kind", KINDS)
def test_logits_equal_those_of_transformers_both_ways(tmp_path: Path, kind: str, tied: bool) -> None:
    model = small_model(tie_word_embeddings=tied, **KINDS[kind])
    tokens = random_tokens(2, 50)
    files = save_hf(model, tmp_path / "out", bos_token_id=1, eos_token_id=2, pad_token_id=3)
    assert files == ["config.json", "generation_config.json", "model.safetensors"]
    theirs, expected = logits_of_transformers(tmp_path / "out", tokens)
    assert theirs.config.model_type == kind.partition("-")[0]
    assert theirs.config.vocab_size == expected.shape[-1] == 301
    assert (theirs.config.bos_token_id, theirs.config.eos_token_id) == (1, 2)
    assert torch.allclose(ours(model, tokens), expected, atol=1e-5, rtol=0)
    theirs.save_pretrained(tmp_path / "back")
    back = load_hf(tmp_path / "back")
    assert back.config == model.config
    assert torch.allclose(ours(back, tokens), expected, atol=1e-5, rtol=0)
    assert all(torch.equal(a, b) for a, b in zip(back.parameters(), model.parameters(), strict=True))


@pytest.mark.parametrize("scaling", SCALINGS[1:], ids=names)
def test_rope_scalings_survive_both_ways(tmp_path: Path, scaling: dict[str, Any]) -> None:
    model = small_model(rope_scaling=scaling, rope_theta=20000.0)
    tokens = random_tokens(1, 100)  # beyond max_position_embeddings
    save_hf(model, tmp_path / "out")
    theirs, expected = logits_of_transformers(tmp_path / "out", tokens)
    assert torch.allclose(ours(model, tokens), expected, atol=1e-5, rtol=0)
    theirs.save_pretrained(tmp_path / "back")
    assert load_hf(tmp_path / "back").config == model.config


def test_the_other_generations_keys_are_read_alone() -> None:
    """transformers 4 knows rope_theta, rope_scaling and torch_dtype; 5 knows rope_parameters and dtype."""
    scaling = {"rope_type": "linear", "factor": 4.0}
    config = small_config(rope_scaling=scaling, rope_theta=123.0)
    data = config_to_hf(config, dtype="bfloat16")
    assert (data["dtype"], data["torch_dtype"]) == ("bfloat16", "bfloat16")
    new = {key: value for key, value in data.items() if key not in ("rope_theta", "rope_scaling", "torch_dtype")}
    old = {key: value for key, value in data.items() if key not in ("rope_parameters", "dtype")}
    assert config_from_hf(new) == config_from_hf(old) == config
    very_old = old | {"rope_scaling": {"type": "linear", "factor": 4.0}}
    assert config_from_hf(very_old) == config


@pytest.mark.parametrize(
    ("name", "card", "parameters"),
    [
        (
            "Llama 2 7B, as published in 2023",
            {
                "model_type": "llama",
                "hidden_act": "silu",
                "hidden_size": 4096,
                "initializer_range": 0.02,
                "intermediate_size": 11008,
                "max_position_embeddings": 4096,
                "num_attention_heads": 32,
                "num_hidden_layers": 32,
                "num_key_value_heads": 32,
                "pretraining_tp": 1,
                "rms_norm_eps": 1e-05,
                "rope_scaling": None,
                "tie_word_embeddings": False,
                "torch_dtype": "float16",
                "vocab_size": 32000,
            },
            6_738_415_616,
        ),
        (
            "Qwen2.5 0.5B",
            {
                "model_type": "qwen2",
                "hidden_act": "silu",
                "hidden_size": 896,
                "intermediate_size": 4864,
                "max_position_embeddings": 32768,
                "max_window_layers": 24,
                "num_attention_heads": 14,
                "num_hidden_layers": 24,
                "num_key_value_heads": 2,
                "rms_norm_eps": 1e-06,
                "rope_theta": 1000000.0,
                "sliding_window": 32768,
                "tie_word_embeddings": True,
                "use_sliding_window": False,
                "vocab_size": 151936,
            },
            494_032_768,
        ),
        (
            "Qwen3 0.6B",
            {
                "model_type": "qwen3",
                "attention_bias": False,
                "head_dim": 128,
                "hidden_act": "silu",
                "hidden_size": 1024,
                "intermediate_size": 3072,
                "max_position_embeddings": 40960,
                "num_attention_heads": 16,
                "num_hidden_layers": 28,
                "num_key_value_heads": 8,
                "rms_norm_eps": 1e-06,
                "rope_theta": 1000000,
                "tie_word_embeddings": True,
                "use_sliding_window": False,
                "vocab_size": 151936,
            },
            596_049_920,
        ),
    ],
)
def test_published_configurations_are_understood(name: str, card: dict[str, Any], parameters: int) -> None:
    assert config_from_hf(card).parameter_count().total == parameters


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "gpt2"}, "model_type 'gpt2' is not supported"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "sliding-window"),
        ({"quantization_config": {"bits": 4}}, "quantised"),
        ({"rope_parameters": {"rope_type": "longrope", "factor": 2}, "rope_scaling": None}, "longrope"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
        ({"num_key_value_heads": 3}, "not a multiple of num_key_value_heads 3"),
        ({"hidden_size": None}, "hidden_size is missing"),
    ],
)
def test_what_the_decoder_does_not_compute_is_refused_by_name(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        config_from_hf(config_to_hf(small_config()) | change)


def test_large_models_are_sharded_with_an_index(tmp_path: Path) -> None:
    model = small_model()
    save_hf(model, tmp_path, shard_bytes=100_000)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    shards = sorted(path.name for path in tmp_path.glob("*.safetensors"))
    assert len(shards) > 2
    assert shards[0] == f"model-00001-of-{len(shards):05d}.safetensors"
    assert sorted(set(index["weight_map"].values())) == shards
    assert index["metadata"]["total_size"] == model.config.parameter_count().total * 4
    tokens = random_tokens(1, 20)
    _, expected = logits_of_transformers(tmp_path, tokens)
    assert torch.allclose(expected, ours(model, tokens), atol=1e-5)
    assert torch.equal(ours(load_hf(tmp_path), tokens), ours(model, tokens))
    save_hf(model, tmp_path)  # another export into the same folder leaves no shard of the first
    assert [path.name for path in tmp_path.glob("*.safetensors*")] == ["model.safetensors"]


def test_an_export_is_trimmed_cast_and_the_same_each_time(tmp_path: Path) -> None:
    model = small_model()
    for name in ("a", "b"):
        save_hf(model, tmp_path / name, dtype="bfloat16")
    assert (tmp_path / "a/model.safetensors").read_bytes() == (tmp_path / "b/model.safetensors").read_bytes()
    tensors = load_file(tmp_path / "a/model.safetensors")
    assert tensors["lm_head.weight"].shape == (301, 64)
    assert {t.dtype for t in tensors.values()} == {torch.bfloat16}
    with safe_open(tmp_path / "a/model.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}
    assert next(load_hf(tmp_path / "a").parameters()).dtype == torch.bfloat16
    wide = load_hf(tmp_path / "a", dtype=torch.float32)
    assert torch.equal(wide.lm_head_weight[:301], model.lm_head_weight[:301].bfloat16().float())
    assert (wide.lm_head_weight[301:] == 0).all()
    with pytest.raises(UserError, match="cannot export as 'int8'"):
        save_hf(model, tmp_path / "c", dtype="int8")


def test_weights_without_a_module_export_the_same(tmp_path: Path) -> None:
    model = small_model(tie_word_embeddings=True)
    save_hf(model, tmp_path / "module")
    save_hf((model.config, model.state_dict()), tmp_path / "tensors")
    for name in ("model.safetensors", "config.json", "generation_config.json"):
        assert (tmp_path / "module" / name).read_bytes() == (tmp_path / "tensors" / name).read_bytes()
    with pytest.raises(UserError, match=r"lack model\.embed_tokens\.weight"):
        save_hf((model.config, {}), tmp_path / "none")


def test_tokenizer_files_come_along(tmp_path: Path) -> None:
    source = tmp_path / "hf"
    source.mkdir()
    (source / "tokenizer.json").write_text("{}")
    assert "tokenizer.json" in save_hf(small_model(), tmp_path / "copied", tokenizer_files=source)
    made = save_hf(small_model(), tmp_path / "made", tokenizer_files=lambda folder: (folder / "t.txt").touch())
    assert "t.txt" in made


def test_pickles_are_refused_unopened(tmp_path: Path) -> None:
    save_hf(small_model(), tmp_path)
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'touch /tmp/owned'\ntR.")
    with pytest.raises(InputError, match="pickles"):
        load_hf(tmp_path)


def test_folders_that_are_not_whole_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="file is missing"):
        load_hf(tmp_path)
    model = small_model()
    save_hf(model, tmp_path / "good")
    file = tmp_path / "good/model.safetensors"

    def with_tensors(change: dict[str, torch.Tensor | None]) -> Path:
        folder = tmp_path / "bad"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(tmp_path / "good", folder)
        tensors = load_file(file) | change
        save_file({name: t for name, t in tensors.items() if t is not None}, folder / file.name)
        return folder

    with pytest.raises(InputError, match=r"1 tensors are missing, the first is model\.norm\.weight"):
        load_hf(with_tensors({"model.norm.weight": None}))
    with pytest.raises(InputError, match=r"no place in this model, the first is model\.extra"):
        load_hf(with_tensors({"model.extra": torch.ones(1)}))
    with pytest.raises(InputError, match=r"lm_head\.weight is \[300, 64\], the configuration asks for \[301, 64\]"):
        load_hf(with_tensors({"lm_head.weight": torch.ones(300, 64)}))
    load_hf(with_tensors({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)}))  # old exports have these
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(InputError, match="cannot be read as safetensors"):
        load_hf(tmp_path / "good")


def test_an_index_cannot_lead_out_of_the_folder(tmp_path: Path) -> None:
    save_hf(small_model(), tmp_path / "good", shard_bytes=100_000)
    index = tmp_path / "good/model.safetensors.index.json"
    data = json.loads(index.read_text())
    data["weight_map"]["model.norm.weight"] = "../elsewhere.safetensors"
    shutil.copyfile(next((tmp_path / "good").glob("model-00001*")), tmp_path / "elsewhere.safetensors")
    index.write_text(json.dumps(data))
    with pytest.raises(InputError, match=r"elsewhere\.safetensors"):
        load_hf(tmp_path / "good")


def test_an_export_that_cannot_fit_is_not_begun(tmp_path: Path) -> None:
    with torch.device("meta"):
        huge = Decoder(ModelConfig(vocab_size=1 << 20, hidden_size=1 << 20, num_hidden_layers=1, num_attention_heads=8))
    with pytest.raises(DiskSpaceError, match="the export needs about"):
        save_hf(huge, tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_model_made_by_transformers_alone_loads(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=99, hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=48
    )
    theirs = LlamaForCausalLM(config)
    theirs.save_pretrained(tmp_path, max_shard_size="10KB")
    model = load_hf(tmp_path)
    tokens = random_tokens(2, 17, 99)
    assert torch.allclose(ours(model, tokens), theirs(tokens).logits, atol=1e-5)
