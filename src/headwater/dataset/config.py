"""The recipe's `dataset` section: how token shards are stored.

Sequence length, mixture and seed are no part of it: windows are cut and mixed when they are read (`order.py`), so one
packed dataset serves every run. They belong to the `train` section.

    DatasetConfig(dtype="uint32")
"""

from __future__ import annotations

from typing import Literal

from headwater.core.config import Section, field


class DatasetConfig(Section):
    """Packing of the corpus into token shards."""

    dtype: Literal["auto", "uint16", "uint32"] = field("auto")
    """Integer that holds one token. auto: uint16 for vocabularies up to 65,536 tokens, else uint32."""
