"""The recipe's `dataset` section: how token shards are stored, and cached where they are read.

Sequence length, mixture and seed are no part of it: windows are cut and mixed when they are read (`order.py`), so one
packed dataset serves every run. They belong to the `train` section.

    DatasetConfig(dtype="uint32")
"""

from __future__ import annotations

from typing import Literal

from pydantic import model_validator

from headwater.core.config import Section, field


class DatasetConfig(Section):
    """Packing of the corpus into token shards, and a local cache of them."""

    dtype: Literal["auto", "uint16", "uint32"] = field("auto")
    """Integer that holds one token. auto: uint16 for vocabularies up to 65,536 tokens, else uint32."""

    format: Literal["tokens", "tfrecord"] = field("tokens")
    """How token shards are stored: our own files, or TFRecord files that other loaders read too. Training reads both,
    in the same order."""

    cache_dir: str | None = field(None, kind="operational", min_length=1)
    """Local folder (NVMe) for copies of token shards, for datasets on slow or shared storage; ranks of a machine share
    it. None: shards are read where they lie."""

    cache_bytes: int = field(100_000_000_000, kind="operational", unit="bytes", ge=1)
    """Most the cache folder may hold, all datasets together."""

    cache_read_ahead_steps: int = field(64, kind="operational", unit="steps", ge=0)
    """How many steps ahead of training shards are copied into the cache."""

    @model_validator(mode="after")
    def _check_cache(self) -> DatasetConfig:
        if self.cache_dir is not None and self.format != "tokens":
            raise ValueError("the cache holds shards of format tokens; leave out cache_dir, or pack as tokens")
        return self
