"""The shard cache of a run, from the `dataset` section's settings.

with cached(dataset, DatasetConfig(cache_dir="/nvme/shards"), reporter): ...     # batches come through the cache
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headwater.core.files import space
from headwater.core.progress import Reporter
from headwater.dataset import DatasetConfig, TokenDataset
from headwater.dataset.cache import ShardCache


@contextmanager
def cached(dataset: TokenDataset, storage: DatasetConfig, reporter: Reporter) -> Iterator[None]:
    """Read the dataset through the cache the settings ask for, if they do, while the block lasts. UserError for a
    folder that cannot be written."""
    if storage.cache_dir is None:
        yield
        return
    folder = Path(storage.cache_dir).expanduser()
    cache = ShardCache(folder, dataset.path, key=dataset.fingerprint, limit_bytes=storage.cache_bytes)
    dataset.cache = cache
    reporter.decide(f"token shards are cached in {folder}", f"up to {space(storage.cache_bytes)}")
    try:
        yield
    finally:
        dataset.cache = None
        cache.close()
