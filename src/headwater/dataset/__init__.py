"""Packed token shards, the order in which a run reads them, and the loader.

dataset = TokenDataset.open("workspace/dataset/0123456789abcdef")
split = dataset.split("train")
order = StepOrder(split.sizes, seed=1, segments=[StepSegment(1, global_batch=32, seq_len=256)])
for batch in Loader(split, order).iterate(1, 100): ...
"""

from typing import Any

from headwater.dataset.config import DatasetConfig
from headwater.dataset.dataset import DatasetSplit, DomainStream, StreamWindow, TokenDataset
from headwater.dataset.loader import Batch, Loader
from headwater.dataset.order import DomainUse, Order, OrderSegment, SampleRef
from headwater.dataset.shard import DocumentInfo
from headwater.dataset.steps import StepOrder, StepSegment, check_epochs, describe_use, rank_slice
from headwater.dataset.trace import DocumentTrace, StepTrace, trace_document, trace_step

__all__ = [
    "Batch",
    "DatasetConfig",
    "DatasetSplit",
    "DocumentInfo",
    "DocumentTrace",
    "DomainStream",
    "DomainUse",
    "Loader",
    "Order",
    "OrderSegment",
    "SampleRef",
    "StepOrder",
    "StepSegment",
    "StepTrace",
    "StreamWindow",
    "TokenDataset",
    "check_epochs",
    "describe_use",
    "pack_files",
    "rank_slice",
    "trace_document",
    "trace_step",
]


def __getattr__(name: str) -> Any:
    """The file verb reads Parquet, so it is imported when first used."""
    if name == "pack_files":
        from headwater.dataset.files import pack_files

        return pack_files
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
