"""Hugging Face `config.json` files as fields of `ModelSpec`, by `model_type`.

A type whose parameter count was not checked against `transformers` is refused rather than guessed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from headwater.core.errors import InputError

Fields = dict[str, Any]


def _common(c: Mapping[str, Any]) -> Fields:
    """The names of the Llama family."""
    return {
        "layers": c["num_hidden_layers"],
        "hidden": c["hidden_size"],
        "heads": c["num_attention_heads"],
        "kv_heads": c.get("num_key_value_heads") or c["num_attention_heads"],
        "head_dim": c.get("head_dim") or 0,
        "ffn": c.get("intermediate_size") or 0,
        "vocab": c["vocab_size"],
        "tied": bool(c.get("tie_word_embeddings", False)),
    }


def _llama(c: Mapping[str, Any]) -> Fields:
    bias = bool(c.get("attention_bias", False))
    return {**_common(c), "attention_bias": bias, "output_bias": bias, "mlp_bias": bool(c.get("mlp_bias", False))}


def _windowed(c: Mapping[str, Any], fields: Fields, on: bool) -> Fields:
    window = c.get("sliding_window") if on else None
    return {**fields, "window": window, "window_share": 1.0} if window else fields


def _mistral(c: Mapping[str, Any]) -> Fields:
    return _windowed(c, _common(c), True)


def _mixtral(c: Mapping[str, Any]) -> Fields:
    moe = {"experts": c["num_local_experts"], "topk": c["num_experts_per_tok"], "expert_ffn": c["intermediate_size"]}
    return {**_common(c), **moe}


def _qwen2(c: Mapping[str, Any]) -> Fields:
    return _windowed(c, {**_common(c), "attention_bias": True}, bool(c.get("use_sliding_window", False)))


def _qwen3(c: Mapping[str, Any]) -> Fields:
    bias = bool(c.get("attention_bias", False))
    out = {**_common(c), "head_dim": c.get("head_dim", 128), "qk_norm": True}
    return {**out, "attention_bias": bias, "output_bias": bias}


def _qwen3_moe(c: Mapping[str, Any]) -> Fields:
    if c.get("decoder_sparse_step", 1) != 1 or c.get("mlp_only_layers"):
        raise InputError("some layers of this qwen3_moe are dense", where="config.json", mend="use model fields")
    moe = {
        "experts": c.get("num_experts") or c.get("num_local_experts"),
        "topk": c["num_experts_per_tok"],
        "expert_ffn": c["moe_intermediate_size"],
    }
    return {**_qwen3(c), **moe}


def _gemma(c: Mapping[str, Any]) -> Fields:
    return {**_common(c), "head_dim": c.get("head_dim", 256), "tied": bool(c.get("tie_word_embeddings", True))}


def _gemma2(c: Mapping[str, Any]) -> Fields:
    out = {**_gemma(c), "norms_per_layer": 4}
    return {**out, "window": c.get("sliding_window") or 0, "window_share": 0.5}


def _gpt2(c: Mapping[str, Any]) -> Fields:
    hidden = c["n_embd"]
    return {
        "layers": c["n_layer"],
        "hidden": hidden,
        "heads": c["n_head"],
        "ffn": c.get("n_inner") or 4 * hidden,
        "vocab": c["vocab_size"],
        "tied": bool(c.get("tie_word_embeddings", True)),
        "gated": False,
        "attention_bias": True,
        "output_bias": True,
        "mlp_bias": True,
        "norm_bias": True,
        "learned_positions": c.get("n_positions", 1024),
    }


def _gpt_neox(c: Mapping[str, Any]) -> Fields:
    out = {**_common(c), "gated": False, "mlp_bias": True, "norm_bias": True}
    bias = bool(c.get("attention_bias", True))
    parallel = bool(c.get("use_parallel_residual", True))
    return {**out, "attention_bias": bias, "output_bias": bias, "parallel_block": parallel}


def _opt(c: Mapping[str, Any]) -> Fields:
    if c.get("word_embed_proj_dim", c["hidden_size"]) != c["hidden_size"]:
        raise InputError("this OPT projects its embeddings", where="config.json", mend="use model fields")
    out = {**_common(c), "ffn": c["ffn_dim"], "gated": False, "norm_bias": True}
    bias = bool(c.get("enable_bias", True))
    return {
        **out,
        "tied": bool(c.get("tie_word_embeddings", True)),
        "attention_bias": bias,
        "output_bias": bias,
        "mlp_bias": bias,
        "learned_positions": c["max_position_embeddings"] + 2,
    }


def _bloom(c: Mapping[str, Any]) -> Fields:
    hidden = c.get("hidden_size") or c["n_embed"]
    return {
        "layers": c.get("n_layer") or c["num_hidden_layers"],
        "hidden": hidden,
        "heads": c.get("n_head") or c["num_attention_heads"],
        "ffn": 4 * hidden,
        "vocab": c["vocab_size"],
        "tied": True,
        "gated": False,
        "attention_bias": True,
        "output_bias": True,
        "mlp_bias": True,
        "norm_bias": True,
        "embedding_norm": True,
    }


def _deepseek(c: Mapping[str, Any]) -> Fields:
    out = _common(c)
    rope, nope = c["qk_rope_head_dim"], c["qk_nope_head_dim"]
    return {
        **out,
        "kv_heads": c["num_attention_heads"],
        "head_dim": rope + nope,
        "q_lora": c.get("q_lora_rank") or 0,
        "kv_lora": c["kv_lora_rank"],
        "rope_dim": rope,
        "value_dim": c["v_head_dim"],
        "experts": c["n_routed_experts"],
        "topk": c["num_experts_per_tok"],
        "expert_ffn": c["moe_intermediate_size"],
        "shared_ffn": (c.get("n_shared_experts") or 0) * c["moe_intermediate_size"],
        "dense_layers": c.get("first_k_dense_replace", 0),
    }


def _gpt_oss(c: Mapping[str, Any]) -> Fields:
    out = {**_common(c), "ffn": 0, "experts": c["num_local_experts"], "topk": c["num_experts_per_tok"]}
    window = c.get("sliding_window") or 0
    return {
        **out,
        "expert_ffn": c["intermediate_size"],
        "attention_bias": True,
        "output_bias": True,
        "router_bias": True,
        "expert_bias": True,
        "sinks": True,
        "window": window,
        "window_share": 0.5 if window else 0.0,
    }


READERS: dict[str, Callable[[Mapping[str, Any]], Fields]] = {
    "llama": _llama,
    "headwater": _llama,
    "mistral": _mistral,
    "mixtral": _mixtral,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3_moe,
    "gemma": _gemma,
    "gemma2": _gemma2,
    "gpt2": _gpt2,
    "gpt_neox": _gpt_neox,
    "opt": _opt,
    "bloom": _bloom,
    "deepseek_v2": _deepseek,
    "deepseek_v3": _deepseek,
    "gpt_oss": _gpt_oss,
}


def read(config: Mapping[str, Any], name: str = "") -> Fields:
    """Fields of `ModelSpec`; InputError names the missing key or the unknown type."""
    kind = str(config.get("model_type", ""))
    if kind not in READERS:
        raise InputError(
            f"model_type {kind!r} is not known",
            where="config.json",
            mend=f"one of {', '.join(sorted(READERS))}, or give the model's fields in a recipe",
        )
    try:
        out = READERS[kind](config)
    except KeyError as error:
        raise InputError(f"{error.args[0]} is missing", where=f"config.json of {kind}") from error
    return {**out, "name": name or str(config.get("_name_or_path") or kind)}
