"""A keyed permutation of [0, size) that needs no table: any position at once, and back.

A Feistel network on the smallest even number of bits that holds `size`, walked along its cycle until it lands inside
(Black and Rogaway 2002, "Ciphers with arbitrary finite domains"); on average under four rounds of the walk. It
shuffles training data; it is no cipher.

    permute(np.arange(10, dtype=np.uint64), size=10, key=42)        # the numbers 0..9, shuffled
    unpermute(permute(x, size, key), size, key) == x
"""

from __future__ import annotations

import numpy as np
import xxhash
from numpy.typing import NDArray

ROUNDS = 8
"""Four make a strong shuffle of large domains (Luby and Rackoff); with halves of one or two bits more are needed."""

_GOLDEN = 0x9E3779B97F4A7C15
_MASK64 = (1 << 64) - 1

Array = NDArray[np.uint64]


def derive_key(*parts: str | int) -> int:
    """A 64-bit key from names and numbers; the parts keep their borders, so ("a", "b") is not ("ab",)."""
    encoded = (str(part).encode() for part in parts)
    return xxhash.xxh3_64_intdigest(b"".join(len(part).to_bytes(4, "little") + part for part in encoded))


def _mix(value: int) -> int:
    """splitmix64's finaliser (Steele, Lea and Flood 2014) on one Python integer."""
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK64
    return value ^ (value >> 31)


def _round_keys(key: int) -> list[np.uint64]:
    return [np.uint64(_mix((key + (index + 1) * _GOLDEN) & _MASK64)) for index in range(ROUNDS)]


def _scramble(half: Array, round_key: np.uint64) -> Array:
    value = half ^ round_key
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


def _half_bits(size: int) -> int:
    return max(1, (max(2, size) - 1).bit_length() + 1 >> 1)


def _forward(value: Array, keys: list[np.uint64], bits: int) -> Array:
    shift, mask = np.uint64(bits), np.uint64((1 << bits) - 1)
    left, right = value >> shift, value & mask
    for key in keys:
        left, right = right, left ^ (_scramble(right, key) & mask)
    return (left << shift) | right


def _backward(value: Array, keys: list[np.uint64], bits: int) -> Array:
    shift, mask = np.uint64(bits), np.uint64((1 << bits) - 1)
    left, right = value >> shift, value & mask
    for key in reversed(keys):
        left, right = right ^ (_scramble(left, key) & mask), left
    return (left << shift) | right


def _walk(positions: Array, size: int, key: int, *, back: bool) -> Array:
    if size < 1 or size > 1 << 62:
        raise ValueError(f"cannot permute {size} positions")
    value = np.array(positions, dtype=np.uint64)
    if value.size and int(value.max()) >= size:
        raise ValueError(f"position {int(value.max())} is outside [0, {size})")
    step, keys, bits = (_backward if back else _forward), _round_keys(key), _half_bits(size)
    with np.errstate(over="ignore"):
        outside = np.ones(value.shape, dtype=bool)
        while outside.any():
            value[outside] = step(value[outside], keys, bits)
            outside = value >= np.uint64(size)
    return value


def permute(positions: Array, size: int, key: int) -> Array:
    """Where each position in [0, size) goes, uint64 like `positions`. ValueError for a position outside."""
    return _walk(positions, size, key, back=False)


def unpermute(places: Array, size: int, key: int) -> Array:
    """The inverse of `permute`."""
    return _walk(places, size, key, back=True)
