"""Headwater: from raw text to a served language model, by one recipe.

    import headwater
    result = headwater.run("recipes/quickstart.yaml", overrides=["train.steps=100"])
    headwater.load_recipe("recipes/llama-7b.yaml").config.model.hidden_size

or `headwater --help` on the command line. Each stage is also one call of its part: see `STAGE_CALLS`.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

STAGE_CALLS = {
    "curate_files": "headwater.curate",
    "clean_text": "headwater.curate",
    "train_tokenizer_files": "headwater.tokenizer",
    "pack_files": "headwater.dataset",
    "train_model": "headwater.train",
    "evaluate_model": "headwater.evaluate",
    "export_model": "headwater.pipeline.export",
    "load_model": "headwater.engine",
    "generate": "headwater.engine",
}
"""Public functions, one a stage, that work on files and folders, and the part each lives in."""

_CALLS = {
    "run": ("headwater.pipeline.runner", "run"),
    "load_recipe": ("headwater.pipeline.schema", "load"),
    **{name: (module, name) for name, module in STAGE_CALLS.items()},
}

__all__ = ["STAGE_CALLS", "__version__", *_CALLS]


def __getattr__(name: str) -> Any:
    """Import a call when it is first used, so that `import headwater` costs nothing."""
    if name not in _CALLS:
        raise AttributeError(f"module 'headwater' has no attribute {name!r}")
    module, attribute = _CALLS[name]
    return getattr(import_module(module), attribute)


def __dir__() -> list[str]:
    return sorted(__all__)
