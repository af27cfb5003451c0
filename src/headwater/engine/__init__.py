"""Generation: load a model, complete prompts in batches, stream text.

    from headwater.engine import SamplingParams, generate
    generate("workspace/export/0123456789abcdef", ["Once upon a time"], SamplingParams(seed=1))[0].text

Nothing here is imported until it is asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headwater.engine.generation import Completion, Engine, Piece, generate
    from headwater.engine.load import LoadedModel, load_model
    from headwater.engine.sampling import SamplingParams, TokenLogprob
    from headwater.engine.text_stream import TextStream

_LAZY = {
    "Completion": "generation",
    "Engine": "generation",
    "LoadedModel": "load",
    "Piece": "generation",
    "SamplingParams": "sampling",
    "TextStream": "text_stream",
    "TokenLogprob": "sampling",
    "generate": "generation",
    "load_model": "load",
}

__all__ = [
    "Completion",
    "Engine",
    "LoadedModel",
    "Piece",
    "SamplingParams",
    "TextStream",
    "TokenLogprob",
    "generate",
    "load_model",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(f"headwater.engine.{_LAZY[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
