"""The token shard file: one domain's tokens and an index of its documents, every byte under a checksum.

    header, 128 bytes     HEADER below, little-endian; its last field is XXH3-64 of the rest of it
    payload               the tokens, uint16 or uint32, from byte 128 on, contiguous
    footer                arrays in the order of COLUMNS, then JSON {"domain", "langs", "sources", "split"} in UTF-8

A document is a begin-of-text token (unless the tokenizer has none), its tokens and one end-of-document token; documents
follow each other without gaps. Checksums: XXH3-64
of every 64 KiB block of payload (checked when a block is first read), of the footer, and of the header.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Literal

import numpy as np
import xxhash

MAGIC = b"HWTOKENS"
VERSION = 1
NO_BOS = 0xFFFF_FFFF
"""In the header: documents begin with their text."""
BLOCK_BYTES = 65_536
"""Small enough that checking a block costs little when one window of it is read (about 5 microseconds)."""

HEADER = struct.Struct("<8s IIII QQQQ 32s II QQ 8x Q")
"""magic; version, bytes a token, vocabulary, block bytes; tokens, documents, footer offset, footer bytes; tokenizer
SHA-256; eos id, bos id; footer XXH3-64, length of the JSON in bytes; header XXH3-64."""
assert HEADER.size == 128

COLUMNS: tuple[tuple[str, str], ...] = (
    ("checksums", "<u8"),  # of each block; all other columns have an entry a document
    ("ends", "<u8"),  # token after the document's eos, counted from the shard's first
    ("bytes", "<u8"),  # of the document's UTF-8 text
    ("units", "<u8"),  # CJK characters plus words
    ("ids", "V16"),  # document id
    ("by_id", "<u4"),  # documents sorted by id
    ("sources", "<u2"),  # index into the JSON's lists
    ("langs", "<u2"),
)

TokenType = Literal["uint16", "uint32"]


@dataclass(frozen=True, slots=True)
class Header:
    """What a shard says about itself."""

    token_bytes: int
    vocab_size: int
    tokens: int
    documents: int
    footer_offset: int
    footer_bytes: int
    tokenizer_sha256: str
    eos_id: int
    bos_id: int | None
    footer_hash: int
    json_bytes: int

    @property
    def dtype(self) -> np.dtype[np.unsignedinteger]:
        return np.dtype(f"<u{self.token_bytes}")

    @property
    def blocks(self) -> int:
        return -(-self.tokens * self.token_bytes // BLOCK_BYTES)

    @property
    def file_bytes(self) -> int:
        return self.footer_offset + self.footer_bytes

    def pack(self) -> bytes:
        head = HEADER.pack(
            MAGIC,
            VERSION,
            self.token_bytes,
            self.vocab_size,
            BLOCK_BYTES,
            self.tokens,
            self.documents,
            self.footer_offset,
            self.footer_bytes,
            bytes.fromhex(self.tokenizer_sha256),
            self.eos_id,
            NO_BOS if self.bos_id is None else self.bos_id,
            self.footer_hash,
            self.json_bytes,
            0,
        )[:-8]
        return head + struct.pack("<Q", xxhash.xxh3_64_intdigest(head))

    @classmethod
    def unpack(cls, data: bytes) -> Header:
        """ValueError, saying what is wrong, for anything but an intact header of this version."""
        if len(data) < HEADER.size or data[:8] != MAGIC:
            raise ValueError("it does not begin with a token shard's header")
        fields = HEADER.unpack(data[: HEADER.size])
        if fields[1] != VERSION:
            raise ValueError(f"it has format {fields[1]}; this version of Headwater reads format {VERSION}")
        if fields[-1] != xxhash.xxh3_64_intdigest(data[: HEADER.size - 8]):
            raise ValueError("the header's checksum is wrong")
        if fields[4] != BLOCK_BYTES:
            raise ValueError(f"it has blocks of {fields[4]} bytes, not {BLOCK_BYTES}")
        token_bytes, vocab_size, _, tokens, documents, footer_offset, footer_bytes, sha256 = fields[2:10]
        eos_id, bos_id, footer_hash, json_bytes = fields[10:14]
        return cls(
            token_bytes,
            vocab_size,
            tokens,
            documents,
            footer_offset,
            footer_bytes,
            sha256.hex(),
            eos_id,
            None if bos_id == NO_BOS else bos_id,
            footer_hash,
            json_bytes,
        )


def column_sizes(header: Header) -> list[tuple[str, str, int, int]]:
    """(name, dtype, entries, offset in the footer) of each column."""
    sizes, offset = [], 0
    for name, dtype in COLUMNS:
        entries = header.blocks if name == "checksums" else header.documents
        sizes.append((name, dtype, entries, offset))
        offset += entries * np.dtype(dtype).itemsize
    return sizes


def token_type(vocab_size: int, asked: Literal["auto", "uint16", "uint32"]) -> TokenType:
    """The integer type for a vocabulary; ValueError if the one asked for is too small."""
    if asked == "auto":
        return "uint16" if vocab_size <= 65_536 else "uint32"
    if asked == "uint16" and vocab_size > 65_536:
        raise ValueError(f"{vocab_size:,} tokens do not fit uint16")
    return asked
