"""ModernBERT as Hugging Face writes it, to our encoder and back: `config.json` and the names of tensors, without torch.

In: the parsed `config.json` of a `ModernBertForMaskedLM` (transformers 4.48 or newer, 5 included). Out: a
`ModelConfig`. The other way writes both generations' keys. `tensor_plan` says which of our tensors, joined along
their first axis, make up each of theirs: they keep q, k and v in one matrix, and gate and up.

    config_from_modernbert(json.loads(Path("ModernBERT-base/config.json").read_text()))
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from headwater.core.errors import InputError
from headwater.model.config import ModelConfig

_DEFAULTS: dict[str, Any] = {  # what transformers 5.24 assumes for keys its own `save_pretrained` leaves out
    "vocab_size": 50368,
    "hidden_size": 768,
    "intermediate_size": 1152,
    "num_hidden_layers": 22,
    "num_attention_heads": 12,
    "max_position_embeddings": 8192,
    "initializer_range": 0.02,
    "norm_eps": 1e-5,
    "attention_bias": False,
    "tie_word_embeddings": True,
}
_ENCODER = {
    "local_attention": 128,
    "norm_bias": False,
    "mlp_bias": False,
    "decoder_bias": True,
    "classifier_bias": False,
}
_GLOBAL_THETA, _LOCAL_THETA, _EVERY = 160_000.0, 10_000.0, 3
_GLOBAL, _LOCAL = "full_attention", "sliding_attention"
_DROPOUTS = ("attention_dropout", "embedding_dropout", "mlp_dropout")


def config_from_modernbert(data: Mapping[str, Any], where: str = "config.json") -> ModelConfig:
    """Raises InputError for what this encoder does not compute, and for sizes that do not fit together."""
    _refuse(data, where)
    values = {name: data.get(name, default) for name, default in _DEFAULTS.items()}
    values["rms_norm_eps"] = values.pop("norm_eps")
    encoder = {name: data.get(name, default) for name, default in _ENCODER.items()}
    encoder["global_attn_every_n_layers"] = _every(data, values["num_hidden_layers"], where)
    values["rope_theta"] = _theta(data, _GLOBAL, "global_rope_theta", _GLOBAL_THETA, where)
    encoder["local_rope_theta"] = _theta(data, _LOCAL, "local_rope_theta", _LOCAL_THETA, where)
    try:
        return ModelConfig.model_validate({"architecture": "encoder", **values, "encoder": encoder})
    except ValidationError as error:
        detail = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in detail["loc"])
        what = str(detail.get("ctx", {}).get("error", detail["msg"])).partition("\n  mend: ")[0]
        raise InputError(f"{place}: {what}" if place else what, where=where) from error


def _refuse(data: Mapping[str, Any], where: str) -> None:
    found = {
        f"hidden_activation {data.get('hidden_activation')!r}": data.get("hidden_activation", "gelu") != "gelu",
        f"classifier_activation {data.get('classifier_activation')!r}": data.get("classifier_activation", "gelu")
        != "gelu",
        "dropout": any(data.get(name) for name in _DROPOUTS),
        "a quantised model": bool(data.get("quantization_config")),
    }
    if wrong := [name for name, is_there in found.items() if is_there]:
        raise InputError(
            f"{' and '.join(wrong)} is not supported", where=where, mend="use a model of ModernBERT's own form"
        )


def _every(data: Mapping[str, Any], layers: int, where: str) -> int:
    """How many layers apart the global ones are."""
    types = data.get("layer_types")
    if types is None:
        return int(data.get("global_attn_every_n_layers", _EVERY))
    for every in range(1, layers + 1):
        if types == [_LOCAL if layer % every else _GLOBAL for layer in range(layers)]:
            return every
    raise InputError(
        "layer_types do not make every n-th layer a global one, beginning with the first",
        where=where,
        mend="use a model whose global layers are evenly spaced",
    )


def _theta(data: Mapping[str, Any], kind: str, old_name: str, default: float, where: str) -> float:
    rope = (data.get("rope_parameters") or {}).get(kind) or {}
    if rope.get("rope_type", "default") != "default" or data.get("rope_scaling"):
        raise InputError("stretched rotary positions are not supported for an encoder", where=where)
    return float(rope.get("rope_theta") or data.get(old_name) or default)


def config_to_modernbert(
    config: ModelConfig,
    *,
    dtype: str = "float32",
    bos_token_id: int | None = None,
    eos_token_id: int | None = None,
    pad_token_id: int | None = None,
) -> dict[str, Any]:
    """`config.json` for `transformers` 4.48 and newer. A document begins with bos and ends with eos here, so these are
    what ModernBERT calls cls and sep."""
    encoder = config.encoder_config
    layers = range(config.num_hidden_layers)
    return {
        "architectures": ["ModernBertForMaskedLM"],
        "model_type": "modernbert",
        "vocab_size": config.true_vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_hidden_layers,
        "num_attention_heads": config.num_attention_heads,
        "hidden_activation": "gelu",
        "classifier_activation": "gelu",
        "max_position_embeddings": config.max_position_embeddings,
        "initializer_range": config.initializer_range,
        "norm_eps": config.rms_norm_eps,
        "attention_bias": bool(config.attention_bias),
        "tie_word_embeddings": config.tie_word_embeddings,
        **{name: getattr(encoder, name) for name in _ENCODER},
        **dict.fromkeys(_DROPOUTS, 0.0),
        "layer_types": [_GLOBAL if encoder.is_global(layer) else _LOCAL for layer in layers],
        "global_attn_every_n_layers": encoder.global_attn_every_n_layers,
        "rope_parameters": {
            _GLOBAL: {"rope_type": "default", "rope_theta": config.rope_theta},
            _LOCAL: {"rope_type": "default", "rope_theta": encoder.local_rope_theta},
        },
        "global_rope_theta": config.rope_theta,
        "local_rope_theta": encoder.local_rope_theta,
        "bos_token_id": bos_token_id,
        "eos_token_id": eos_token_id,
        "pad_token_id": pad_token_id,
        "cls_token_id": bos_token_id,
        "sep_token_id": eos_token_id,
        "dtype": dtype,
        "torch_dtype": dtype,
    }


_PARTS: dict[str, tuple[str, ...]] = {  # of a layer
    "attn_norm": ("input_layernorm",),
    "attn.Wqkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "attn.Wo": ("self_attn.o_proj",),
    "mlp_norm": ("post_attention_layernorm",),
    "mlp.Wi": ("mlp.gate_proj", "mlp.up_proj"),
    "mlp.Wo": ("mlp.down_proj",),
}
_REST = {
    "model.embeddings.tok_embeddings": "model.embed_tokens",
    "model.embeddings.norm": "model.embed_norm",
    "model.final_norm": "model.norm",
    "head.dense": "head.dense",
    "head.norm": "head.norm",
    "decoder": "lm_head",
}


def tensor_plan(config: ModelConfig, names: list[str]) -> dict[str, tuple[str, ...]]:
    """Hugging Face's tensor -> ours that make it up, in order, for a model whose parameters are `names`."""
    modules: dict[str, tuple[str, ...]] = {theirs: (ours,) for theirs, ours in _REST.items()}
    for layer in range(config.num_hidden_layers):
        for theirs, parts in _PARTS.items():
            modules[f"model.layers.{layer}.{theirs}"] = tuple(f"model.layers.{layer}.{part}" for part in parts)
    there = set(names)
    plan = {
        f"{theirs}.{kind}": tuple(f"{part}.{kind}" for part in parts)
        for theirs, parts in modules.items()
        for kind in ("weight", "bias")
        if f"{parts[0]}.{kind}" in there
    }
    if "lm_head_bias" in there:
        plan["decoder.bias"] = ("lm_head_bias",)
    assert {ours for parts in plan.values() for ours in parts} == there, "a parameter has no name in Hugging Face"
    return plan
