"""The recipe's `tokenizer` section: the vocabulary and the sample it is learned from.

    TokenizerConfig(model_type="unigram", vocab_size=4096)

Imports no SentencePiece, so that a recipe loads in milliseconds.
"""

from __future__ import annotations

from typing import Literal

from headwater.core.config import Section, field


class TokenizerConfig(Section):
    """A SentencePiece model that gives back every text exactly."""

    model_type: Literal["bpe", "unigram"] = field("bpe")
    """`bpe`: byte-pair encoding, trains fast (9 CPU seconds for 30 MB). `unigram`: encodes three times faster (24
    against 8 MB/s), trains 8 to 15 times slower."""

    vocab_size: int = field(32_768, unit="tokens", ge=512, le=1 << 20)
    """All tokens: 31 reserved ones, 256 bytes, line breaks with indentation, and learned pieces. Embeddings are padded
    to a multiple of 128, so a multiple of 128 wastes nothing."""

    character_coverage: float = field(0.9995, unit="ratio", gt=0.9, le=1.0)
    """Share of the sample's characters that get a piece; the rarest others are spelled in bytes."""

    split_digits: bool = field(True)
    """Every digit is a token of its own, which helps arithmetic and keeps numbers regular."""

    max_piece_characters: int = field(16, unit="characters", ge=1, le=64)
    """Longest learned piece."""

    sample_bytes: int = field(100_000_000, unit="bytes", ge=10_000)
    """Text the vocabulary is learned from. More changes little and takes memory: about 16 bytes for each (30 MB: 0.6
    GB, measured with bpe)."""

    sample_weights: dict[str, float] | None = field(None)
    """Share of the sample by domain, on any scale; null gives each (domain, language) pair its size to the power of
    `sample_exponent`. Languages of a weighted domain share it in the same way."""

    sample_exponent: float = field(0.5, ge=0.0, le=1.0)
    """1 samples in proportion to size, 0 equally. In between, a small language still gets pieces of its own."""

    max_line_repeats: int = field(8, ge=1)
    """The same line counts at most this often: boilerplate would fill the vocabulary with whole sentences."""
