"""Curation: raw text in any shape in, a clean corpus out, with a reason for everything that did not make it.

    from headwater.curate import clean_text, detect_language, curate_files
    clean_text("<p>今天天气很好,我们去公园散步,你来不来?</p>")

Names are loaded on first use, so that reading a recipe stays fast.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headwater.curate.clean import Cleaned, clean_document, clean_text
    from headwater.curate.config import CollectConfig, CurateConfig, SourceConfig
    from headwater.curate.files import FileOptions, curate_files
    from headwater.curate.html import extract_page
    from headwater.curate.identity import raw_digests, raw_inputs
    from headwater.curate.language import detect_language, language_segments, language_shares

_HOMES = {
    "Cleaned": "clean",
    "CollectConfig": "config",
    "CurateConfig": "config",
    "FileOptions": "files",
    "SourceConfig": "config",
    "clean_document": "clean",
    "clean_text": "clean",
    "curate_files": "files",
    "detect_language": "language",
    "extract_page": "html",
    "language_segments": "language",
    "language_shares": "language",
    "raw_digests": "identity",
    "raw_inputs": "identity",
}

__all__ = [
    "Cleaned",
    "CollectConfig",
    "CurateConfig",
    "FileOptions",
    "SourceConfig",
    "clean_document",
    "clean_text",
    "curate_files",
    "detect_language",
    "extract_page",
    "language_segments",
    "language_shares",
    "raw_digests",
    "raw_inputs",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"headwater.curate.{_HOMES[name]}"), name)
