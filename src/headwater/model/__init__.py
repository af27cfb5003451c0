"""The language model: configuration, decoder and encoder, loss, Hugging Face import and export.

    from headwater.model import Decoder, ModelConfig, init_weights

Importing `ModelConfig` imports no torch; everything else does, when it is first asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from headwater.model.config import EncoderConfig, ModelConfig, ParameterCount, RopeScaling

if TYPE_CHECKING:
    from headwater.model.cache import KVCache
    from headwater.model.decoder import Decoder
    from headwater.model.encoder import Encoder
    from headwater.model.hf import empty_model, load_hf, save_hf
    from headwater.model.init import init_weights, initial_tensor
    from headwater.model.layout import BlockLayout
    from headwater.model.loss import CrossEntropy, cross_entropy
    from headwater.model.memory import keep_freed_memory

_LAZY = {
    "BlockLayout": "layout",
    "CrossEntropy": "loss",
    "Decoder": "decoder",
    "Encoder": "encoder",
    "KVCache": "cache",
    "cross_entropy": "loss",
    "empty_model": "hf",
    "init_weights": "init",
    "initial_tensor": "init",
    "keep_freed_memory": "memory",
    "load_hf": "hf",
    "save_hf": "hf",
}

__all__ = [
    "BlockLayout",
    "CrossEntropy",
    "Decoder",
    "Encoder",
    "EncoderConfig",
    "KVCache",
    "ModelConfig",
    "ParameterCount",
    "RopeScaling",
    "cross_entropy",
    "empty_model",
    "init_weights",
    "initial_tensor",
    "keep_freed_memory",
    "load_hf",
    "save_hf",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(f"headwater.model.{_LAZY[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
