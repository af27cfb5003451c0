"""Hugging Face `config.json` to `ModelConfig` and back, without torch.

In: the parsed `config.json` of a Llama, Qwen2, Qwen3 or ModernBERT model, as `transformers` 4 or 5 writes it. Out: a
`ModelConfig`; what this decoder does not compute (sliding windows, other activations, partial rotation ...) is refused
by name. The other way writes both generations' keys (`torch_dtype` and `dtype`, `rope_theta` with `rope_scaling` and
`rope_parameters`), so that either reads the same model.

    config = config_from_hf(json.loads(Path("Qwen3-0.6B/config.json").read_text()))
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from headwater.core.errors import InputError
from headwater.model.config import ModelConfig, RopeScaling
from headwater.model.modernbert_hf import config_from_modernbert, config_to_modernbert

ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "modernbert": "ModernBertForMaskedLM",
}

_DEFAULTS: dict[str, dict[str, Any]] = {
    # What transformers 5.24 assumes for keys its own `save_pretrained` leaves out.
    "llama": {"max_position_embeddings": 2048, "rms_norm_eps": 1e-6, "attention_bias": False},
    "qwen2": {"max_position_embeddings": 32768, "rms_norm_eps": 1e-6},
    "qwen3": {"max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "attention_bias": False, "head_dim": 128},
}
_COPIED = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size")


def config_from_hf(data: Mapping[str, Any], where: str = "config.json") -> ModelConfig:
    """Raises InputError for another architecture, an unsupported setting or sizes that do not fit together."""
    kind = data.get("model_type")
    if kind not in ARCHITECTURES:
        raise InputError(
            f"model_type {kind!r} is not supported", where=where, mend=f"supported: {', '.join(ARCHITECTURES)}"
        )
    if kind == "modernbert":
        return config_from_modernbert(data, where)
    _refuse(data, where)
    defaults = _DEFAULTS[kind]
    missing = [name for name in _COPIED if data.get(name) is None]
    if missing:
        raise InputError(f"{', '.join(missing)} is missing", where=where, mend="is this the model's own config.json?")
    values: dict[str, Any] = {name: data[name] for name in _COPIED}
    for name in ("num_key_value_heads", "head_dim", "max_position_embeddings", "rms_norm_eps", "initializer_range"):
        value = data.get(name, defaults.get(name))
        if value is not None:
            values[name] = value
    values["tie_word_embeddings"] = bool(data.get("tie_word_embeddings", False))
    values["qk_norm"] = kind == "qwen3"
    values["attention_bias"] = (
        "qkv" if kind == "qwen2" else bool(data.get("attention_bias", defaults["attention_bias"]))
    )
    values["rope_theta"], values["rope_scaling"] = _rope(data, where)
    try:
        return ModelConfig.model_validate(values)
    except ValidationError as error:
        detail = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in detail["loc"])
        what = str(detail.get("ctx", {}).get("error", detail["msg"])).partition("\n  mend: ")[0]
        raise InputError(f"{place}: {what}" if place else what, where=where) from error


def _refuse(data: Mapping[str, Any], where: str) -> None:
    rope = data.get("rope_parameters") or data.get("rope_scaling") or {}
    layers = data.get("layer_types") or []
    found = {
        f"hidden_act {data.get('hidden_act')!r}": data.get("hidden_act", "silu") not in ("silu", "swish"),
        "mlp_bias": bool(data.get("mlp_bias")),
        "sliding-window attention": bool(data.get("use_sliding_window")) or any(t != "full_attention" for t in layers),
        "partial_rotary_factor": 1.0 not in (data.get("partial_rotary_factor", 1.0), 1)
        or rope.get("partial_rotary_factor", 1.0) != 1.0,
        "a quantised model": bool(data.get("quantization_config")),
    }
    if wrong := [name for name, is_there in found.items() if is_there]:
        raise InputError(
            f"{' and '.join(wrong)} is not supported",
            where=where,
            mend="use a model of plain Llama, Qwen2 or Qwen3 form",
        )


def _rope(data: Mapping[str, Any], where: str) -> tuple[float, RopeScaling | None]:
    """rope_theta and scaling, from whichever generation's keys are there."""
    parameters = dict(data.get("rope_scaling") or data.get("rope_parameters") or {})
    theta = parameters.pop("rope_theta", None) or data.get("rope_theta") or 10000.0
    old_name = parameters.pop("type", None)
    kind = parameters.pop("rope_type", old_name) or "default"
    parameters.pop("partial_rotary_factor", None)
    if kind == "default":
        return float(theta), None
    known = {name: value for name, value in parameters.items() if value is not None}
    if kind in ("llama3", "yarn"):
        known.setdefault("original_max_position_embeddings", data.get("max_position_embeddings"))
    elif kind in ("linear", "dynamic"):
        known.pop("original_max_position_embeddings", None)  # some model cards carry it; these types do not read it
    try:
        return float(theta), RopeScaling.model_validate({"rope_type": kind, **known})
    except (ValidationError, TypeError) as error:
        raise InputError(
            f"rope scaling {kind!r} with {known} is not supported",
            where=where,
            mend="supported: linear, dynamic, llama3, yarn",
        ) from error


def config_to_hf(
    config: ModelConfig,
    *,
    dtype: str = "float32",
    bos_token_id: int | None = None,
    eos_token_id: int | None = None,
    pad_token_id: int | None = None,
) -> dict[str, Any]:
    """`config.json` of this model for `transformers` 4 and 5."""
    kind = config.hf_type
    if kind == "modernbert":
        return config_to_modernbert(
            config, dtype=dtype, bos_token_id=bos_token_id, eos_token_id=eos_token_id, pad_token_id=pad_token_id
        )
    data: dict[str, Any] = {
        "architectures": [ARCHITECTURES[kind]],
        "model_type": kind,
        "vocab_size": config.true_vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_hidden_layers,
        "num_attention_heads": config.num_attention_heads,
        "num_key_value_heads": config.num_key_value_heads,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": config.max_position_embeddings,
        "initializer_range": config.initializer_range,
        "rms_norm_eps": config.rms_norm_eps,
        "tie_word_embeddings": config.tie_word_embeddings,
        "attention_dropout": 0.0,
        "use_cache": True,
        "bos_token_id": bos_token_id,
        "eos_token_id": eos_token_id,
        "pad_token_id": pad_token_id,
        "dtype": dtype,
        "torch_dtype": dtype,
        **_rope_to_hf(config),
    }
    if kind != "qwen2":
        data["attention_bias"] = config.attention_bias is True
    if kind == "llama":
        data["mlp_bias"] = False
    else:
        data.update(use_sliding_window=False, sliding_window=None, max_window_layers=config.num_hidden_layers)
    return data


def _rope_to_hf(config: ModelConfig) -> dict[str, Any]:
    if config.rope_scaling is None:
        new = {"rope_type": "default", "rope_theta": config.rope_theta}
        return {"rope_theta": config.rope_theta, "rope_scaling": None, "rope_parameters": new}
    scaling = config.rope_scaling.model_dump(exclude_none=True)
    new = {**scaling, "rope_theta": config.rope_theta}
    return {"rope_theta": config.rope_theta, "rope_scaling": scaling, "rope_parameters": new}
