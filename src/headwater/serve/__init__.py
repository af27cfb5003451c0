"""An OpenAI-style server around the embedded engine.

    from headwater.serve import ServeConfig, serve
    serve("workspace/export/0123456789abcdef/model", ServeConfig(port=8080))

`/v1/models`, `/v1/completions`, `/v1/chat/completions` (streaming too), `/health`, `/metrics`. The web framework and
torch are imported when `serve` is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from headwater.serve.config import ServeConfig

if TYPE_CHECKING:
    from headwater.serve.server import Serving, serve

__all__ = ["ServeConfig", "Serving", "serve"]


def __getattr__(name: str) -> Any:
    if name in ("Serving", "serve"):
        return getattr(importlib.import_module("headwater.serve.server"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
