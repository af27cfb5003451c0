"""Train, use and export a tokenizer.

tokenizer = Tokenizer.load("workspace/tokenizer/0123456789abcdef")
tokenizer.encode("Headwater 处理中文。")
train_tokenizer_files([Path("corpus.jsonl.zst")], Path("my-tokenizer"), TokenizerConfig(vocab_size=8192))
"""

from typing import Any

from headwater.tokenizer.config import TokenizerConfig
from headwater.tokenizer.tokenizer import Tokenizer

__all__ = ["Tokenizer", "TokenizerConfig", "train_tokenizer_files"]


def __getattr__(name: str) -> Any:
    """The file verb reads Parquet, so it is imported when first used."""
    if name == "train_tokenizer_files":
        from headwater.tokenizer.files import train_tokenizer_files

        return train_tokenizer_files
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
