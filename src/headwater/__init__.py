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
    "curate_files": "headwater.curate:curate_files",
    "clean_text": "headwater.curate:clean_text",
    "train_tokenizer_files": "headwater.tokenizer.files:train_tokenizer_files",
    "pack_files": "headwater.dataset.files:pack_files",
    "train_model": "headwater.train:train",
    "evaluate_model": "headwater.evaluate:evaluate_model",
    "export_model": "headwater.pipeline.export:export_model",
    "load_model": "headwater.engine:load_model",
    "generate": "headwater.engine:generate",
    "serve_model": "headwater.serve:serve",
}
"""Public functions that work on files and folders, one a stage, and where each lives: `headwater.curate_files(...)`."""

_CALLS = {
    "run": "headwater.pipeline.runner:run",
    "load_recipe": "headwater.pipeline.schema:load",
    **STAGE_CALLS,
}

__all__ = ["STAGE_CALLS", "__version__", *_CALLS]


def __getattr__(name: str) -> Any:
    """Import a call when it is first used, so that `import headwater` costs nothing."""
    if name not in _CALLS:
        raise AttributeError(f"module 'headwater' has no attribute {name!r}")
    module, _, attribute = _CALLS[name].partition(":")
    return getattr(import_module(module), attribute)


def __dir__() -> list[str]:
    return sorted(__all__)
